"""Celery tasks whose Redis goes away at an inconvenient moment."""

import threading
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from django_rlock import FairLock, scripts
from django_rlock.celery import LockedTask
from tests.eventually import UNTIL_SERVED

MORE_THAN_ARE_TRIED = 5


@pytest.fixture
def app():
    with Celery("faults", broker="memory://", set_as_current=False) as made:
        yield made


@pytest.fixture
def taken():
    """Another thread holds the lock "job" until the test ends."""
    held, enough = threading.Event(), threading.Event()

    def hold():
        with FairLock("job"):
            held.set()
            enough.wait(UNTIL_SERVED)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(UNTIL_SERVED)
    yield
    enough.set()
    other.join()


def test_a_task_is_sent_anew_that_redis_refused_and_then_did_not_know(app, proxy, taken):
    def body(self: Any) -> str:
        return "ran"

    task = app.task(base=LockedTask, bind=True, shared=False, name="job", lock_key="job", on_locked="retry")(body)
    rules = [proxy.hold(scripts.TASK_READ) for _ in range(MORE_THAN_ARE_TRIED)]
    request = {"id": "1", "delivery_info": {"exchange": "", "routing_key": "anew"}}
    outcome = build_tracer(task.name, task, app=app)("1", [], {}, request)
    assert rules[0].served.is_set()
    assert outcome.info is not None
    assert outcome.info.state == "RETRY"
    with app.connection_for_read() as connection:
        sent = connection.SimpleQueue("anew").get(timeout=UNTIL_SERVED)
    assert sent.headers["id"] == "1"
    assert sent.headers["rlock_token"], "it may be sent twice, and is looked up only as a copy"
