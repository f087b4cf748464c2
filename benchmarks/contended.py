"""Many processes that want one lock, and each work for a millisecond while they hold it: throughput, waits, commands.

Before the first round, the processes have imported everything, connected and taken the lock; none ends before the last
round. Only turns that end within their round count.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import redis_lock
from django_redis import get_redis_connection

from benchmarks import stage
from benchmarks.crew import Crew, crew
from benchmarks.results import Row, Table, median_row
from django_rlock import FairLock, RLock

CONTESTS, OTHER_SIZES, ROUNDS, SECONDS = (8, 16, 32), (4, 64), 7, 1.5
QUICK_CONTESTS, QUICK_OTHER_SIZES, QUICK_ROUNDS, QUICK_SECONDS = (3,), (2,), 1, 1.0
INSIDE = 0.001
"""How long a holder works, in seconds."""
WARM_UP = 0.3
"""Waits that began before this time of a round are not counted, in seconds, because the queue is still forming."""
FEWEST_TURNS = 10
"""Turns that a round must have had while commands were counted: some commands come and go with the round."""
LEASE = 30
LONGEST_LIMIT, THROUGHPUT_LIMIT, COMMANDS_LIMIT, FLATNESS_LIMIT = 2.5, 0.85, 18, 1.15

Take = Callable[[float], bool]
"""Acquires, and waits at most for a number of seconds."""
Give = Callable[[], object]


@dataclass
class Round:
    """The measurements of the processes, and the commands that the server ran meanwhile. Waits are seconds.

    ``unserved`` are the waits that were cut off by the end of the round.
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
    def has_turns(self) -> bool:
        """Whether the processes had enough turns in the time that counts."""
        return bool(self.acquired and self.waits) and self.calls["del"] >= FEWEST_TURNS

    @property
    def commands_per_acquisition(self) -> float:
        """Each release of a FairLock runs one DEL, whose count is the number of acquisitions."""
        return self.calls.total() / max(1, self.calls["del"])

    @property
    def longest_by_median(self) -> float:
        return max(self.waits + self.unserved) / statistics.median(self.waits)


Rounds = dict[str, list[Round]]


def run(quick: bool) -> list[Table]:
    contests, others = (QUICK_CONTESTS, QUICK_OTHER_SIZES) if quick else (CONTESTS, OTHER_SIZES)
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    with crew(max(*contests, *others), __name__) as started:
        started.run(take_and_give_each)
        _one_round(started, "FairLock", max(*contests, *others), WARM_UP)  # each process subscribes
        seen = {size: contest(started, size, rounds, seconds) for size in contests}
        fair = {size: by_name["FairLock"] for size, by_name in seen.items()}
        fair |= {size: [compete(started, "FairLock", size, seconds) for _ in range(min(rounds, 3))] for size in others}
    return [
        *(
            Table(f"{size} processes, one lock, 1 ms inside", contest_rows(by_name, size == max(contests)))
            for size, by_name in seen.items()
        ),
        Table("Commands that the server runs per acquisition, those in scripts included", scaling_rows(fair)),
    ]


def contest(started: Crew, processes: int, rounds: int, seconds: float) -> Rounds:
    """Rounds in which each contender runs in turn."""
    seen: Rounds = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name in CONTENDERS:
            seen[name].append(compete(started, name, processes, seconds))
    return seen


def compete(started: Crew, contender: str, workers: int, seconds: float) -> Round:
    """One round of one contender; it is repeated if the machine was stalled and hardly any process had a turn."""
    while not (seen := _one_round(started, contender, workers, seconds)).has_turns:
        pass
    return seen


def _one_round(started: Crew, contender: str, workers: int, seconds: float) -> Round:
    """Commands are counted while all processes compete, not while they start and stop."""
    begin = time.monotonic() + 0.1
    end = begin + seconds
    answers = started.start(take_turns, contender, begin, end, workers=workers)
    time.sleep(max(0.0, begin + WARM_UP - time.monotonic()))
    before = stage.calls_by_command()
    time.sleep(max(0.0, end - 0.1 - time.monotonic()))
    total = Round(calls=stage.calls_by_command() - before)
    for seen in answers():
        total.add(seen)
    return total


def contest_rows(contest: Rounds, limited: bool) -> list[Row]:
    base = contest["redis-py"]
    return [row for name, rounds in contest.items() for row in contender_rows(name, rounds, base, limited)]


def contender_rows(name: str, rounds: list[Round], base: list[Round], limited: bool) -> list[Row]:
    ours = name == "FairLock"
    longest = [seen.longest_by_median for seen in rounds]
    speed = [mine.acquired / theirs.acquired for mine, theirs in zip(rounds, base, strict=True)]
    rows = [median_row(f"{name}, longest wait", longest, "× its median wait", at_most=LONGEST_LIMIT if ours else None)]
    if rounds is not base:
        at_least = THROUGHPUT_LIMIT if ours and limited else None
        rows.append(median_row(f"{name}, throughput", speed, "× redis-py", at_least=at_least))
    return rows


def scaling_rows(scaling: dict[int, list[Round]]) -> list[Row]:
    per_size = {
        size: statistics.median(seen.commands_per_acquisition for seen in rounds) for size, rounds in scaling.items()
    }
    rows = [Row(f"FairLock, {size} processes", per_size[size], at_most=COMMANDS_LIMIT) for size in sorted(per_size)]
    most, fewest = max(per_size.values()), min(per_size.values())
    return [*rows, Row("most by fewest", most / fewest, at_most=FLATNESS_LIMIT)]


# --- in the processes ---------------------------------------------------------------------------------------------


def take_and_give_each() -> None:
    """Connect and load the scripts before the first round."""
    for make in CONTENDERS.values():
        take, give = make()
        assert take(LEASE)
        give()


def take_turns(contender: str, begin: float, end: float, inside: float = INSIDE) -> Round:
    return turns(*CONTENDERS[contender](), begin, end, inside)


def turns(take: Take, give: Give, begin: float, end: float, inside: float = INSIDE) -> Round:
    """Take and release a lock repeatedly, from one monotonic time to another; work ``inside`` for some seconds."""
    seen = Round()
    time.sleep(max(0.0, begin - time.monotonic()))
    while (started := time.monotonic()) < end:
        taken = take(end - started)
        waited = time.monotonic() - started
        if taken:
            time.sleep(inside)
            give()
            seen.acquired += time.monotonic() <= end
        if started >= begin + WARM_UP:
            (seen.waits if taken else seen.unserved).append(waited)
        if not taken:
            break  # redis-py gives up early if it would sleep past the end
    return seen


def _fair() -> tuple[Take, Give]:
    lock = FairLock("bench:contended")
    return lambda wait: lock.acquire(wait_time=wait), lock.release


def _plain() -> tuple[Take, Give]:
    lock = RLock("bench:contended")
    return lambda wait: lock.acquire(wait_time=wait), lock.release


def _redis_py(sleep: float = 0.1) -> tuple[Take, Give]:
    lock = get_redis_connection().lock("bench:redis-py", timeout=LEASE, sleep=sleep)
    return lambda wait: lock.acquire(blocking_timeout=wait), lock.release


def _python_redis_lock() -> tuple[Take, Give]:
    lock = redis_lock.Lock(get_redis_connection(), "bench:python-redis-lock", expire=LEASE)
    return lambda wait: lock.acquire(timeout=max(1, round(wait))), lock.release


CONTENDERS: dict[str, Callable[[], tuple[Take, Give]]] = {
    "FairLock": _fair,
    "redis-py": _redis_py,
    "redis-py, sleep=0.001": partial(_redis_py, 0.001),
    "RLock": _plain,
    "python-redis-lock": _python_redis_lock,
}
