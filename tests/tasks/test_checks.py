"""System checks of tasks."""

import os
import subprocess
import sys
from pathlib import Path

import celery
import pytest
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from django_rlock._tasks.checks import check_tasks
from django_rlock.celery import LockedTask


@pytest.fixture
def app():
    former = celery.current_app._get_current_object()  # type: ignore[attr-defined]
    with Celery("checks", broker="memory://") as made:
        made.conf.worker_prefetch_multiplier = 1
        yield made
    former.set_current()


@pytest.fixture
def found(app, settings):
    """What is found about a task with these options, as its id and text."""

    nodes = [f"redis://localhost:{port}/0" for port in (1, 2, 3)]
    settings.RLOCK = {"default": {}, "quorum": {"NODES": nodes}}

    def check(**options):
        @app.task(base=LockedTask, shared=False, name="job", **{"lock_key": "job", **options})
        def job():
            pass

        app.finalize()
        told = [(str(message.id).removeprefix("django_rlock."), str(message.msg)) for message in check_tasks()]
        return [each for each in told if each[1].startswith(("job", "The app"))]  # not of shared tasks of other tests

    return check


def test_nothing_is_wrong(found):
    assert found() == []


@pytest.mark.parametrize(
    ("options", "number", "text"),
    [
        ({"lock_using": "nope"}, "E020", "lock_using"),
        ({"lock_key": "job:<self.nope>"}, "E020", "no attribute 'nope'"),
        ({"on_locked": "wait", "soft_time_limit": 5}, "W020", "soft time limit of 5 s"),
        ({"on_locked": "wait", "soft_time_limit": 5, "lock_wait_time": 6}, "W020", "soft time limit of 5 s"),
        ({"acks_late": True, "time_limit": 4000}, "W021", "after 3600 s"),
        ({"acks_late": True, "lock_lease_time": 4000}, "W021", "for 4000 s"),
        ({"key": "job:7"}, "W022", "'lock_key'"),
        ({"wait_time": 5}, "W022", "'lock_wait_time'"),
        ({"using": "other"}, "W022", "'lock_using'"),
        ({"lock_using": "quorum", "lock_scope": "queue"}, "E020", "'quorum' has NODES"),
    ],
)
def test_problems_of_tasks_are_reported(found, options, number, text):
    ((told, message),) = found(**options)
    assert told == number
    assert text in message


def test_limits_of_the_app(found, app):
    app.conf.task_soft_time_limit = 5
    app.conf.task_time_limit = 4000
    assert [number for number, _ in found(on_locked="wait", acks_late=True)] == ["W020", "W021"]


def test_an_attribute_that_a_template_reads_is_the_tasks_own(found):
    assert found(key="north", lock_key="job:<self.key>") == []


@pytest.mark.parametrize("name", ["ONCE", "singleton_lock_expiry", "singleton_backend_url"])
def test_settings_that_another_library_left(found, app, name):
    app.conf[name] = {"backend": "celery_once.backends.Redis"} if name == "ONCE" else 60
    ((told, message),) = found()
    assert told == "W023"
    assert name in message


def test_settings_of_a_library_that_is_in_use(found, app):
    app.conf.ONCE = {"backend": "celery_once.backends.Redis"}
    app.conf.singleton_lock_expiry = 60

    def body():
        pass

    old = [app.task(base=base, shared=False, name=base.__name__, once={})(body) for base in (QueueOnce, Singleton)]
    assert found() == []
    assert len(old) == 2


PROJECT = {
    "shop/__init__.py": """
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

app = Celery("shop", broker="memory://")
app.autodiscover_tasks()
""",
    "shop/settings.py": """
SECRET_KEY = "-"
INSTALLED_APPS = ["django_rlock", "shop"]
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost:1/0"}}
USE_TZ = True
""",
    "shop/tasks.py": """
from celery import shared_task
from django_rlock.celery import LockedTask

@shared_task(base=LockedTask, lock_key="order:<pk>", lock_using="nope")
def book(pk): ...
""",
}


@pytest.fixture
def project(tmp_path):
    """Runs a module in a fresh project whose task names an unknown alias; returns what it says of that, if anything."""
    for name, text in PROJECT.items():
        path: Path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    environ = {name: value for name, value in os.environ.items() if name != "CELERY_SKIP_CHECKS"}
    environ |= {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}

    def run(*arguments):
        command = [sys.executable, "-m", *arguments]
        with subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                assert process.stdout is not None
                return next((line for line in process.stdout if "E020" in line or "ready." in line), "")
            finally:
                process.kill()

    return run


@pytest.mark.parametrize("command", ["django check", "celery -A shop worker -P solo -l INFO"])
def test_tasks_that_a_worker_is_to_find_are_checked(project, command):
    assert "(django_rlock.E020) shop.tasks.book: lock_using" in project(*command.split())


def test_messages_behind_one_that_waits(found, app):
    app.conf.worker_prefetch_multiplier = 4
    assert [number for number, _ in found(on_locked="wait")] == ["W020"]


def test_waits_that_end_in_time(found):
    assert found(on_locked="wait", soft_time_limit=5, lock_wait_time=4) == []


def test_a_wait_that_is_interrupted_before_its_message_comes_again(found):
    assert found(on_locked="wait", acks_late=True, soft_time_limit=2000) == []
