"""Ten thousand locks held by one process: the cost of renewing each of them once, and the memory of a hold."""

from __future__ import annotations

import time
import tracemalloc
from typing import NamedTuple

from benchmarks import stage
from benchmarks.crew import crew
from benchmarks.meter import Meter, Spent
from benchmarks.results import Row, Table
from django_rlock import RLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold

LOCKS, LEASE = 10_000, 30.0
QUICK_LOCKS, QUICK_LEASE = 1_000, 6.0
SECONDS_LIMIT, BYTES_LIMIT = 1.0, 900
_LOOK_EVERY = 0.5


class Seen(NamedTuple):
    """The bytes of a hold, how many holds were renewed, and what was spent until then."""

    bytes_each: float
    spent: Spent
    renewed: int


def run(quick: bool) -> list[Table]:
    count, lease = (QUICK_LOCKS, QUICK_LEASE) if quick else (LOCKS, LEASE)
    with crew(1, __name__) as started:
        [seen] = started.run(hold_and_rest, count, lease)
    return [
        Table(
            f"{count:,} locks held by one process",
            [
                Row("renewing all of them once, cpu time", seen.spent.cpu, "s", at_most=SECONDS_LIMIT),
                Row("holds that were renewed, within a lease", seen.renewed, at_least=count),
                Row(
                    "memory of a hold, its lock object and name included", seen.bytes_each, "bytes", at_most=BYTES_LIMIT
                ),
            ],
        )
    ]


def hold_and_rest(count: int, lease: float) -> Seen:
    """Runs in a process of its own."""
    stage.set_leases(lease)
    size, meter = bytes_for(count) / count, Meter()
    before = {hold: hold.deadline for hold in HOLDS.snapshot()}
    give_up_at = time.monotonic() + lease
    while (renewed := count_renewed(before)) < count and time.monotonic() < give_up_at:
        time.sleep(_LOOK_EVERY)
    return Seen(size, meter.spent(), renewed)


def count_renewed(before: dict[Hold, float]) -> int:
    """How many of the holds have a later deadline than before."""
    return sum(hold.deadline > deadline for hold, deadline in before.items())


def bytes_for(count: int) -> int:
    """How many more bytes Python has allocated once this many locks are held."""
    RLock("bench:stock").acquire()  # allocates what a process needs only once
    tracemalloc.start()
    for number in range(count):
        RLock(f"bench:stock:{number}").acquire()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return allocated
