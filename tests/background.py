"""Requests of tests to the package's background threads: a round now, the end of a round, nothing left to clean up."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from django_rlock._core import callbacks, threads
from django_rlock._transport import worker as background_worker
from django_rlock._transport.worker import BackgroundWorker, CleanUps, add_jobs, worker, workers
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.locks.watchdog import watch
from tests.eventually import PATIENCE, eventually


class RoundEnds:
    """The last job of a round: it notifies the test that waits for the round's end."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self.waiting: deque[threads.AutoResetEvent] = deque()

    def round(self, now: float) -> float:
        for _ in range(len(self.waiting)):
            self.waiting.popleft().set()
        return float("inf")

    def at_exit(self) -> None:
        pass


add_jobs(RoundEnds)


def nudge(using: str = "default") -> None:
    """Start a round now."""
    worker(using).wake()


def look_at(hold: Hold) -> None:
    """Make the watchdog check a hold whose times a test has changed."""
    watch(hold)
    worker(hold.lock.using).wake()


def renew_now(*holds: Hold) -> None:
    """Have holds be due for renewal, all of this process when none is named. A test with a lease that no stall can end
    need not wait for a third of it.
    """
    for hold in holds or HOLDS.snapshot():
        hold.deadline -= hold.renew_at() - min(hold.renew_at(), time.monotonic())
        look_at(hold)


def until_renewed(hold: Hold) -> None:
    """Renew a hold now, and wait until that is done."""
    renew_now(hold)
    late = hold.deadline
    eventually(lambda: hold.deadline > late)


def settle() -> None:
    """Wait until all that background threads know of has been done, and said."""
    for _ in range(2):  # the first round may have been under way
        _end_rounds()
    assert callbacks.flush(PATIENCE)


def until_heard() -> None:
    """Wait until what this process holds hears of its forced release, and was asked about once."""
    holds = HOLDS.snapshot()
    eventually(lambda: all(map(hears, holds)))
    settle()


def hears(hold: Any) -> bool:
    """Whether the server has confirmed that a hold's process hears of forced releases."""
    waiters = hold.subscription.waiters if hold.subscription else []
    return bool(waiters) and all(each._listener.channels[each.channel].confirmed for each in waiters)


def _end_rounds() -> None:
    """Have all background threads come to the end of a round, which may be one that is under way."""
    for each in workers():
        end = threads.AutoResetEvent()
        each.jobs[RoundEnds].waiting.append(end)
        each.wake()
        assert end.wait(PATIENCE)


def forget_clean_up() -> None:
    """Drop what is still to be cleaned up on servers that are gone by now, and what a round has in its hands."""
    for _ in range(2):
        for each in workers():
            each.jobs[CleanUps].clear()
        _end_rounds()
    for each in workers():
        each.jobs[CleanUps].clear()


def is_clean() -> bool:
    """Whether nothing is left to be cleaned up in this process, but once more in case that something comes late."""
    if not _all_done():
        return False
    _end_rounds()  # one that is under way may have taken what it does from where this looks
    return _all_done()


def _all_done() -> bool:
    return all(_is_done(each.jobs[CleanUps]) for each in workers())


def _is_done(jobs: CleanUps) -> bool:
    return not jobs.inbox and all(clean_up.gap > background_worker.AGAIN_AFTER for _, clean_up in jobs._due)


def until_clean() -> None:
    """Wait until nothing is left to be cleaned up."""
    eventually(is_clean)


@contextmanager
def no_threads() -> Iterator[None]:
    """A process without background threads: what they would do is the test's business."""
    with (
        mock.patch.object(BackgroundWorker, "_start"),
        mock.patch.object(background_worker.WORKERS, "value", background_worker.WORKERS._make()),
    ):
        yield


class SettledLog:
    """pytest's caplog, which looks only when background threads have said what they know."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __getattr__(self, name: str) -> Any:
        if name in {"records", "record_tuples", "messages", "text"}:
            settle()
        return getattr(self._caplog, name)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> SettledLog:
    """What is logged, also by background threads, but for what they have still to say of earlier tests."""
    settle()
    caplog.handler.addFilter(_note_thread)
    return SettledLog(caplog)


def _note_thread(record: logging.LogRecord) -> bool:
    record.handled_in = threading.current_thread().name
    return True


def is_handed_over(caplog: Any) -> bool:
    """Whether what the package logged waited for mutexes of ``logging`` in the thread for callbacks only."""
    own = (record for record in caplog.records if record.name.startswith("django_rlock."))
    return {record.handled_in for record in own} == {"rlock-callbacks"}
