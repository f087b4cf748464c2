"""Two thousand tasks of one event loop that each take a free lock, all at once."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from benchmarks import stage
from benchmarks.crew import crew
from benchmarks.results import Row, Table, median_row
from django_rlock import LockUnavailableError, rlock

TASKS, ROUNDS = 2_000, 5
QUICK_TASKS, QUICK_ROUNDS = 20, 1
SECONDS_LIMIT, CONNECTIONS_LIMIT = 0.4, 4


class Seen(NamedTuple):
    """How many tasks got their lock, the seconds until the last one had it, and the connections of the process."""

    taken: int
    seconds: float
    connections: int


def run(quick: bool) -> list[Table]:
    tasks, rounds = (QUICK_TASKS, QUICK_ROUNDS) if quick else (TASKS, ROUNDS)
    seen = [in_a_fresh_process(tasks) for _ in range(rounds)]
    most = max(each.connections for each in seen)
    rows = [
        Row("taken, in the worst round", min(each.taken for each in seen), at_least=tasks),
        median_row("until the last is taken", [each.seconds for each in seen], "s", at_most=SECONDS_LIMIT),
        Row("connections of the process", most, at_most=CONNECTIONS_LIMIT),
    ]
    return [Table(f"{tasks:,} tasks that each take a free lock at once", rows)]


def in_a_fresh_process(tasks: int) -> Seen:
    stage.observer().flushall()  # removes the locks of the previous round
    others = connections()
    with crew(1, __name__, fresh=True) as started:
        [seen] = started.run(burst, tasks)
    return seen._replace(connections=seen.connections - others)


def connections() -> int:
    """The connections as the server counts them, including the one that asks."""
    with stage.observer() as client:
        return len(client.client_list())


# --- in the process -----------------------------------------------------------------------------------------------


def burst(tasks: int) -> Seen:
    return asyncio.run(take_all_at_once(tasks))


async def take_all_at_once(tasks: int) -> Seen:
    """The locks are kept, because so many releases at once would be another burst."""
    async with rlock("bench:burst"):  # connects
        pass
    began = time.monotonic()
    everyone = asyncio.gather(*(take(f"bench:burst:{number}") for number in range(tasks)))
    taken_at = [when for when in await everyone if when is not None]
    return Seen(len(taken_at), max(taken_at) - began, connections())


async def take(name: str) -> float | None:
    """Returns when the lock was taken, or None if it could not be."""
    try:
        await rlock(name).aacquire()
    except LockUnavailableError:
        return None
    return time.monotonic()
