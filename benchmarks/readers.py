"""Thirty-two readers that hold one lock at once, threads and then processes: no reader waits for another reader."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from benchmarks import stage
from benchmarks.crew import Answers, Crew, crew
from benchmarks.results import Row, Table, median_row
from django_rlock import ReadLock, WriteLock

READERS, ROUNDS, TIMES, SECONDS = 32, 15, 40, 1.0
QUICK_READERS, QUICK_ROUNDS, QUICK_TIMES, QUICK_SECONDS = 3, 2, 3, 0.2
ACQUIRE_LIMIT = 1.5
CONTESTS = 3
INSIDE = 0.005
"""How long each holder works in a contest, in seconds."""
HELD, CONTESTED = "bench:read", "bench:contested"
SIDES = {"reader": ReadLock, "writer": WriteLock}


class Threads:
    """Like a Crew, with threads of this process."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size)
        self._size = size
        self._together = threading.Barrier(size)

    def start(self, function: Callable[..., Any], *arguments: Any) -> Answers:
        running = [self._pool.submit(self._run, function, *arguments) for _ in range(self._size)]
        return lambda: [each.result() for each in running]

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self.start(function, *arguments)()

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._together.wait()  # makes each thread run it once
        return function(*arguments)


@contextmanager
def threads(size: int) -> Iterator[Threads]:
    started = Threads(size)
    try:
        yield started
    finally:
        started._pool.shutdown()


@contextmanager
def processes(size: int) -> Iterator[Crew]:
    with crew(size, __name__) as started:
        yield started


Team = Threads | Crew


def run(quick: bool) -> list[Table]:
    sizes = (QUICK_READERS, QUICK_ROUNDS, QUICK_TIMES, QUICK_SECONDS) if quick else (READERS, ROUNDS, TIMES, SECONDS)
    readers, rounds, times, seconds = sizes
    tables = []
    for gather in (threads, processes):
        with gather(readers) as team:
            rows = [*one_more_rows(team, rounds, times), *contest_rows(team, seconds)]
        tables.append(Table(f"{readers} readers of one lock, {gather.__name__}", rows))
    return tables


def one_more_rows(others: Team, rounds: int, times: int) -> list[Row]:
    """The time of one more reader while all others hold the lock, relative to its time alone in the same round."""
    taking, giving = [], []
    time_reader(times)
    for _ in range(rounds):
        alone = time_reader(times)
        others.run(take)
        beside = time_reader(times)
        others.run(give)
        taking.append(beside[0] / alone[0])
        giving.append(beside[1] / alone[1])
    return [
        median_row("one more acquires while they hold it", taking, "× when nobody does", at_most=ACQUIRE_LIMIT),
        median_row("one more releases while they hold it", giving, "× when nobody does"),
    ]


def time_reader(times: int) -> tuple[float, float]:
    """The seconds of an acquire and of a release: medians."""
    lock = ReadLock(HELD)
    taking, giving = [], []
    for _ in range(times):
        began = time.perf_counter()
        lock.acquire()
        taken = time.perf_counter()
        lock.release()
        taking.append(taken - began)
        giving.append(time.perf_counter() - taken)
    return statistics.median(taking), statistics.median(giving)


def contest_rows(team: Team, seconds: float) -> list[Row]:
    """How many turns all of them have as readers, and as writers; and what the readers' turns cost."""
    team.run(take_turns, "reader", 0.0)  # connects
    turns, calls = [], []
    for _ in range(CONTESTS):
        before = stage.calls_by_command()
        read = sum(team.run(take_turns, "reader", seconds))
        sent = stage.calls_by_command() - before
        turns.append(read / sum(team.run(take_turns, "writer", seconds)))
        calls.append((sent["evalsha"] + sent["subscribe"]) / read)
    return [
        median_row(f"turns of {INSIDE * 1000:g} ms", turns, "× as many as writers have"),
        median_row("commands per turn of a reader", calls, at_most=2),
    ]


# --- in the threads and processes ---------------------------------------------------------------------------------


def take() -> None:
    _of_this_thread().acquire()


def give() -> None:
    _of_this_thread().release()


def _of_this_thread() -> ReadLock:
    """By a named owner: what a thread of a pool takes in its own name ends with the job."""
    return ReadLock(HELD, owner=f"{os.getpid()} {threading.get_ident()}")


def take_turns(side: str, seconds: float) -> int:
    """Take and release the lock repeatedly; returns how often."""
    lock = SIDES[side](CONTESTED)
    end = time.monotonic() + seconds
    turns = 0
    while turns == 0 or time.monotonic() < end:
        with lock:
            time.sleep(INSIDE)
        turns += 1
    return turns
