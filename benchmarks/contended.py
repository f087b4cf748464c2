"""Many processes that want one lock, each working a millisecond inside: throughput, waits, commands."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import redis_lock
from django_redis import get_redis_connection

from benchmarks import stage
from benchmarks.crew import Crew, crew
from benchmarks.results import Row, Table, median_row
from django_rlock import FairLock, RLock

PROCESSES, SIZES, ROUNDS, SECONDS = 32, (4, 8, 16, 32, 64), 7, 1.2
QUICK_PROCESSES, QUICK_SIZES, QUICK_ROUNDS, QUICK_SECONDS = 3, (2, 3), 1, 0.4
INSIDE = 0.001
"""How long a holder works inside, in seconds."""
WARM_UP = 0.2
"""Waits that began earlier in a round are not counted, in seconds: the queue is forming."""
LEASE = 30
LONGEST_LIMIT, THROUGHPUT_LIMIT, FLATNESS_LIMIT = 2.5, 0.8, 1.15

Take = Callable[[float], bool]
"""Acquire, waiting for so many seconds at most."""
Give = Callable[[], object]


@dataclass
class Round:
    """What the processes saw, and which commands the server ran meanwhile. Waits are seconds.

    ``unserved`` are the waits that the end of the round cut off.
    """

    acquired: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    unserved: list[float] = field(default_factory=list)

    def add(self, other: Round) -> None:
        self.acquired += other.acquired
        self.waits += other.waits
        self.unserved += other.unserved

    @property
    def commands_per_acquisition(self) -> float:
        """Each release of a FairLock runs one DEL, which tells how many there were in the counted time."""
        return self.calls.total() / max(1, self.calls["del"])

    @property
    def longest_by_median(self) -> float:
        return max(self.waits + self.unserved) / statistics.median(self.waits)


Rounds = dict[str, list[Round]]


def run(quick: bool) -> list[Table]:
    processes, sizes = (QUICK_PROCESSES, QUICK_SIZES) if quick else (PROCESSES, SIZES)
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    with crew(max(sizes), __name__) as started:
        started.run(take_and_give_each)
        compete(started, "FairLock", max(sizes), WARM_UP)  # each process subscribes
        contest: Rounds = {name: [] for name in CONTENDERS}
        for _ in range(rounds):
            for name, seen in contest.items():
                seen.append(compete(started, name, processes, seconds))
        scaling = {size: [compete(started, "FairLock", size, seconds) for _ in range(min(rounds, 3))] for size in sizes}
    note = "A wait that the end of a round cut off counts as a longest wait, not for the median."
    return [
        Table(f"{processes} processes, one lock, 1 ms inside", contest_rows(contest), note),
        Table("Commands that the server runs per acquisition, those in scripts included", scaling_rows(scaling)),
    ]


def compete(started: Crew, contender: str, workers: int, seconds: float) -> Round:
    """One round of one contender. Commands are counted while all are at it, not when they come and go."""
    begin = time.monotonic() + 0.1
    end = begin + seconds
    answers = started.start(take_turns, contender, begin, end, workers=workers)
    time.sleep(begin + WARM_UP - time.monotonic())
    before = stage.calls_by_command()
    time.sleep(max(0.0, end - 0.1 - time.monotonic()))
    total = Round(calls=stage.calls_by_command() - before)
    for seen in answers():
        total.add(seen)
    return total


def contest_rows(contest: Rounds) -> list[Row]:
    return [row for name, rounds in contest.items() for row in contender_rows(name, rounds, contest["redis-py"])]


def contender_rows(name: str, rounds: list[Round], base: list[Round]) -> list[Row]:
    ours = name == "FairLock"
    longest = [seen.longest_by_median for seen in rounds if seen.waits]
    speed = [mine.acquired / theirs.acquired for mine, theirs in zip(rounds, base, strict=True)]
    rows = [median_row(f"{name}, longest wait", longest, "× its median wait", at_most=LONGEST_LIMIT if ours else None)]
    if rounds is not base:
        at_least = THROUGHPUT_LIMIT if ours else None
        rows.append(median_row(f"{name}, throughput", speed, "× redis-py", at_least=at_least))
    return rows


def scaling_rows(scaling: dict[int, list[Round]]) -> list[Row]:
    per_size = {
        size: statistics.median(seen.commands_per_acquisition for seen in rounds) for size, rounds in scaling.items()
    }
    rows = [Row(f"FairLock, {size} processes", commands) for size, commands in per_size.items()]
    most, fewest = max(per_size.values()), min(per_size.values())
    return [*rows, Row("most by fewest", most / fewest, at_most=FLATNESS_LIMIT)]


# --- in the processes ---------------------------------------------------------------------------------------------


def take_and_give_each() -> None:
    """So that connections and scripts are there before the first round."""
    for make in CONTENDERS.values():
        take, give = make()
        take(5)
        give()


def take_turns(contender: str, begin: float, end: float) -> Round:
    """Take the lock and give it back, again and again, from one monotonic time to another."""
    take, give = CONTENDERS[contender]()
    seen = Round()
    time.sleep(max(0.0, begin - time.monotonic()))
    while (started := time.monotonic()) < end:
        taken = take(end - started)
        waited = time.monotonic() - started
        if taken:
            time.sleep(INSIDE)
            give()
            seen.acquired += 1
        if started >= begin + WARM_UP:
            (seen.waits if taken else seen.unserved).append(waited)
        if not taken:
            break  # redis-py gives up before its time when it would sleep through the end
    return seen


def _fair() -> tuple[Take, Give]:
    lock = FairLock("bench:contended")
    return lambda wait: lock.acquire(wait_time=wait), lock.release


def _plain() -> tuple[Take, Give]:
    lock = RLock("bench:contended")
    return lambda wait: lock.acquire(wait_time=wait), lock.release


def _redis_py() -> tuple[Take, Give]:
    lock = get_redis_connection().lock("bench:redis-py", timeout=LEASE)
    return lambda wait: lock.acquire(blocking_timeout=wait), lock.release


def _python_redis_lock() -> tuple[Take, Give]:
    lock = redis_lock.Lock(get_redis_connection(), "bench:python-redis-lock", expire=LEASE)
    return lambda wait: lock.acquire(timeout=max(1, round(wait))), lock.release


CONTENDERS: dict[str, Callable[[], tuple[Take, Give]]] = {
    "FairLock": _fair,
    "redis-py": _redis_py,
    "RLock": _plain,
    "python-redis-lock": _python_redis_lock,
}
