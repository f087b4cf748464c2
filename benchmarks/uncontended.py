"""What one acquire and release costs when nobody else wants the lock: CPU and wall time, and round trips."""

from __future__ import annotations

import asyncio
from typing import Literal

from benchmarks import peers
from benchmarks.results import Row, Table, median_row
from benchmarks.stage import monitored, one_core
from benchmarks.timing import Costs, ratios, time_async, time_sync
from django_rlock import FairLock, RLock

ROUNDS, PAIRS = 40, 250
QUICK_ROUNDS, QUICK_PAIRS = 3, 20
LIMITS: dict[Literal["cpu", "wall"], float] = {"cpu": 0.85, "wall": 1.0}
COUNTED_PAIRS = 20
OURS = ("RLock", "FairLock")


def run(quick: bool) -> list[Table]:
    rounds, pairs = (QUICK_ROUNDS, QUICK_PAIRS) if quick else (ROUNDS, PAIRS)
    with one_core():
        sync = time_sync(peers.sync_pairs(), rounds, pairs)
        made = time_sync(peers.sync_pairs_made_per_call(), rounds, pairs)
        coroutines = asyncio.run(time_coroutines(rounds, pairs))
    return [
        Table("Uncontended acquire + release, sync", [*ratio_rows(sync, "redis-py"), *round_trip_rows()]),
        Table("The same, with a lock object made for each call", ratio_rows(made, "redis-py", limited=False)),
        Table("Uncontended acquire + release, async", ratio_rows(coroutines, "redis-py")),
    ]


async def time_coroutines(rounds: int, pairs: int) -> Costs:
    async with peers.async_pairs() as contenders:
        return await time_async(contenders, rounds, pairs)


def ratio_rows(costs: Costs, base: str, limited: bool = True) -> list[Row]:
    """CPU and wall time of each contender, in times the base's of the same round."""
    rows = []
    for name in (name for name in costs if name != base):
        for kind, limit in LIMITS.items():
            at_most = limit if limited and name in OURS else None
            figures = ratios(costs, name, base, kind)
            rows.append(median_row(f"{name}, {kind} time", figures, f"× {base}", at_most=at_most))
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
