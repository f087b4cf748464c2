"""Many processes that want one lock and work for a millisecond while they hold it, in all systems.

The processes have connected and taken the lock once before the first round, as in ``benchmarks.contended``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.contended import Round, turns
from benchmarks.crew import Crew, crew
from benchmarks.results import Row, Table, median_row
from benchmarks.systems.contenders import BASE, Contender, make

PROCESSES, ROUNDS, SECONDS = 8, 5, 1.5
QUICK_PROCESSES, QUICK_ROUNDS, QUICK_SECONDS = 3, 1, 0.8
WAIT = 5.0


class Contest(NamedTuple):
    """A round of all processes, and how many seconds it lasted."""

    seen: Round
    seconds: float

    @property
    def rate(self) -> float:
        """Turns per second."""
        return self.seen.acquired / self.seconds

    @property
    def turns_in_longest_wait(self) -> float:
        """How many turns the others had, on average, during the longest wait."""
        return max(self.seen.waits + self.seen.unserved) * self.rate


Contests = dict[str, list[Contest]]


def run(urls: Mapping[str, str], quick: bool, note: str) -> list[Table]:
    """``urls`` are the servers of the contenders, by the contenders' names."""
    processes, rounds, seconds = (
        (QUICK_PROCESSES, QUICK_ROUNDS, QUICK_SECONDS) if quick else (PROCESSES, ROUNDS, SECONDS)
    )
    with crew(processes, __name__) as started:
        started.run(connect, urls)
        seen: Contests = {name: [] for name in urls}
        for _ in range(rounds):
            for name in urls:
                seen[name].append(compete(started, name, seconds))
    return [Table(f"Which lock: {processes} processes, one lock, 1 ms inside", rows(seen), note)]


def compete(started: Crew, name: str, seconds: float) -> Contest:
    """One round of one contender; where no process had a turn, it is repeated and lasts twice as long."""
    total, begin = Round(), time.monotonic() + 0.1
    for seen in started.run(take_turns, name, begin, begin + seconds):
        total.add(seen)
    return Contest(total, seconds) if total.acquired and total.waits else compete(started, name, seconds * 2)


def rows(seen: Contests) -> list[Row]:
    found = []
    for name, contests in seen.items():
        if name != BASE:
            speed = [mine.rate / theirs.rate for mine, theirs in zip(contests, seen[BASE], strict=True)]
            found.append(median_row(f"{name}, throughput", speed, f"× {BASE}"))
        longest = [each.turns_in_longest_wait for each in contests]
        found.append(median_row(f"{name}, longest wait", longest, "turns of others"))
    return found


# --- in the processes ---------------------------------------------------------------------------------------------

_LOCKS: dict[str, Contender] = {}


def connect(urls: Mapping[str, str]) -> None:
    for name, url in urls.items():
        _LOCKS[name] = make(name, url, wait=WAIT)
        assert _LOCKS[name].take()
        _LOCKS[name].give()


def take_turns(name: str, begin: float, end: float) -> Round:
    """The limit of a wait is that of the connection, since most systems cannot have another one for each."""
    lock = _LOCKS[name]
    return turns(lambda _: lock.take(), lock.give, begin, end)
