"""One process takes ten locks, a hundred, and so on up to a hundred thousand, keeps them all, and is measured between.

A measurement lasts a third of a lease, in which each hold is renewed once: first while the process does nothing, then
while it repeatedly takes and releases one more lock.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections import deque
from dataclasses import dataclass, field

from benchmarks import stage
from benchmarks.crew import crew
from benchmarks.meter import Meter, resident, watch
from benchmarks.results import Grid, Line, Result, Row, Table
from django_rlock import FairLock
from django_rlock.locks.holds import HOLDS

STEPS, PORTION, LEASE = (10, 100, 1_000, 10_000, 100_000), 1_000, 30.0
QUICK_STEPS, QUICK_PORTION, QUICK_LEASE = (5, 60), 10, 6.0
TAKE_WITHIN = 90.0
"""After this time no more locks are taken, in seconds; the last step is as large as it is then."""
GIVE_UP_AFTER = 600.0
REPORTED = 1_000
"""How many of its holds a process reports at most."""
LAST_PORTION_LIMIT, PAIR_LIMIT, BYTES_LIMIT, REPORT_LIMIT = 1.5, 3, 900, 0.5
TITLE = "Locks held by one process"
COLUMNS = (
    "holds",
    "taking one, µs",
    "idle, % of a core",
    "of that its report",
    "server, % of a core",
    "one more pair, median µs",
    "one more pair, p99 µs",
)
PANELS = ((1, "Taking one more lock, µs"), (2, "Keeping them, % of a core"), (6, "One more pair, p99, µs"))
"""The columns that the picture shows, by their positions, and their headings."""


@dataclass
class Portion:
    """What taking some locks one after another cost: seconds of each, and the thread's CPU time for all."""

    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0


@dataclass(frozen=True)
class Step:
    """Measurements with a number of holds. Times are seconds; ``idle``, ``report``, ``server`` are shares of a core."""

    holds: int
    taking: float
    idle: float
    report: float
    server: float
    pair: float
    pair_p99: float

    def line(self) -> Line:
        micros = [round(seconds * 1e6, 1) for seconds in (self.taking, self.pair, self.pair_p99)]
        per_cent = [round(share * 100, 3) for share in (self.idle, self.report, self.server)]
        return self.holds, micros[0], *per_cent, *micros[1:]


@dataclass(frozen=True)
class Growth:
    """All steps, the first and the last locks taken, the bytes of a hold, and the fate of the holds."""

    steps: list[Step]
    first: Portion
    last: Portion
    bytes_each: float
    not_renewed: int
    lost: int


def run(quick: bool) -> list[Result]:
    steps, portion, lease = (QUICK_STEPS, QUICK_PORTION, QUICK_LEASE) if quick else (STEPS, PORTION, LEASE)
    with crew(1, __name__, within=GIVE_UP_AFTER) as started:
        [growth] = started.run(grow, steps, portion, lease)
    grid = Grid(TITLE, COLUMNS, [step.line() for step in growth.steps])
    return [
        grid,
        Table(f"{steps[-1]:,} locks held by one process", [*taking_rows(growth, steps), *holding_rows(growth)]),
    ]


def taking_rows(growth: Growth, steps: tuple[int, ...]) -> list[Row]:
    first, last, size = growth.first, growth.last, f"{len(growth.first.seconds):,}"
    details = {
        "medians": statistics.median(last.seconds) / statistics.median(first.seconds),
        "CPU time of the thread that takes them": last.cpu / first.cpu,
    }
    ratio = sum(last.seconds) / sum(first.seconds)
    return [
        Row(f"taken, within {TAKE_WITHIN:g} s", growth.steps[-1].holds, at_least=steps[-1]),
        Row(f"the last {size} taken", ratio, f"× the first {size}", at_most=LAST_PORTION_LIMIT, details=details),
    ]


def holding_rows(growth: Growth) -> list[Row]:
    few, many = growth.steps[0], growth.steps[-1]
    some = next((step for step in growth.steps if step.holds >= REPORTED), many)
    beside = f"× beside {few.holds:,}"
    report = {"share of the background's CPU time": many.report / many.idle}
    return [
        Row("holds that were not renewed", growth.not_renewed, at_most=0),
        Row("holds that were lost", growth.lost, at_most=0),
        Row("one more pair, p99", many.pair_p99 / few.pair_p99, beside, at_most=PAIR_LIMIT),
        Row("one more pair, median", many.pair / few.pair, beside),
        Row("the process report", many.report * 100, "% of a core", details=report),
        Row(
            f"the process report, more than beside {some.holds:,}",
            (many.report - some.report) * 100,
            "% of a core",
            at_most=REPORT_LIMIT,
        ),
        Row("memory of a hold, its name included", growth.bytes_each, "bytes", at_most=BYTES_LIMIT),
    ]


# --- in the process -----------------------------------------------------------------------------------------------


def grow(steps: tuple[int, ...], portion: int, lease: float) -> Growth:
    stage.set_leases(lease)
    taker, seen, empty = Taker(portion), [], resident()
    for size in steps:
        taking = taker.take_until(size)
        taken_at = time.monotonic()
        seen.append(look(taker.held, taking, lease / 3))
        if taker.held < size:
            break
    bytes_each = (resident() - empty) / taker.held
    holds = HOLDS.snapshot()
    not_renewed = sum(hold.deadline <= taken_at + lease for hold in holds)
    lost = taker.held - sum(hold.lost is None and hold.deadline > time.monotonic() for hold in holds)
    return Growth(seen, taker.first, taker.last, bytes_each, not_renewed, lost)


class Taker:
    """Takes one lock after another, until its time is up."""

    def __init__(self, portion: int) -> None:
        self.held = 0
        self.first = Portion()
        self._portion = portion
        self._latest: deque[tuple[float, float]] = deque(maxlen=portion)
        self._left = TAKE_WITHIN

    def take_until(self, size: int) -> float:
        """Take locks until there are ``size``; returns the mean of the seconds that each took."""
        before, began = self.held, time.monotonic()
        while self.held < size and time.monotonic() - began < self._left:
            self._take_one()
        self._left -= time.monotonic() - began
        return (time.monotonic() - began) / max(1, self.held - before)

    def _take_one(self) -> None:
        cpu, began = time.thread_time(), time.perf_counter()
        FairLock(f"bench:stock:{self.held}").acquire()
        self._latest.append((time.perf_counter() - began, time.thread_time() - cpu))
        self.held += 1
        if self.held == self._portion:
            self.first = self.last

    @property
    def last(self) -> Portion:
        """The last locks taken."""
        return Portion([seconds for seconds, _ in self._latest], sum(cpu for _, cpu in self._latest))


def look(holds: int, taking: float, seconds: float) -> Step:
    """Measure an idle process, and then one more pair, for a number of seconds each."""
    meter = Meter()
    background = watch(seconds, "django_rlock.reports")
    server = meter.spent().server_share
    pairs = time_pairs(seconds)
    shares = background.cpu / seconds, background.inside / seconds, server
    return Step(holds, taking, *shares, statistics.median(pairs), statistics.quantiles(pairs, n=100)[98])


def time_pairs(seconds: float) -> array[float]:
    """The seconds of each pair of one more lock."""
    lock, times, end = FairLock("bench:one more"), array("d"), time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        lock.acquire()
        lock.release()
        times.append(time.perf_counter() - began)
    return times
