"""The cost of one acquire and release when nothing else wants the lock: CPU and wall time, and round trips.

It is timed with client and server on one core, on any, and on any while none sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks import burst, peers
from benchmarks.results import Row, Table, median_row
from benchmarks.stage import cores_awake, monitored, one_core
from benchmarks.timing import Costs, Kind, ratios, time_async, time_sync
from django_rlock import FairLock, RLock

ROUNDS, PAIRS = 40, 250
QUICK_ROUNDS, QUICK_PAIRS = 3, 20
Limits = Mapping[Kind, float | None]
SYNC_LIMITS: Limits = {"cpu": 0.5, "wall": 0.75}
ASYNC_LIMITS: Limits = {"cpu": 0.45, "wall": 0.6}
MADE_LIMITS: Limits = {"cpu": 0.48, "wall": None}
NEW_LIMITS: Limits = {"cpu": 0.46, "wall": None}
COUNTED_PAIRS = 20
MADE_PER_CALL = "sync, with a lock object made for each call"
NEW_NAMES = "sync, with a new name each time"
BASE, OURS = "redis-py", ("RLock", "FairLock", "rlock()")


def run(quick: bool) -> list[Table]:
    sizes = (QUICK_ROUNDS, QUICK_PAIRS) if quick else (ROUNDS, PAIRS)
    with one_core():
        tables = timed(*sizes)
    tables += timed(*sizes, where="; on any core")
    with cores_awake() as awake:
        tables += timed(*sizes, where="; on any core, kept awake") if awake else []
    return [*tables, Table("Round trips of an uncontended pair", round_trip_rows()), *burst.run(quick)]


def timed(rounds: int, pairs: int, where: str = "") -> list[Table]:
    sync = time_sync(peers.sync_pairs(), rounds, pairs)
    made = time_sync(peers.sync_pairs_made_per_call(), rounds, pairs)
    new = time_sync(peers.sync_pairs_with_new_names(), rounds, pairs)
    coroutines = asyncio.run(time_coroutines(rounds, pairs))
    costs = {
        "sync": (sync, SYNC_LIMITS),
        MADE_PER_CALL: (made, MADE_LIMITS),
        NEW_NAMES: (new, NEW_LIMITS),
        "async": (coroutines, ASYNC_LIMITS),
    }
    return [
        Table(f"Uncontended acquire + release, {binding}{where}", ratio_rows(*both)) for binding, both in costs.items()
    ]


async def time_coroutines(rounds: int, pairs: int) -> Costs:
    async with peers.async_pairs() as contenders:
        return await time_async(contenders, rounds, pairs)


def ratio_rows(costs: Costs, limits: Limits) -> list[Row]:
    """CPU and wall time of each contender, relative to redis-py's in the same round."""
    rows = []
    for name in (name for name in costs if name != BASE):
        for kind, limit in limits.items():
            at_most = limit if name in OURS else None
            rows.append(
                median_row(f"{name}, {kind} time", ratios(costs, name, BASE, kind), f"× {BASE}", at_most=at_most)
            )
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
