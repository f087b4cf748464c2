"""What one acquire and release costs when nobody else wants the lock: CPU and wall time, and round trips.

Each round runs all contenders in turn, and every figure is a ratio within its round, so a machine that is busy with
other things slows all of them alike. CPU time is the client process's, its background thread included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks import peers
from benchmarks.results import Row, Table, median_row
from benchmarks.stage import monitored, one_core
from django_rlock import FairLock, RLock

ROUNDS, PAIRS = 40, 250
QUICK_ROUNDS, QUICK_PAIRS = 3, 20
CPU_LIMIT, WALL_LIMIT = 0.85, 1.0
COUNTED_PAIRS = 20
OURS = ("RLock", "FairLock")


class Cost(NamedTuple):
    """Seconds for the pairs of one round."""

    cpu: float
    wall: float


Costs = dict[str, list[Cost]]


def run(quick: bool) -> list[Table]:
    rounds, pairs = (QUICK_ROUNDS, QUICK_PAIRS) if quick else (ROUNDS, PAIRS)
    with one_core():
        sync = time_sync(peers.sync_pairs(), rounds, pairs)
        made = time_sync(peers.sync_pairs_made_per_call(), rounds, pairs)
        coroutines = asyncio.run(time_async(rounds, pairs))
    return [
        Table("Uncontended acquire + release, sync", [*ratio_rows(sync, "redis-py"), *round_trip_rows()]),
        Table("The same, with a lock object made for each call", ratio_rows(made, "redis-py", limited=False)),
        Table("Uncontended acquire + release, async", ratio_rows(coroutines, "redis-py")),
    ]


def time_sync(contenders: dict[str, Callable[[], object]], rounds: int, pairs: int) -> Costs:
    costs: Costs = {name: [] for name in contenders}
    for number in range(-1, rounds):  # the first round warms up
        for name in rotated(list(contenders), number):
            cost = time_pairs(contenders[name], pairs)
            if number >= 0:
                costs[name].append(cost)
    return costs


def time_pairs(pair: Callable[[], object], pairs: int) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(pairs):
        pair()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


async def time_async(rounds: int, pairs: int) -> Costs:
    async with peers.async_pairs() as contenders:
        costs: Costs = {name: [] for name in contenders}
        for number in range(-1, rounds):
            for name in rotated(list(contenders), number):
                cost = await time_async_pairs(contenders[name], pairs)
                if number >= 0:
                    costs[name].append(cost)
        return costs


async def time_async_pairs(pair: Callable[[], Awaitable[object]], pairs: int) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(pairs):
        await pair()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


def rotated(names: list[str], number: int) -> list[str]:
    """Another one begins in each round."""
    start = number % len(names)
    return names[start:] + names[:start]


def ratio_rows(costs: Costs, base: str, limited: bool = True) -> list[Row]:
    """CPU and wall time of each contender, in times the base's of the same round."""
    rows = []
    for name in (name for name in costs if name != base):
        for kind, limit in (("cpu", CPU_LIMIT), ("wall", WALL_LIMIT)):
            pairs = zip(costs[name], costs[base], strict=True)
            ratios = [getattr(mine, kind) / getattr(theirs, kind) for mine, theirs in pairs]
            at_most = limit if limited and name in OURS else None
            rows.append(median_row(f"{name}, {kind} time", ratios, f"× {base}", at_most=at_most))
    return rows


def round_trip_rows() -> list[Row]:
    """Commands per pair, as the server saw them."""
    rows = []
    for cls in (RLock, FairLock):
        lock = cls("bench:counted")
        with monitored() as counts:
            for _ in range(COUNTED_PAIRS):
                lock.acquire()
                lock.release()
        sent, inside = counts.by_clients.total() / COUNTED_PAIRS, counts.in_scripts.total() / COUNTED_PAIRS
        others = counts.by_clients.total() - counts.by_clients["EVALSHA"]
        rows.append(
            Row(
                f"{cls.__name__}, round trips per pair",
                sent,
                at_most=2,
                at_least=2,
                details={"other than EVALSHA": others, "commands inside the scripts": inside},
            )
        )
    return rows
