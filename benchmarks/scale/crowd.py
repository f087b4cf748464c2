"""A thousand locks that many processes wait for: what the server spends while nothing happens."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks import stage
from benchmarks.crew import Crew, crew
from benchmarks.meter import Meter, Spent
from benchmarks.results import Grid, Result, Row, Table
from benchmarks.scale.waiters import HELD_FOR, begin_to_wait

NAMES, SIZES, REST = 1_000, (5, 25, 50), 15.0
QUICK_NAMES, QUICK_SIZES, QUICK_REST = 5, (1, 2), 1.0
QUEUE_WITHIN = 60.0
SERVER_LIMIT, LINEAR_LIMIT = 3, 1.25
NAME = "bench:crowd:"
COLUMNS = (
    "processes",
    "waiters in the queues",
    "server, % of a core",
    "commands a second",
    "of them scripts",
    "a process, % of a core",
)


class Seen(NamedTuple):
    """The cost of an idle stretch with a number of processes; ``each`` is the median of the processes' CPU seconds."""

    processes: int
    queued: int
    spent: Spent
    each: float


def run(quick: bool) -> list[Result]:
    names, sizes, seconds = (QUICK_NAMES, QUICK_SIZES, QUICK_REST) if quick else (NAMES, SIZES, REST)
    stage.plant(NAME, names, HELD_FOR)
    crowd: list[Crew] = []
    with ExitStack() as stack:
        seen = []
        for before, size in zip((0, *sizes), sizes, strict=False):
            more = stack.enter_context(crew(size - before, __name__))
            more.run(wait, names)
            crowd.append(more)
            wait_until_queued(names, size)
            seen.append(look(crowd, size, names, seconds))
    title = f"{names:,} locks that processes wait for, each for all"
    return [
        Grid(title, COLUMNS, [line(each) for each in seen]),
        Table(f"{title}: the largest crowd", rows(seen, names)),
    ]


def wait(names: int) -> None:
    """Runs in each process."""
    begin_to_wait(NAME, names)


def wait_until_queued(names: int, processes: int) -> None:
    give_up_at = time.monotonic() + QUEUE_WITHIN
    while stage.queued(NAME, names) < names * processes and time.monotonic() < give_up_at:
        time.sleep(0.5)


def look(crowd: list[Crew], processes: int, names: int, seconds: float) -> Seen:
    time.sleep(seconds)  # each process sends heartbeats for each lock once
    before, meter = cpu_times(crowd), Meter()
    time.sleep(seconds)
    spent, after = meter.spent(), cpu_times(crowd)
    each = statistics.median(now - then for now, then in zip(after, before, strict=True))
    return Seen(processes, stage.queued(NAME, names), spent, each)


def cpu_times(crowd: list[Crew]) -> list[float]:
    return [seconds for part in crowd for seconds in part.run(time.process_time)]


def line(seen: Seen) -> tuple[float, ...]:
    rates = (seen.spent.commands / seen.spent.seconds, seen.spent.scripts / seen.spent.seconds)
    shares = (seen.spent.server_share * 100, seen.each / seen.spent.seconds * 100)
    return seen.processes, seen.queued, round(shares[0], 3), *(round(rate, 1) for rate in rates), round(shares[1], 3)


def rows(seen: list[Seen], names: int) -> list[Row]:
    few, many = seen[0], seen[-1]
    growth = for_each_waiter(many) / for_each_waiter(few)
    return [
        Row("waiters in the queues", many.queued, at_least=names * many.processes),
        Row(
            f"server, with {many.processes} processes",
            many.spent.server_share * 100,
            "% of a core",
            at_most=SERVER_LIMIT,
        ),
        Row("server, for each waiter", growth, f"× with {few.processes} processes", at_most=LINEAR_LIMIT),
    ]


def for_each_waiter(seen: Seen) -> float:
    return seen.spent.server_share / max(1, seen.queued)
