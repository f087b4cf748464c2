"""The cost of calls beside other holds of the process: no call looks at the holds of others."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from celery import Celery
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from benchmarks import stage
from benchmarks.crew import crew
from benchmarks.peers import as_pair
from benchmarks.results import Table, median_row
from benchmarks.timing import Pair
from django_rlock import FairLock, MultiLock, RLock, rlock
from django_rlock.celery import LockedTask
from django_rlock.middleware import LockMiddleware

FEW, MANY, ROUNDS, CALLS = 10, 30_000, 9, 300
QUICK_MANY, QUICK_ROUNDS, QUICK_CALLS = 100, 2, 5
CALL_LIMIT = 1.2
PAIRS_BESIDE, PAIRS = (10_000, 100_000), 5_000
QUICK_PAIRS_BESIDE, QUICK_PAIRS = (100, 200), 100
PAIR_LIMIT = 3
WITHIN = 300.0
"""How long to take 100,000 locks in ten rounds may last, in seconds."""
LEASE = 3600.0
"""No renewal is due while others are measured, in seconds."""
TOGETHER = 10_000
Figures = dict[str, float]


def run(quick: bool) -> list[Table]:
    many, rounds, calls = (QUICK_MANY, QUICK_ROUNDS, QUICK_CALLS) if quick else (MANY, ROUNDS, CALLS)
    beside, pairs = (QUICK_PAIRS_BESIDE, QUICK_PAIRS) if quick else (PAIRS_BESIDE, PAIRS)
    with crew(1, __name__) as started:
        [measured] = started.run(time_calls, many, rounds, calls)
    with crew(1, __name__, within=WITHIN) as started:
        [slow] = started.run(time_pairs, beside, rounds, pairs)
    return [
        Table(
            f"Calls beside {many:,} other holds of the process",
            [
                median_row(f"{name}, cpu time", ratios, f"× beside {FEW}", at_most=CALL_LIMIT)
                for name, ratios in measured.items()
            ],
        ),
        Table(
            "The slowest of a hundred pairs beside other holds of the process",
            [
                median_row(f"a pair's p99 beside {number:,}", ratios, f"× beside {FEW}", at_most=PAIR_LIMIT)
                for number, ratios in slow.items()
            ],
        ),
    ]


# ---- in a process of its own -----------------------------------------------------------------------------------------


def time_calls(many: int, rounds: int, calls: int) -> dict[str, list[float]]:
    """The CPU time of each call beside many holds, relative to that beside few in the same round."""
    stage.set_leases(LEASE)
    with held_by_a_thread(MultiLock(RLock("bench:held"), RLock("bench:also"))):
        contenders = calls_to_time()
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(-1, rounds):  # the first round warms up
            few, lots = cpu_beside(FEW, contenders, calls), cpu_beside(many, contenders, calls)
            for name in contenders:
                if number >= 0:
                    found[name].append(lots[name] / few[name])
    return found


def cpu_beside(number: int, contenders: Mapping[str, Pair], calls: int) -> Figures:
    figures = {}
    with held_beside(number):
        for name, call in contenders.items():
            began = time.thread_time()
            for _ in range(calls):
                call()
            figures[name] = time.thread_time() - began
    return figures


def calls_to_time() -> dict[str, Pair]:
    app = Celery("bench", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(base=LockedTask, shared=False)
    def job(number: int) -> int:
        return number

    def respond(_request: HttpRequest) -> HttpResponse:
        with rlock("bench:view"):
            return HttpResponse("done")

    middleware, factory = LockMiddleware(respond), RequestFactory()

    def wait() -> None:
        FairLock("bench:held").acquire(wait_time=0.0001)

    def free_by_force() -> None:
        lock = RLock("bench:forced")
        lock.acquire()
        lock.force_release()

    return {
        "a pair": as_pair(RLock("bench:pair")),
        "a request": lambda: middleware(factory.get("/")),
        "an acquire that waits": wait,
        "a LockedTask": lambda: job(1),
        "an acquire and a forced release": free_by_force,
    }


def time_pairs(beside: tuple[int, ...], rounds: int, pairs: int) -> dict[int, list[float]]:
    """The 99th percentile of a pair's wall time beside many holds, relative to that beside few in the same round."""
    stage.set_leases(LEASE)
    found: dict[int, list[float]] = {number: [] for number in beside}
    for number in range(-1, rounds):
        slow = {each: p99_beside(each, pairs) for each in (FEW, *beside)}
        for each in beside:
            if number >= 0:
                found[each].append(slow[each] / slow[FEW])
    return found


def p99_beside(number: int, pairs: int) -> float:
    pair, seconds = as_pair(RLock("bench:pair")), []
    with held_beside(number):
        for _ in range(pairs):
            began = time.perf_counter()
            pair()
            seconds.append(time.perf_counter() - began)
    return statistics.quantiles(seconds, n=100)[-1]


@contextmanager
def held_beside(number: int) -> Iterator[None]:
    """Another thread of the process holds a number of locks."""
    parts = [range(start, min(start + TOGETHER, number)) for start in range(0, number, TOGETHER)]
    with held_by_a_thread(*[MultiLock(*[RLock(f"bench:other:{each}") for each in part]) for part in parts]):
        yield


@contextmanager
def held_by_a_thread(*locks: MultiLock) -> Iterator[None]:
    taken, left = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        taken.set()
        left.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        left.set()
        thread.join()
