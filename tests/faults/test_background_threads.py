"""A background thread that has ended or hangs is replaced, and that is logged."""

import threading

import pytest

from django_rlock import FairLock, RLock
from django_rlock._core.clock import monotonic
from django_rlock._core.threads import SingleInstance
from django_rlock._transport.worker import BackgroundWorker, CleanUps, worker
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.watchdog import watch
from tests.background import no_threads, until_renewed
from tests.eventually import PATIENCE, eventually


def test_one_that_ended_is_replaced(kind, redis_client, caplog):
    with kind("stock:41"):
        its = worker("default")
        its._stopped = True  # as if it had died
        its.wake()
        eventually(lambda: not its._runs)
        its._stopped = False
        its.late_at = its.wakes_at = monotonic() - 1000
        with kind("stock:42") as lock:
            hold = next(hold for hold in HOLDS.snapshot() if hold.lock is lock)
            until_renewed(hold)
    assert "is late by" in caplog.text


def test_one_that_ended_is_replaced_by_the_next_acquire(monkeypatch, settings, redis_client):
    """Although no round is late yet."""
    settings.RLOCK = {"default": {}}  # a new background thread
    failed = threading.Event()

    def fail(self: BackgroundWorker, *_: object) -> None:
        self._promise(monotonic() + 0.5)
        failed.set()
        raise SystemExit

    monkeypatch.setattr(BackgroundWorker, "_turn", fail)
    monkeypatch.setattr(BackgroundWorker, "_log_failure", fail)
    its = worker("default")
    its.wake()
    assert failed.wait(PATIENCE)
    eventually(lambda: not its._runs)
    monkeypatch.undo()
    with RLock("stock:42"):
        until_renewed(*HOLDS.snapshot())


def test_one_that_hangs_is_replaced(monkeypatch, settings, redis_client, caplog):
    """It ends when it can go on."""
    settings.RLOCK = {"default": {}}  # a new background thread
    hangs, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    run, clean_up_now = BackgroundWorker._run, CleanUps.round

    def run_and_say_so(self: BackgroundWorker, instance: SingleInstance) -> None:
        first = not hangs.is_set()
        run(self, instance)
        if first:
            ended.set()

    def hang_once(self: CleanUps, now: float) -> float:
        if not hangs.is_set():
            hangs.set()
            goes_on.wait(PATIENCE)
        return clean_up_now(self, now)

    monkeypatch.setattr(BackgroundWorker, "_run", run_and_say_so)
    monkeypatch.setattr(CleanUps, "round", hang_once)
    its = worker("default")
    its.wake()
    assert hangs.wait(PATIENCE)
    its.late_at = its.wakes_at = monotonic() - 1000
    with RLock("stock:42"):
        until_renewed(*HOLDS.snapshot())
        assert not ended.is_set()
        goes_on.set()
        assert ended.wait(PATIENCE)
        until_renewed(*HOLDS.snapshot())
    assert "is late by" in caplog.text


@pytest.mark.parametrize("is_unconfirmed", [False, True])
def test_how_late_one_may_be(is_unconfirmed, redis_client, caplog):
    """A FairLock whose grant is known by a message only cannot wait as long as another."""
    with no_threads():
        lock = FairLock("stock:42")
        lock.acquire()
        (hold,) = HOLDS.snapshot()
        if is_unconfirmed:
            hold.granted_until(hold.since + 5)
        its = worker("default")
        its._runs = True
        its._promise(hold.deadline - hold.runs_for - 3)
        before = its._instance
        watch(hold)
        assert (its._instance is not before) == is_unconfirmed
        lock.release()
    assert ("is late by 3.0 s" in caplog.text) == is_unconfirmed


def test_rounds_that_are_late_again_and_again_are_logged_once_and_counted(settings, redis_client, caplog):
    settings.RLOCK = {"default": {}}  # a new background thread
    its = worker("default")
    due = monotonic() + 1000
    with no_threads():
        its._runs = True
        for late in (6.0, 7.5, 6.5):
            its._promise(due)
            its.check(due + late, 30)
        its._runs = False
    its._counted_until = monotonic()
    its.wake()
    eventually(lambda: "was late 2 more times, by up to 7.5 s" in caplog.text)
    assert caplog.text.count("is late by") == 1
