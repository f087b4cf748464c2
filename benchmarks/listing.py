"""Five hundred locks, held by ten processes beside a million other keys: the time to list them. And what a page of the
admin costs in the process that serves it, with as many and with ten thousand, and ten open ones the server."""

from __future__ import annotations

import os
import time

from benchmarks.crew import crew
from benchmarks.pages import pages
from benchmarks.results import Table, median_row
from benchmarks.stage import observer
from django_rlock import RLock
from django_rlock.inspection import iter_locks

PROCESSES, LOCKS_EACH, OTHER_KEYS, PASSES = 10, 50, 1_000_000, 15
QUICK_PROCESSES, QUICK_LOCKS_EACH, QUICK_OTHER_KEYS, QUICK_PASSES = 2, 5, 1_000, 2
MANY_PROCESSES, MANY_LOCKS_EACH = 20, 500
QUICK_MANY_PROCESSES, QUICK_MANY_LOCKS_EACH = 2, 30
MILLISECONDS_LIMIT = 100
REPORTED_WITHIN = 20.0
_FILL = "for i = ARGV[1], ARGV[2] do redis.call('set', 'cache:' .. i, 'value') end"
_STEP = 10_000


def run(quick: bool) -> list[Table]:
    sizes = (QUICK_PROCESSES, QUICK_LOCKS_EACH, QUICK_OTHER_KEYS, QUICK_PASSES)
    processes, each, keys, passes = sizes if quick else (PROCESSES, LOCKS_EACH, OTHER_KEYS, PASSES)
    fill(keys)
    with crew(processes, __name__) as started:
        started.run(hold, each)
        wait_until_listed(processes * each)
        times = [time_listing() for _ in range(passes)]
        some = pages(processes * each, processes, passes, quick)
    title = f"Listing {processes * each} locks of {processes} processes beside {keys:,} other keys"
    listing = Table(title, [median_row("iter_locks()", times, "ms", at_most=MILLISECONDS_LIMIT)])
    observer().flushall()
    processes, each = (QUICK_MANY_PROCESSES, QUICK_MANY_LOCKS_EACH) if quick else (MANY_PROCESSES, MANY_LOCKS_EACH)
    with crew(processes, __name__) as started:
        started.run(hold, each)
        wait_until_listed(processes * each)
        return [listing, some, pages(processes * each, processes, passes, quick)]


def fill(keys: int) -> None:
    with observer() as client:
        for start in range(0, keys, _STEP):
            client.eval(_FILL, 0, start + 1, min(start + _STEP, keys))


def hold(count: int) -> None:
    """Take a number of locks and keep them; the crew's process ends while it holds them."""
    for number in range(count):
        RLock(f"bench:listed:{os.getpid()}:{number}").acquire()


def wait_until_listed(count: int) -> None:
    """Wait until all are reported: processes report a hold once it is half a second old."""
    give_up_at = time.monotonic() + REPORTED_WITHIN
    while (listed := len(list(iter_locks()))) < count:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"Only {listed} of {count} locks are listed.")
        time.sleep(0.1)


def time_listing() -> float:
    began = time.perf_counter()
    for _ in iter_locks():
        pass
    return (time.perf_counter() - began) * 1000
