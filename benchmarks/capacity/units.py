"""What each thing costs the server, and what a hot lock needs from one holder to the next: the model's numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from benchmarks import stage
from benchmarks.capacity import packets
from benchmarks.capacity.raw import drive, links
from benchmarks.contended import INSIDE, take_turns
from benchmarks.crew import Crew
from benchmarks.meter import Meter, rest
from benchmarks.results import Row, Table, median_row
from benchmarks.sizing import LABELS, PACKETS, TITLE, Costs, fit_waking, waking

KINDS: dict[str, tuple[Callable[[int], packets.Sequel], int]] = {
    "a plain SET": (packets.plain_set, 1),
    LABELS["pair"]: (packets.fair_pair, 2),
    "acquire + release, RLock": (packets.plain_pair, 2),
    LABELS["renewal"]: (packets.renewal, 1),
    LABELS["report"]: (packets.report, 1),
    LABELS["heartbeat"]: (packets.heartbeat, 1),
}
"""What is sent, and how many packets each thing takes."""
YARDSTICK = "a plain SET"
RATES = (400.0, 4_000.0)
"""Packets a second at which waking up is measured."""


class Cost(NamedTuple):
    """Seconds of the server's CPU for one packet, seconds that it was inside scripts, and packets per second."""

    cpu: float
    in_scripts: float
    rate: float


class Series:
    """The measurements of all rounds."""

    def __init__(self, url: str, connections: int, seconds: float, pause: float) -> None:
        self.url, self.connections, self.seconds = url, connections, seconds
        self.busy: dict[str, list[Cost]] = {name: [] for name in KINDS}
        self.waking: dict[float, list[Cost]] = {rate: [] for rate in RATES}
        self.hot: list[HotLock] = []
        self.idle: list[float] = []
        self.memory = memory_of_one(url, connections, pause)

    def add_round(self, started: Crew) -> None:
        for name, (sequel, _) in KINDS.items():
            self.busy[name].append(self._cost(sequel, None))
        for rate, costs in self.waking.items():
            costs.append(self._cost(packets.fair_pair, rate))
        self.hot.append(hot_lock(started, INSIDE, self.seconds))
        self.idle.append(rest(self.seconds).server_share)

    def _cost(self, sequel: Callable[[int], packets.Sequel], rate: float | None) -> Cost:
        with links(self.url, self.connections, sequel) as opened:
            before, meter = time_in_scripts(), Meter()
            sent = drive(opened, self.seconds, rate)
            spent, inside = meter.spent(), time_in_scripts() - before
        return Cost(spent.server_cpu / sent.packets, inside / sent.packets, sent.rate)

    def table(self) -> Table:
        idle, base = statistics.median(self.idle), self.busy[YARDSTICK]
        wake, together = self._waking(idle)
        handover = max(self._handover(idle, wake, together), self._seconds(LABELS["pair"]) * 2)
        latency = statistics.median(turn.seconds - INSIDE for turn in self.hot)
        rows = [
            *(cost_row(name, costs, base, KINDS[name][1]) for name, costs in self.busy.items()),
            Row(
                LABELS["handover"],
                handover / self._seconds(YARDSTICK),
                f"× {YARDSTICK}",
                details={"µs": handover * 1e6},
            ),
            Row(LABELS["wake"], wake / 1e6 / self._seconds(YARDSTICK), f"× {YARDSTICK}", details={"µs": wake}),
            Row(LABELS["together"], together, "µs"),
            Row(LABELS["idle"], idle, "of a core"),
            Row(LABELS["latency"], latency * 1e6, "µs more than the holder works"),
            Row(LABELS["connection"], self.memory, "bytes"),
        ]
        return Table(TITLE, rows)

    def _seconds(self, name: str) -> float:
        """For one packet."""
        return statistics.median(cost.cpu for cost in self.busy[name])

    def _waking(self, idle: float) -> tuple[float, float]:
        """What the pairs' packets took at two rates, more than in a busy server."""
        found = []
        for costs in self.waking.values():
            rate = statistics.median(cost.rate for cost in costs)
            share = statistics.median(cost.cpu for cost in costs) * rate
            found.append((rate, max(share - idle - rate * self._seconds(LABELS["pair"]), 1e-6)))
        return fit_waking(*found)

    def _handover(self, idle: float, wake: float, together: float) -> float:
        """What is left of a turn's time after that for waking up."""
        rate = 1 / statistics.median(turn.seconds for turn in self.hot)
        share = statistics.median(turn.cpu for turn in self.hot) * rate
        return (share - idle - waking(rate * PACKETS["handover"], wake, together)) / rate


def time_in_scripts() -> float:
    """The seconds that the server has spent inside scripts by the clock, all commands in them included."""
    stats: dict[str, dict[str, int]] = stage.observer().info("commandstats")
    return stats.get("cmdstat_evalsha", {}).get("usec", 0) / 1e6


class HotLock(NamedTuple):
    """Seconds from one turn to the next, and seconds of the server's CPU for each."""

    seconds: float
    cpu: float


def hot_lock(started: Crew, inside: float, seconds: float) -> HotLock:
    """Let processes compete for one FairLock, each holding it for ``inside`` seconds."""
    begin = time.monotonic() + 0.1
    answers = started.start(compete, inside, begin, begin + seconds)
    time.sleep(max(0.0, begin - time.monotonic()))
    meter = Meter()
    turns = sum(answers())
    return HotLock(seconds / turns, meter.spent().server_cpu / turns)


def compete(inside: float, begin: float, end: float) -> int:
    """Runs in a process: how many turns it had."""
    return take_turns("FairLock", begin, end, inside).acquired


def memory_of_one(url: str, connections: int, pause: float) -> float:
    """Bytes of the server's memory for each connection that has done nothing for some seconds."""
    before = used_memory()
    with links(url, connections, packets.fair_pair) as opened:
        drive(opened, 0.2)
        time.sleep(pause)
        return max(0.0, used_memory() - before) / connections


def used_memory() -> int:
    return int(stage.observer().info("memory")["used_memory"])


def cost_row(name: str, costs: list[Cost], base: list[Cost], size: int) -> Row:
    """A thing that takes ``size`` packets. The shortest time in scripts is the one in which others left the core."""
    ratios = [mine.cpu * size / its.cpu for mine, its in zip(costs, base, strict=True)]
    details = {
        "µs": statistics.median(cost.cpu for cost in costs) * size * 1e6,
        "inside scripts, µs": min(cost.in_scripts for cost in costs) * size * 1e6,
    }
    return replace(median_row(name, ratios, f"× {YARDSTICK}"), details=details)


def costs_of(table: Table) -> Costs:
    return Costs.of_rows([{"what": row.what, "figure": row.figure, "details": row.details} for row in table.rows])
