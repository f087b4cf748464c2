"""How far one server carries: what each thing costs it, and a model that is checked against other loads."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import stage
from benchmarks.capacity import checks, spread, units
from benchmarks.contended import take_and_give_each
from benchmarks.crew import crew
from benchmarks.results import Grid, Result, Row, Table
from benchmarks.sizing import USE, Costs, Load, handovers_of, most, needs


class Sizes(NamedTuple):
    """``pause`` is the seconds until a connection counts as idle. ``crowds`` are connections, and packets a second."""

    connections: int
    rounds: int
    seconds: float
    pause: float
    processes: int
    crowds: tuple[tuple[int, float | None], ...]


FULL = Sizes(1_000, 5, 1.0, 5.0, 16, ((500, 1_000.0), (2_000, 4_000.0), (8_000, 8_000.0), (4_000, None)))
QUICK = Sizes(20, 1, 0.4, 0.1, 2, ((30, 200.0), (20, None)))
RATE, HELD = 40.0, 5
"""The pairs a second of each real process, and the locks that it holds."""
FILES, SPARE = 20_000, 500
"""How many open files are asked for, since each connection is one; and how many are left for others."""
CARRIES = f"Capacity: what one server carries, each alone, with {USE:.0%} of its core"
CHECKS = "Capacity: the model beside loads that it was not made from"


def run(quick: bool) -> list[Result]:
    sizes = QUICK if quick else FULL
    limit = allow_files()
    url = os.environ[stage.URL_VARIABLE]
    stage.load_scripts(stage.observer())
    with crew(sizes.processes, "benchmarks.capacity.checks") as started:
        started.run(take_and_give_each)
        series = units.Series(url, sizes.connections, sizes.seconds, sizes.pause)
        crowds: dict[tuple[int, float | None], list[checks.Seen]]
        crowds = {each: [] for each in sizes.crowds if each[0] < limit - SPARE}
        hot = []
        for _ in range(sizes.rounds):
            stage.observer().flushdb()
            series.add_round(started)
            hot.append(units.hot_lock(started, checks.SLOW_TURN, sizes.seconds))
            for (connections, rate), seen in crowds.items():
                seen.append(checks.crowd(url, connections, rate, sizes.seconds))
        checks.settle_all(started, HELD)
        real = [checks.processes(started, sizes.processes, RATE, HELD, sizes.seconds) for _ in range(sizes.rounds)]
    measured = series.table()
    costs = units.costs_of(measured)
    rows = [
        *(checks.error_row(checks.crowd_name(size, rate), seen, costs) for (size, rate), seen in crowds.items()),
        checks.error_row(
            f"{sizes.processes} processes: {RATE:g} pairs a second, {HELD} holds and a wait each", real, costs
        ),
        checks.hot_row(hot, costs),
    ]
    return [measured, Table(CHECKS, rows), Table(CARRIES, carried(costs)), outlook(costs), spread.run(quick)]


def allow_files() -> int:
    """Raise the limit of open files as far as is needed and allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(soft, FILES if hard == resource.RLIM_INFINITY else min(FILES, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def carried(costs: Costs) -> list[Row]:
    """How much of one thing a server carries when it has nothing else to do."""
    loads: dict[str, Callable[[float], Load]] = {
        "pairs of free locks, a second": lambda number: Load(pairs=number),
        "hand-overs of many locks, a second": lambda number: Load(handovers=number),
        "processes that each hold a lock for long": lambda number: Load(round(number), held=number),
        "processes that each wait for a lock": lambda number: Load(round(number), waiting=number),
    }
    rows = [Row(what, most(load_of, costs)) for what, load_of in loads.items()]
    hot = "hand-overs of one hot lock, a second, {} ms inside"
    return [*rows, *(Row(hot.format(ms), handovers_of(ms / 1000, costs)) for ms in (0, 1, 10))]


def outlook(costs: Costs) -> Grid:
    """What ever larger crowds need."""
    columns = ("processes", "work, cores", "use of one server, %", "servers", "connections to each", "their MiB")
    lines = []
    for processes in (1_000, 10_000, 100_000):
        found = needs(typical(processes), costs)
        figures = round(found.work, 3), round(found.use * 100, 1), found.servers
        lines.append((processes, *figures, found.connections, round(found.memory / 2**20)))
    return Grid("Capacity: what the model expects of larger crowds", columns, lines, TYPICAL)


TYPICAL = (
    "Each process takes a free lock every 20 s, and waits for one every 200 s; of a hundred processes, 20 hold a lock"
    " for long, and 2 wait."
)


def typical(processes: int) -> Load:
    """The load that TYPICAL describes."""
    return Load(processes, processes / 20, processes / 200, processes / 5, processes / 50)
