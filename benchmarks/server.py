"""The machine instructions that the server executes for a pair, and for a turn of a lock with waiters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import redis_lock
from django_redis import get_redis_connection

from benchmarks import stage
from benchmarks.callgrind import CountedServer, is_installed
from benchmarks.crew import crew
from benchmarks.peers import LEASE, as_pair
from benchmarks.results import Row, Table
from django_rlock import FairLock, FencedLock, LimitedLock, ReadLock, RLock, Semaphore, WriteLock

PAIRS, PROCESSES, TURNS = 500, 4, 100
QUICK_PAIRS, QUICK_PROCESSES, QUICK_TURNS = 20, 2, 10
BASE = "redis-py"


def semaphore_of_two() -> Semaphore:
    semaphore = Semaphore("bench:semaphore")
    semaphore.try_set_permits(2)
    return semaphore


CONTENDERS = {
    BASE: lambda: get_redis_connection().lock("bench:redis-py", timeout=LEASE),
    "python-redis-lock": lambda: redis_lock.Lock(get_redis_connection(), "bench:python-redis-lock", expire=LEASE),
    "RLock": lambda: RLock("bench:rlock"),
    "FairLock": lambda: FairLock("bench:fair"),
    "FencedLock": lambda: FencedLock("bench:fenced"),
    "ReadLock": lambda: ReadLock("bench:readers"),
    "WriteLock": lambda: WriteLock("bench:writers"),
    "LimitedLock": lambda: LimitedLock("bench:limited", permits=2),
    "Semaphore": semaphore_of_two,
}
IN_TURN = ("RLock", "FairLock")
LIMITS = {"RLock": 2.5, "FairLock": 3.0}


def run(quick: bool) -> list[Table]:
    title = "Machine instructions of the server, by callgrind"
    if not is_installed():
        return [Table(title, [], note="valgrind, which counts them, is not installed.")]
    pairs, turns, processes = (QUICK_PAIRS, QUICK_TURNS, QUICK_PROCESSES) if quick else (PAIRS, TURNS, PROCESSES)
    with CountedServer(port=0) as server:
        by_pair = counted(server, CONTENDERS, pairs, 1)
        by_turn = counted(server, IN_TURN, turns, processes)
    base = by_pair.pop(BASE)
    unit = f"× a pair of {BASE}"
    return [
        Table(
            title,
            [
                Row(f"{BASE}, a pair", base, "instructions"),
                *(Row(f"{name}, a pair", by_pair[name] / base, unit, at_most=LIMITS.get(name)) for name in by_pair),
                *(Row(f"{name}, a turn of {processes} processes", by_turn[name] / base, unit) for name in by_turn),
            ],
        )
    ]


def counted(server: CountedServer, names: Iterable[str], pairs: int, processes: int) -> dict[str, float]:
    """The instructions for each of the pairs that some processes make at the same time."""
    with crew(processes, __name__) as started:
        started.run(stage.use_server, server.url)
        started.run(make_pairs, "RLock", 1)  # connect
        found = {}
        for name in names:
            started.run(make_pairs, name, 1)  # load the scripts
            work = server.instructions(partial(started.run, make_pairs, name, pairs))
            found[name] = work / pairs / processes
    return found


# ---- in the processes ----------------------------------------------------------------------------------------------


def make_pairs(name: str, count: int) -> None:
    pair = as_pair(CONTENDERS[name]())
    for _ in range(count):
        pair()
