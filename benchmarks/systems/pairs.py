"""Acquire and release of a lock that nothing else wants, in all systems; no core sleeps if the system allows that."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.crew import crew
from benchmarks.results import Row, Table, median_row
from benchmarks.stage import cores_awake
from benchmarks.systems.contenders import BASE, Contender, make
from benchmarks.timing import Costs, Pair, ratios, time_sync

ROUNDS, PAIRS = 40, 50
QUICK_ROUNDS, QUICK_PAIRS = 2, 5
WAIT = 10.0
TITLE = "Which lock: acquire + release, uncontended"


def run(urls: Mapping[str, str], quick: bool, note: str) -> list[Table]:
    """``urls`` are the servers of the contenders, by the contenders' names."""
    sizes = (QUICK_ROUNDS, QUICK_PAIRS) if quick else (ROUNDS, PAIRS)
    with cores_awake(), crew(1, __name__) as started:
        [costs] = started.run(time_all, urls, *sizes)
    return [Table(TITLE, rows(costs), note)]


def rows(costs: Costs) -> list[Row]:
    return [
        median_row(f"{name}, {kind} time", ratios(costs, name, BASE, kind), f"× {BASE}")
        for name in costs
        if name != BASE
        for kind in ("wall", "cpu")
    ]


def time_all(urls: Mapping[str, str], rounds: int, pairs: int) -> Costs:
    """Runs in a process of its own."""
    return time_sync({name: as_pair(make(name, url, wait=WAIT)) for name, url in urls.items()}, rounds, pairs)


def as_pair(lock: Contender) -> Pair:
    def pair() -> None:
        assert lock.take()
        lock.give()

    return pair
