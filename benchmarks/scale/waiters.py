"""Thousands of tasks of one event loop that each wait for a lock of their own that another owner holds."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import NamedTuple

from benchmarks import stage
from benchmarks.crew import crew
from benchmarks.meter import Meter, Spent, rest
from benchmarks.results import Result, Row, Table
from django_rlock import FairLock, LockUnavailableError
from django_rlock.locks.holds import WAITS

SIZES, REST = (1_000, 10_000), 15.0
QUICK_SIZES, QUICK_REST = (20, 40), 1.0
QUEUE_WITHIN = 60.0
"""After how many seconds the number of queued tasks is taken."""
HELD_FOR = 900.0
CPU_LIMIT, SHARE_LIMIT, COMMANDS_LIMIT = 10, 10, 1_000
_LOOK_EVERY, _PAUSE = 0.1, 1.0


class Seen(NamedTuple):
    """How many tasks were queued, how many acquires had failed and what was spent until then, and what followed."""

    queued: int
    failures: int
    queueing: Spent
    idle: Spent


def run(quick: bool) -> list[Result]:
    sizes, seconds = (QUICK_SIZES, QUICK_REST) if quick else (SIZES, REST)
    return [Table(*table(size, wait_and_rest(size, seconds), limited=size == sizes[-1])) for size in sizes]


def wait_and_rest(tasks: int, seconds: float) -> Seen:
    """Runs in a process of its own for each size."""
    name = f"bench:waiters:{tasks}:"
    stage.plant(name, tasks, HELD_FOR)
    with crew(1, __name__, within=QUEUE_WITHIN + seconds + 60) as started:
        [seen] = started.run(look, name, tasks, seconds)
    return seen


def table(tasks: int, seen: Seen, *, limited: bool) -> tuple[str, list[Row]]:
    """Limits apply to those that all wait, in the largest number."""
    queueing, idle = seen.queueing, seen.idle
    all_wait = seen.queued == tasks
    limits = (CPU_LIMIT, SHARE_LIMIT, COMMANDS_LIMIT) if limited and all_wait else (None, None, None)
    unit = "s" if all_wait else "s, and not all are queued"
    details = {"seconds": queueing.seconds, "acquires that failed": seen.failures}
    return f"{tasks:,} tasks that wait for {tasks:,} locks", [
        Row(f"queued, within {QUEUE_WITHIN:g} s", seen.queued, at_least=tasks, details=details),
        Row("CPU time until they are queued", queueing.cpu, unit, at_most=limits[0]),
        Row("idle afterwards", idle.share * 100, "% of a core", at_most=limits[1]),
        Row(
            "commands a second, those in scripts included",
            idle.commands / idle.seconds,
            at_most=limits[2],
            details=idle.rates,
        ),
    ]


# --- in the processes ---------------------------------------------------------------------------------------------


def look(name: str, tasks: int, seconds: float) -> Seen:
    meter, waiters = Meter(), begin_to_wait(name, tasks)
    queued = wait_until_queued(name, tasks)
    queueing, failures = meter.spent(), waiters.failures
    time.sleep(seconds)  # the last tasks go to sleep, and each lock gets one heartbeat
    return Seen(queued, failures, queueing, rest(seconds))


class Waiters(threading.Thread):
    """A loop with tasks that wait for the locks ``name0``, ``name1`` and so on, until the process ends.

    A task whose acquire fails retries a second later; ``failures`` counts them.
    """

    def __init__(self, name: str, tasks: int) -> None:
        super().__init__(daemon=True)
        self.failures = 0
        self._name = name
        self._tasks = tasks

    def run(self) -> None:
        asyncio.run(self._wait_for_all())

    async def _wait_for_all(self) -> None:
        await asyncio.gather(*(self._wait_for(FairLock(f"{self._name}{number}")) for number in range(self._tasks)))

    async def _wait_for(self, lock: FairLock) -> None:
        while True:
            try:
                await lock.aacquire()
            except LockUnavailableError:
                self.failures += 1
                await asyncio.sleep(_PAUSE)
            else:
                return


def begin_to_wait(name: str, tasks: int) -> Waiters:
    waiters = Waiters(name, tasks)
    waiters.start()
    return waiters


def wait_until_queued(name: str, tasks: int) -> int:
    """Wait until all tasks are queued; returns how many are when the time is up."""
    give_up_at = time.monotonic() + QUEUE_WITHIN
    while time.monotonic() < give_up_at:
        # The server knows for certain, but is asked only when it is likely.
        if len(WAITS.snapshot()) >= tasks and stage.queued(name, tasks) >= tasks:
            break
        time.sleep(_LOOK_EVERY)
    return stage.queued(name, tasks)
