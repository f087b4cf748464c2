"""A worker's child handles a message: here in the process of the test, without a worker."""

import gc
import uuid
from contextvars import copy_context
from itertools import count

import pytest
from celery import Celery
from celery.app.task import Context
from celery.app.trace import build_tracer

from django_rlock import FairLock
from django_rlock._core.clock import monotonic
from django_rlock._tasks.deliveries import RECEIVED
from django_rlock._tasks.reservations import RESERVATION
from django_rlock._transport.identity import thread_owner
from django_rlock.celery import LockedTask
from django_rlock.locks.holds import HOLDS
from tests.eventually import UNTIL_SERVED
from tests.faults.opcodes import MISSES, Aim
from tests.faults.storm import Interruption
from tests.forms import THOROUGH, first_place

STRIDE = 1 if THOROUGH else 25
"""Each so many opcodes a run is interrupted."""


@pytest.fixture
def app():
    with Celery("messages", broker="memory://", set_as_current=False) as made:
        yield made


def job(app, **options):
    @app.task(base=LockedTask, shared=False, name="job", lock_key="job", **options)
    def job():
        return "ran"

    return job


def message():
    """What a child gets."""
    return {"id": uuid.uuid4().hex, "delivery_info": {}, "called_directly": False, RECEIVED: monotonic()}


def interrupt():
    raise Interruption


def is_interrupted(task, aim, at):
    """Whether the task has so many opcodes, and what was raised there was not dropped.

    It runs in a context of its own, because an interruption may keep it from resetting its context variables.
    """
    aim.begin(at)
    try:
        copy_context().run(task)
    except Interruption:
        return True
    finally:
        aim.end()
    return False


@pytest.mark.timeout(1200 if THOROUGH else 120)
@pytest.mark.usefixtures("brief_collections")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops a few interruptions
def test_an_interruption_at_any_opcode_of_a_run_leaves_no_lock(app, request):
    task, aim, misses = job(app), Aim(interrupt), 0
    for at in count(first_place(request.config, STRIDE), STRIDE):
        task.request_stack.push(Context(message()))
        misses = 0 if is_interrupted(task, aim, at) else misses + 1
        task.request_stack.pop()
        gc.collect()  # the frames of what was interrupted may be part of a circle
        assert HOLDS.of(thread_owner()) == [], aim.place
        with FairLock("job", owner="another", wait_time=UNTIL_SERVED):
            pass
        if misses == MISSES:
            break
    assert at > 1000


def test_a_message_that_waits_comes_before_the_broker_delivers_it_again(app):
    app.conf.broker_transport_options = {"visibility_timeout": 10}
    task = job(app, on_locked="retry", lock_retry_delay=60)
    with FairLock("job", owner="another"):
        outcome = build_tracer(task.name, task, app=app)(uuid.uuid4().hex, [], {}, message())
    assert outcome.info is not None
    assert 0 < outcome.info.retval.when < 5


def test_a_task_without_a_lock_may_get_the_headers_of_another(app, caplog):
    @app.task(shared=False, name="plain")
    def plain():
        return "ran"

    headers = {**message(), RESERVATION: ["token", "default", "mark", "job"]}
    build_tracer("plain", plain, app=app)(headers["id"], [], {}, headers)
    assert not [record for record in caplog.records if record.name.startswith("django_rlock")]


def test_a_success_is_remembered_though_the_body_has_asked_for_a_retry(app):
    runs = []

    @app.task(base=LockedTask, bind=True, shared=False, name="job", lock_key="job", acks_late=True)
    def job(self):
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(throw=False)

    def deliver(**changes):
        build_tracer(job.name, job, app=app)(headers["id"], [], {}, {**headers, **changes})

    headers = message()
    deliver()
    deliver(delivery_info={"redelivered": True})
    assert runs == [0]
    deliver(retries=1)
    assert runs == [0, 1]
