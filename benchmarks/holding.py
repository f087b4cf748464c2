"""Ten thousand locks held by one process: the time of a renewal pass, and the memory of a hold."""

from __future__ import annotations

import time
import tracemalloc

from benchmarks.results import Row, Table, median_row
from django_rlock import RLock
from django_rlock.locks import watchdog
from django_rlock.locks.holds import HOLDS

LOCKS, PASSES = 10_000, 5
QUICK_LOCKS, QUICK_PASSES = 200, 2
SECONDS_LIMIT, BYTES_LIMIT = 1.0, 2048


def run(quick: bool) -> list[Table]:
    count, passes = (QUICK_LOCKS, QUICK_PASSES) if quick else (LOCKS, PASSES)
    with RLock("bench:first"):  # what the first lock of a process allocates stays out
        pass
    size = _bytes_for(count) / count
    try:
        seconds = [_renew_all() for _ in range(passes)]
    finally:
        for hold in HOLDS.snapshot():
            RLock(hold.lock.name).release()
    return [
        Table(
            f"{count:,} locks held by one process",
            [
                median_row("a renewal pass", seconds, "s", at_most=SECONDS_LIMIT),
                Row("memory of a hold, its lock object and name included", size, "bytes", at_most=BYTES_LIMIT),
            ],
        )
    ]


def _bytes_for(count: int) -> int:
    """The bytes that Python has allocated more once it holds so many locks."""
    tracemalloc.start()
    for number in range(count):
        RLock(f"bench:stock:{number}").acquire()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return allocated


def _renew_all() -> float:
    """The seconds of a pass in which every hold is due, as it is after a third of the lease."""
    due = max(hold.renew_at for hold in HOLDS.snapshot())
    began = time.perf_counter()
    watchdog.renew(due)
    took = time.perf_counter() - began
    assert min(hold.renew_at for hold in HOLDS.snapshot()) >= due - 1, "not every hold was renewed"
    return took
