"""Ten thousand locks, taken evenly over ten seconds and kept: the cost of renewing them in an idle process."""

from __future__ import annotations

import time
from typing import NamedTuple

from benchmarks import stage
from benchmarks.crew import crew
from benchmarks.meter import Spent, rest
from benchmarks.results import Result, Row, Table
from django_rlock import FairLock
from django_rlock.locks.holds import HOLDS

LOCKS, OVER, LEASE = 10_000, 10.0, 30.0
QUICK_LOCKS, QUICK_OVER, QUICK_LEASE = 50, 0.5, 3.0
TAKE_WITHIN = 60.0
SHARE_LIMIT = 5


class Kept(NamedTuple):
    """How many locks were taken in how many seconds, the cost of two renewals of each, and how many were lost."""

    locks: int
    seconds: float
    spent: Spent
    lost: int


def run(quick: bool) -> list[Result]:
    sizes = (QUICK_LOCKS, QUICK_OVER, QUICK_LEASE) if quick else (LOCKS, OVER, LEASE)
    with crew(1, __name__, within=TAKE_WITHIN + LEASE + 30) as started:
        [kept] = started.run(keep, *sizes)
    locks, over, _ = sizes
    per_second = kept.spent.commands / kept.spent.seconds
    rows = [
        Row("taken", kept.locks, at_least=locks, details={"seconds": kept.seconds}),
        Row("idle", kept.spent.share * 100, "% of a core", at_most=SHARE_LIMIT),
        Row("commands a second, those in scripts included", per_second, details=kept.spent.rates),
        Row("holds that were lost", kept.lost, at_most=0),
    ]
    return [Table(f"{locks:,} locks taken evenly over {over:g} s, and then kept", rows)]


def keep(locks: int, over: float, lease: float) -> Kept:
    """Runs in a process of its own. It rests for two thirds of a lease, in which each hold is renewed twice."""
    stage.set_leases(lease)
    began, held = time.monotonic(), 0
    while held < locks and time.monotonic() - began < TAKE_WITHIN:
        time.sleep(max(0.0, began + held * over / locks - time.monotonic()))
        FairLock(f"bench:spread:{held}").acquire()
        held += 1
    seconds = time.monotonic() - began
    spent = rest(lease * 2 / 3)
    alive = sum(hold.lost is None and hold.deadline > time.monotonic() for hold in HOLDS.snapshot())
    return Kept(held, seconds, spent, held - alive)
