"""Without a worker: eager mode and plain calls, and what must not be left behind."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from django_rlock import FairLock, LockLostError, LockTimeoutError, LockUnavailableError, rlock
from django_rlock.celery import LockedTask
from django_rlock.drivers.identity import thread_owner
from django_rlock.locks import holds
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_acquired, task_skipped


@pytest.fixture
def app():
    with Celery("in process", broker="memory://", set_as_current=False) as made:
        made.conf.task_always_eager = True
        yield made


def locked(app, **options):
    return app.task(base=LockedTask, bind=True, shared=False, **options)


@pytest.fixture
def make(app):
    """A bound task named "job" on the lock "job", with the options given."""

    def made(body, **options):
        body.__name__ = "body"  # Celery writes a def of that name, and cannot with a lambda's
        return locked(app, **{"name": "job", "lock_key": "job", **options})(body)

    return made


@pytest.fixture
def somebody_else():
    """Another thread holds the lock "job" until this event is set, or the test ends."""
    taken, enough = threading.Event(), threading.Event()

    def hold():
        with FairLock("job"):
            taken.set()
            enough.wait(30)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert taken.wait(30)
        yield enough
        enough.set()
        held.result(30)


@pytest.fixture
def received():
    """What a signal has sent to ``received.of(signal)``."""

    class Received:
        def __init__(self):
            self.connected = []

        def of(self, signal):
            calls = []

            def receive(**kwargs):
                calls.append(kwargs)

            signal.connect(receive)
            self.connected.append((signal, receive))
            return calls

    received = Received()
    yield received
    for signal, receive in received.connected:
        signal.disconnect(receive)


def is_locked(name="job"):
    return FairLock(name).locked()


CALLS = [
    pytest.param(lambda task: task.delay().get(), id="delay"),
    pytest.param(lambda task: task.apply().get(), id="apply"),
    pytest.param(lambda task: task(), id="call"),
]


@pytest.mark.parametrize("call", CALLS)
def test_it_runs_under_its_lock(make, call):
    def body(self):
        self.lock.check()
        return self.lock.name, is_locked()

    assert call(make(body)) == ("job", True)
    assert not is_locked()


@pytest.mark.parametrize("call", CALLS)
def test_skip(make, somebody_else, received, call):
    skipped = received.of(task_skipped)
    task = make(lambda self: "ran")
    assert call(task) is None
    assert [(signal["task"], signal["lock"].name) for signal in skipped] == [(task, "job")]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("options", [{"on_locked": "wait"}, {"on_locked": "retry"}], ids=str)
def test_wait_and_retry_wait(make, somebody_else, call, options):
    task = make(lambda self: somebody_else.is_set(), max_retries=0, **options)
    threading.Timer(0.1, somebody_else.set).start()
    assert call(task) is True, "it ran before the other one was told to release"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "options",
    [
        {"on_locked": "raise"},
        {"on_locked": "wait", "lock_wait_time": 0.05},
        {"on_locked": "retry", "lock_retry_delay": 0.01, "lock_max_retries": 2},
    ],
    ids=str,
)
def test_what_is_given_up_raises(app, make, somebody_else, call, options):
    app.conf.task_eager_propagates = True
    with pytest.raises(LockTimeoutError, match="job"):
        call(make(lambda self: "ran", **options))


def test_a_body_may_call_tasks_of_its_own_key(make):
    def body(self, depth):
        inner = [self(depth - 1), self.apply([depth - 1]).get()] if depth else []
        self.lock.check()
        return [depth, *inner]

    assert make(body).apply([1]).get() == [1, [0], [0]]
    assert not is_locked()


def test_run_is_the_body_without_the_lock(make, somebody_else):
    task = make(lambda self: "ran")
    assert task.run() == "ran"
    with pytest.raises(RuntimeError, match="holds no lock"):
        task.lock  # noqa: B018


def test_the_report_names_the_task(make, settings):
    task = make(lambda self: holds.context.get())
    assert task.apply(task_id="1").get() == {"task": "job", "task_id": "1"}
    assert holds.context.get() is None
    settings.RLOCK = {"default": {"RECORD_CONTEXT": False}}
    assert task.apply().get() is None


def test_what_a_body_did_not_release_is_released(make, caplog):
    def body(self):
        rlock("left behind").acquire()
        rlock("left behind").acquire()
        rlock("cool-down", lease_time=60).acquire()

    with FairLock("outer"):
        make(body).apply()
        assert is_locked("outer")
        assert re.findall("did not release lock '(.+)'", caplog.text) == ["left behind"]
        assert not is_locked("left behind")
        assert is_locked("cool-down"), "a lease that the body chose runs on"
        FairLock("cool-down").release()


def test_an_interruption_between_taking_and_running_leaves_nothing(make):
    class Interrupted(BaseException):
        pass

    def interrupt(lock, **_):
        raise Interrupted

    task = make(lambda self: "ran")
    lock_acquired.connect(interrupt)
    try:
        with pytest.raises(Interrupted):
            task()
    finally:
        lock_acquired.disconnect(interrupt)
    assert HOLDS.of(thread_owner()) == []
    with FairLock("job", wait_time=5):
        pass


def test_a_lock_that_was_lost_fails_the_task(make):
    def body(self):
        FairLock("job").force_release()
        return "done"

    with FairLock("another"):
        pass  # so that the server knows the release script: a release that has to be sent twice tells no loss
    result = make(body).apply()
    assert result.state == "FAILURE"
    assert isinstance(result.result, LockLostError)


def test_errors_of_other_locks_are_the_bodys(make):
    def body(self):
        raise LockTimeoutError("another")

    result = make(body).apply()
    assert result.state == "FAILURE"
    assert result.result.lock_name == "another"


def test_work_that_is_done_stands_when_the_release_fails(make, own_server, caplog):
    server = own_server()

    def body(self):
        server.kill()
        return "done"

    with caplog.at_level(logging.ERROR, "django_rlock.celery"):
        assert make(body).apply().get() == "done"
    assert "has done its work, but: Lock 'job' is unavailable" in caplog.text


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_message_that_cannot_be_sent_again_is_not_thrown_away(app, make, own_server, somebody_else, acks_late):
    broker = own_server(None, port=0)
    app.conf.update(broker_url=broker.url, broker_connection_timeout=0.1, task_publish_retry=False)
    app.conf.task_always_eager = False
    broker.kill()
    task = make(lambda self: "ran", on_locked="retry", acks_late=acks_late)
    run = build_tracer(task.name, task, app=app)  # as a worker does
    outcome: Any = run("1", [], {}, {"id": "1", "delivery_info": {}}).info
    if acks_late:
        assert (outcome.state, outcome.retval.requeue) == ("REJECTED", True)
    else:
        assert (outcome.state, type(outcome.retval)) == ("FAILURE", LockTimeoutError)


def test_without_redis_nothing_runs(make, own_server):
    own_server().kill()
    result = make(lambda self: "ran").apply()
    assert isinstance(result.result, LockUnavailableError)
