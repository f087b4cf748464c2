"""The one background thread of a process. It runs jobs that others register: renewal, beats, reports, clean-up.

It sleeps while nothing is held or waited for. The acquire path tells it by ``wake_by`` when it is needed, which costs
one comparison when the thread will be up by then anyway.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger("django_rlock.background")

Job = Callable[[float], float]
"""Called with the monotonic time; answers when it wants to run next (math.inf: only when others do)."""

SLOWEST_TICK = 1.0
"""The longest sleep between two rounds while there is work, in seconds."""
_IDLE_ROUNDS = 5
_EXIT_BUDGET = 1.0

_jobs: list[Job] = []
_exit_jobs: list[Callable[[], None]] = []


def add_job(job: Job) -> None:
    """Have a job called in each round. What it raises is logged."""
    _jobs.append(job)


def add_exit_job(job: Callable[[], None]) -> None:
    """Have a job called when the interpreter ends, after the deferred calls, while the time budget lasts."""
    _exit_jobs.append(job)


def defer(attempt: Callable[[], None], until: float, after: float = 0.0) -> None:
    """Have the thread call ``attempt`` until it raises nothing, or the monotonic time ``until`` has come.

    It begins ``after`` seconds from now.
    """
    _loop.deferred.append(_Deferred(attempt, time.monotonic() + after, until))
    _loop.nudge()


def wake_by(due: float) -> None:
    """Make sure that a round begins at the monotonic time ``due``, or before."""
    if due < _loop.wakes_at:
        _loop.nudge()


class _Deferred(NamedTuple):
    attempt: Callable[[], None]
    not_before: float
    until: float


class _Loop:
    def __init__(self) -> None:
        self.wakes_at = math.inf
        self.deferred: deque[_Deferred] = deque()
        self._bell = threading.Event()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    def nudge(self) -> None:
        self._bell.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="rlock-background", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the interpreter ends, or the system has no thread left
                    logger.error("Locks are not renewed, since no thread can be started: %s", error)  # noqa: TRY400
                else:
                    self._thread = thread

    def _run(self) -> None:
        idle = 0
        while True:
            self._bell.clear()
            # After some rounds without work the thread sleeps until it is needed; not at once, because locks that
            # are taken and released in quick succession would wake it each time.
            may_sleep = idle >= _IDLE_ROUNDS
            latest = time.monotonic() + SLOWEST_TICK
            # The round may look too early to see what comes meanwhile; that rings, unless the next round will do.
            self.wakes_at = math.inf if may_sleep else latest
            due = self.round()
            idle = idle + 1 if due == math.inf else 0
            if not may_sleep or due < math.inf:
                due = min(due, latest)
            self.wakes_at = due
            if self._bell.wait(None if due == math.inf else max(due - time.monotonic(), 0)):
                idle = 0

    def round(self) -> float:
        """Run all that is due; answer when the next round should begin."""
        due = self.run_deferred()
        for job in _jobs:
            try:
                due = min(due, job(time.monotonic()))
            except BaseException:  # SystemExit too: a callback's would end the renewal of all locks
                logger.exception("A background job failed; it runs again in the next round.")
                due = min(due, time.monotonic() + SLOWEST_TICK)
        return due

    def run_deferred(self, *, ahead_of_time: bool = False) -> float:
        """Call what is due; answer when the next one is.

        A server that does not answer makes each call slow. After a while the rest is left to the next round, so that
        the other jobs have their turn.
        """
        stop_at = time.monotonic() + SLOWEST_TICK
        for _ in range(len(self.deferred)):
            if time.monotonic() >= stop_at:
                break
            try:
                call = self.deferred.popleft()
            except IndexError:  # at exit two threads do this
                break
            if ahead_of_time or call.not_before <= time.monotonic():
                self._run_one(call)
            else:
                self.deferred.append(call)
        # A copy, which is made in one piece: other threads append meanwhile.
        return min((call.not_before for call in self.deferred.copy()), default=math.inf)

    def _run_one(self, call: _Deferred) -> None:
        try:
            call.attempt()
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again
            now = time.monotonic()
            if now < call.until:
                self.deferred.append(call._replace(not_before=now + SLOWEST_TICK / 2))
            else:
                logger.warning("Gave up on cleaning up a lock, which frees itself by its lease: %s", error)


_loop = _Loop()


def _after_fork() -> None:
    global _loop  # noqa: PLW0603 - a child has neither the parent's thread nor its duties
    _loop = _Loop()


def _at_exit() -> None:
    give_up_at = time.monotonic() + _EXIT_BUDGET
    _loop.run_deferred(ahead_of_time=True)
    for job in _exit_jobs:
        if time.monotonic() < give_up_at:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - nobody is left to raise it to
                logger.info("Not cleaned up at exit: %s", error)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
