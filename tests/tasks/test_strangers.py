"""Processes of other users and containers, whose holders a process cannot see in its ``/proc``: they are alive."""

import os
import subprocess
import sys

import pytest

from django_rlock._tasks.holders import TaskHolder, label
from tests import namespaces
from tests.celery_app import records, tasks
from tests.celery_app.records import overlaps, starts
from tests.celery_app.workers import ROOT
from tests.tasks.test_losses import go

pytestmark = [
    pytest.mark.usefixtures("locks_of_workers"),
    pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not())),
]

CALL = """
import sys, django
django.setup()
from tests.celery_app import tasks
print(repr({call}))
"""
ENVIRON = {"DJANGO_SETTINGS_MODULE": "tests.celery_app.settings", "PYTHONDONTWRITEBYTECODE": "1"}


def start(prefix, program):
    command = [*prefix, sys.executable, "-c", program]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | ENVIRON, stdout=subprocess.PIPE, text=True)


def said(process):
    output, _ = process.communicate(timeout=records.WAIT)
    assert process.returncode == 0
    return output.strip()


def call(prefix, expression):
    return start(prefix, CALL.format(call=expression))


def test_a_plain_call_of_another_user_leaves_a_run_its_lock(worker, log):
    result = tasks.skips.delay(log, True)
    (run,) = starts(log, 1)
    web = call([*namespaces.with_proc("hidepid=2"), *namespaces.as_nobody()], f"tasks.skips('{log}')")
    assert said(web) == f"<Skipped: lock 'work:{log}' is held by task {run['id']}>"
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"


def test_a_worker_of_another_user_leaves_a_run_its_lock(worker, start_worker, log):
    hidden = [*namespaces.with_proc("hidepid=2"), *namespaces.as_nobody()]
    with start_worker("stranger", "--pool", "solo", before=hidden) as stranger:
        result = tasks.skips.delay(log, True)
        (first,) = starts(log, 1)
        assert tasks.skips.apply_async([log], queue=stranger.queue).get(timeout=records.WAIT) is None
        second = tasks.retries.apply_async([log], queue=stranger.queue)
        records.wait_for(f"deferred:{second.id}")
        go(log)
        assert result.get(timeout=records.WAIT) == second.get(timeout=records.WAIT) == f"done {log}"
        assert not overlaps([first, *starts(log, 1)])


def test_containers_without_the_id_of_their_kernel_leave_each_other_their_locks(log, celery_servers):
    """Both are "localhost", and only the first has a process of the holder's number."""
    container = namespaces.in_container("subset=pid")
    not_the_first = ["sh", "-c", '"$@"; exit', "sh"]
    holding = call([*container, *not_the_first], f"tasks.skips.apply(['{log}', True]).get()")
    (run,) = starts(log, 1)
    assert said(call(container, f"tasks.skips('{log}')")) == f"<Skipped: lock 'work:{log}' is held by task {run['id']}>"
    go(log)
    assert said(holding) == f"'done {log}'"


MACHINE = "from django_rlock._tasks import holders; print(holders._machine())"


@pytest.mark.parametrize(
    ("container", "has_id"),
    [
        pytest.param([], True, id="alone"),
        pytest.param(namespaces.with_proc("subset=pid"), False, id="without /proc/sys"),
        pytest.param(["unshare", "--pid", "--fork", "--kill-child"], False, id="with the /proc of other processes"),
    ],
)
def test_where_an_id_cannot_be_read_nobody_is_judged(container, has_id):
    assert bool(said(start(container, MACHINE))) == has_id


def is_gone(process):
    holder = TaskHolder.of(f"client:1:{process}:id")
    assert holder is not None
    return holder.is_gone


def test_a_later_process_with_the_number_of_the_holder_is_another_one():
    """The kernel gives numbers again."""
    process, machine = label("id").partition(":")[0].split("@")
    pid, started = process.split(".")
    earlier = f"{pid}.{int(started) - 1}"
    assert is_gone(f"{earlier}@{machine}")
    assert not is_gone(f"{process}@{machine}")
    assert not is_gone(f"{pid}@{machine}")
    assert not is_gone(f"{earlier}@")
