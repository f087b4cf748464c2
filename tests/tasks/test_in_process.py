"""Without a worker: eager mode and plain calls, and what must not be left behind."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from socket import gethostname
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.result import denied_join_result
from django.db import transaction
from kombu.utils.json import dumps

from django_rlock import (
    FairLock,
    LockLostError,
    LockTimeoutError,
    distributed_lock,
    rlock,
)
from django_rlock._tasks.holders import tasks_among
from django_rlock._tasks.runs import locks_held
from django_rlock._transport.identity import thread_owner
from django_rlock.celery import LockedTask, Skipped
from django_rlock.locks import records
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_acquired, task_skipped
from tests.background import is_handed_over
from tests.eventually import UNTIL_SERVED
from tests.faults.interrupting import interruptions, outside_of
from tests.heard import heard
from tests.operators import free_by_force


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
def held_by_another():
    """Another thread holds the lock "job" until this event is set, or the test ends."""
    taken, enough = threading.Event(), threading.Event()

    def hold():
        with FairLock("job"):
            taken.set()
            enough.wait(UNTIL_SERVED)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert taken.wait(UNTIL_SERVED)
        yield enough
        enough.set()
        held.result(UNTIL_SERVED)


@pytest.fixture
def received():
    """``received(signal)`` is what that signal tells from then on."""
    with ExitStack() as listening:
        yield lambda signal: listening.enter_context(heard(signal))


def is_locked(name="job"):
    return FairLock(name).locked()


DELAY_APPLY_CALL = [lambda task: task.delay().get(), lambda task: task.apply().get(), lambda task: task()]
CALLS = [pytest.param(call, id=name) for call, name in zip(DELAY_APPLY_CALL, ["delay", "apply", "call"], strict=True)]


@pytest.mark.parametrize("call", CALLS)
def test_skip(make, held_by_another, received, call):
    skipped = received(task_skipped)
    task = make(lambda self: "ran")
    result = call(task)
    assert (isinstance(result, Skipped), bool(result), dumps(result)) == (True, False, "null")
    assert (result.lock_name, result.holder) == ("job", None)
    assert [(signal["task"], signal["lock"].name) for signal in skipped] == [(task, "job")]
    assert [signal["reason"].partition(" pid ")[0] for signal in skipped] == [f"lock 'job' is held by {gethostname()}"]


def test_a_skip_is_one_line_that_names_the_holder(make, held_by_another, caplog):
    caplog.set_level(logging.INFO, "django_rlock")
    make(lambda self: "ran")()
    [line] = caplog.messages
    assert re.fullmatch(r"Task job\[\] was skipped: lock 'job' is held by .* pid .*", line)


def test_a_skip_names_the_task_that_holds_it(make, caplog):
    caplog.set_level(logging.INFO, "django_rlock")

    def body(self, runs):
        if runs:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: self.apply([0], task_id="second").get()).result(UNTIL_SERVED)
        return "ran"

    make(body).apply([1], task_id="first")
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("django_rlock.")]
    assert line == "Task job[second] was skipped: lock 'job' is held by task first"


@pytest.mark.parametrize(
    ("call", "on_locked"), [*((call, "wait") for call in DELAY_APPLY_CALL), (DELAY_APPLY_CALL[2], "retry")]
)
def test_waiting_without_limit_is_logged(make, held_by_another, call, on_locked, caplog):
    task = make(lambda self: held_by_another.is_set(), max_retries=0, on_locked=on_locked)
    told = threading.Event()

    def note(record: logging.LogRecord) -> bool:
        if record.name.startswith("django_rlock"):  # Kombu may warn before
            told.set()
        return True

    caplog.handler.addFilter(note)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call, task)
        assert told.wait(UNTIL_SERVED), "it waits silently"
        held_by_another.set()
        assert called.result(UNTIL_SERVED) is True, "it ran before the other one was told to release"
    assert "waits without limit, because a plain call has no message to send again: Lock 'job'" in caplog.text


@pytest.mark.parametrize("call", DELAY_APPLY_CALL[:2])
@pytest.mark.parametrize("options", [{}, {"lock_max_retries": 500}, {"lock_wait_time": 0.05}], ids=str)
def test_eager_retry_ends_at_once_with_the_error_of_the_last_retry(make, held_by_another, call, options, caplog):
    task = make(lambda self: "ran", on_locked="retry", **options)
    with pytest.raises(LockTimeoutError, match="job") as caught:
        call(task)
    assert not held_by_another.is_set()
    assert caught.value.__notes__ == ["Eager mode cannot send messages again: the task ends as after its last retry."]
    assert "Eager mode cannot send messages again: the task ends as after its last retry: Lock 'job'" in caplog.text


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
def test_a_call_that_gives_up_raises(app, make, held_by_another, call, options):
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


def test_a_serializer_without_a_word_for_skipped_gets_none(app, make, held_by_another):
    app.conf.result_serializer = "msgpack"
    assert make(lambda self: "ran")() is None


def test_the_lock_of_some_arguments_is_looked_at_and_freed(make):
    def body(self, pk):
        info = self.lock_info(pk)
        assert info is not None
        return info.holder.context["task"], self.lock_info(pk + 1), self.release_lock(pk + 1)

    task = make(body, lock_key="job:<pk>")
    assert task.apply([1]).get() == ("job", None, False)
    other = FairLock("job:1", lease_time=60, owner="another")
    other.acquire()
    assert task.release_lock(pk=1)
    assert not is_locked("job:1")
    with pytest.raises(LockLostError):
        other.release()


def test_run_is_the_body_without_the_lock(make, held_by_another):
    task = make(lambda self: "ran")
    assert task.run() == "ran"
    with pytest.raises(RuntimeError, match="holds no lock"):
        task.lock  # noqa: B018


def test_a_task_that_may_not_run_again_for_a_while_is_skipped_until_then(make):
    runs = []
    task = make(lambda self: runs.append(1), lock_at_least=10)  # less than half of a lease: its holder seems dead
    for _ in range(2):
        task.delay()
    assert runs == [1]
    assert 5 < (FairLock("job").remaining_lease() or 0) <= 10
    assert tasks_among(FairLock("job").holders()) == []  # so no worker frees it as a dead process's


def test_so_many_runs_at_once(make):
    ran = make(lambda self: "done", lock_permits=2)
    first, second = (rlock("job", permits=2, owner=name) for name in ("one", "two"))
    with first:
        assert ran.delay().get() == "done"
        with second:
            assert not ran.delay().get()


@pytest.mark.parametrize(("on_locked", "outcome"), [("skip", None), (lambda error: error.lock_name, "job")])
def test_the_decorator_below_a_task_does_not_wait_to_skip(app, held_by_another, on_locked, outcome):
    @app.task(shared=False)
    @distributed_lock("job", on_locked=on_locked)
    def job():
        return "ran"

    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(job)
        try:
            assert called.result(30) == outcome
        finally:
            held_by_another.set()


def test_a_failed_task_says_which_option_is_to_change(make, held_by_another):
    result = make(lambda self: "ran", on_locked="raise").apply()
    assert "held by " in str(result.result)
    assert "wait longer with lock_wait_time=." in str(result.result)


def test_the_report_names_the_task(make, settings):
    task = make(lambda self: records.context.get())
    assert task.apply(task_id="1").get() == {"task": "job", "task_id": "1"}
    assert records.context.get() is None
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
        assert is_handed_over(caplog)
        assert not is_locked("left behind")
        assert is_locked("cool-down"), "a lease that the body chose runs on"
        free_by_force("cool-down")


@pytest.mark.django_db(transaction=True)
def test_what_a_body_releases_with_the_transaction_is_kept_until_then(make, caplog):
    def body(self):
        with rlock("stock", until_commit=True), rlock("cash", "paper", until_commit=True):
            pass

    with transaction.atomic():
        make(body)()
        assert all(map(is_locked, ["stock", "cash", "paper"]))
    assert not any(map(is_locked, ["stock", "cash", "paper"]))
    assert not caplog.records


def test_an_interruption_anywhere_leaves_neither_locks_nor_names(make):
    """The thread's next task must not be reported under this one's name, nor have its locks."""

    def body(self):
        rlock("left behind").acquire()

    ours = (
        "django_rlock/celery.py",
        "_tasks/runs.py",
        "_tasks/naming.py",
        "_tasks/children.py",
        "_tasks/holders.py",
        "identity.py",
        "interruptions.py",
        "locks/release.py",
    )
    task = make(body)
    task.apply()
    for number in interruptions(task.apply, outside_of(*ours)):
        assert HOLDS.snapshot() == [], number
        assert thread_owner().label == "", number
        assert records.context.get() is None, number
        assert not locks_held.get({}), number


def test_a_lock_that_was_lost_fails_the_task(make):
    def body(self):
        free_by_force("job")
        return "done"

    with FairLock("another"):
        pass  # so that the server knows the release script: a release that has to be sent twice reports no loss
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


@pytest.mark.lengthy
@pytest.mark.parametrize("acks_late", [True, False])
def test_a_message_that_cannot_be_sent_again_is_not_thrown_away(app, make, own_server, held_by_another, acks_late):
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


def test_a_message_is_sent_anew_although_its_state_cannot_be_stored(app, make, held_by_another):
    """The results may be where the broker is not, and down: that is no reason to give the work up."""
    app.conf.update(task_always_eager=False, result_backend="redis+socket:///nowhere")
    task = make(lambda self: "ran", on_locked="retry")
    request = {"id": "1", "delivery_info": {"exchange": "", "routing_key": "anew"}}
    with denied_join_result():  # as in a worker
        outcome = build_tracer(task.name, task, app=app)("1", [], {}, request)
    assert outcome.info is not None
    assert outcome.info.state == "RETRY"
    with app.connection_for_read() as connection:
        assert connection.SimpleQueue("anew").get(timeout=UNTIL_SERVED).headers["id"] == "1"


class Based(LockedTask[..., Any]):
    lock_wait_time = 0


@pytest.mark.parametrize("base", [LockedTask, Based])
def test_a_task_of_celery_itself_takes_no_lock(base, received):
    """Celery makes its own, such as that which unlocks a chord, of the app's class."""
    acquired = received(lock_acquired)
    with Celery("all locked", task_cls=base, broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True

        @app.task(name="job", shared=False)
        def job(a, b):
            return a + b

        steps = app.tasks["celery.starmap"], app.tasks["celery.accumulate"]
        assert steps[0].apply_async(kwargs={"task": job.s(), "it": [(1, 2)]}).get() == [3]
        assert len(acquired) == 1
        assert steps[1].apply_async(args=(1, 2)).get() == (1, 2)
        assert steps[1](1, 2) == (1, 2)
        assert len(acquired) == 1
