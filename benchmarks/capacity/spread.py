"""How lock names spread over the masters of a Redis Cluster, by the hash slots of their keys."""

from __future__ import annotations

from collections.abc import Iterable

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from benchmarks.results import Grid
from django_rlock import FairLock

MASTERS, NAMES = (3, 6, 12), (100, 1_000, 100_000)
HOT = 0.2
"""The share of the load that the hot name has."""


def run(quick: bool) -> Grid:
    sizes = NAMES[:2] if quick else NAMES
    title = "Capacity: the load of the busiest master, × the average"
    columns = ("names", *(f"{masters} masters" for masters in MASTERS), f"{MASTERS[-1]}, one name has {HOT:.0%}")
    lines = [
        (names, *(round(busiest(names, masters), 3) for masters in MASTERS), round(busiest(names, MASTERS[-1], HOT), 3))
        for names in sizes
    ]
    return Grid(title, columns, lines)


def busiest(names: int, masters: int, hot: float = 0.0) -> float:
    """The load of the busiest of some masters, relative to the average; the first name has a share of its own."""
    loads = [0.0] * masters
    for number, master in enumerate(masters_of((f"stock:{number}" for number in range(names)), masters)):
        loads[master] += hot + (1 - hot) / names if number == 0 else (1 - hot) / names
    return max(loads) * masters


def masters_of(names: Iterable[str], masters: int) -> Iterable[int]:
    """The master of each name, where each has an equal part of the slots."""
    return (key_slot(FairLock(name).key.encode()) * masters // REDIS_CLUSTER_HASH_SLOTS for name in names)
