"""Locks below Django's own ``@task``, with the immediate backend and with workers on a database."""

import os
import subprocess
import sys

import pytest

from django_rlock import FairLock
from tests.beside import in_another_thread
from tests.celery_app import records
from tests.celery_app.records import overlaps, starts, until
from tests.celery_app.workers import ROOT
from tests.eventually import PATIENCE

pytest.importorskip("django.tasks", reason="Django has tasks from 6.0 on")

pytestmark = pytest.mark.usefixtures("locks_of_workers")

EACH, WORKERS = 5, 3


@pytest.fixture
def tasks(settings, celery_servers):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    from tests.django_tasks_app import tasks

    return tasks


@pytest.mark.parametrize("name", ["waits", "skips", "calls_a_locked_task"])
def test_a_task_runs_under_its_lock(tasks, log, name):
    assert getattr(tasks, name).enqueue(log).return_value == f"done {log}"
    assert not overlaps(starts(log, 1))


def test_a_task_whose_lock_is_taken_is_skipped(tasks, log):
    with FairLock(f"work:{log}"):
        result = in_another_thread(tasks.skips.enqueue, log)
    assert (str(result.status), result.return_value) == ("SUCCESSFUL", None)
    assert not records.count(f"{log}:starts")


ENQUEUE = """
import sys, django
django.setup()
from tests.django_tasks_app import tasks
for task in tasks.waits, tasks.calls_a_locked_task:
    for _ in range(int(sys.argv[2])):
        task.enqueue(sys.argv[1])
"""


def test_tasks_of_several_workers_run_one_at_a_time(celery_servers, log, tmp_path):
    pytest.importorskip("django_tasks_db", reason="is in the dependency group test")
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.django_tasks_app.settings",
        "RLOCK_TEST_DATABASE": str(tmp_path / "tasks.sqlite3"),
        "RLOCK_TEST_URL": os.environ["RLOCK_TEST_LOCKS"],
    }

    def start(*command):
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environ)

    assert start("-m", "django", "migrate", "--verbosity", "0").wait(PATIENCE) == 0
    assert start("-c", ENQUEUE, log, str(EACH)).wait(PATIENCE) == 0
    with FairLock(f"work:{log}") as lock:
        workers = [start("-m", "django", "db_worker", "--batch", "--no-startup-delay") for _ in range(WORKERS)]
        until(lambda: (info := lock.info()) is not None and info.waiting == WORKERS)
    runs = starts(log, 2 * EACH)
    assert [worker.wait(PATIENCE) for worker in workers] == [0] * WORKERS
    assert not overlaps(runs)
    assert len({run["pid"] for run in runs}) == WORKERS
