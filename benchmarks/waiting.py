"""A hundred threads of one process that wait for one lock: what they cost while nothing happens."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.results import Row, Table
from benchmarks.stage import load_scripts, monitored, observer
from django_rlock import FairLock
from django_rlock.locks.holds import WAITS

THREADS, SECONDS = 100, 10.0
QUICK_THREADS, QUICK_SECONDS = 5, 0.5
LOCK = "bench:waiting"
COMMANDS_LIMIT = 20
OWN_THREADS = {"rlock-background", "rlock-listener"}
_SETTLE = 0.7
"""Seconds until the process report names a hold or wait: its connection is there in any process that holds a lock."""


def run(quick: bool) -> list[Table]:
    threads, seconds = (QUICK_THREADS, QUICK_SECONDS) if quick else (THREADS, SECONDS)
    with FairLock("bench:held before"), observer() as client:
        time.sleep(_SETTLE)
        connections, names = _connections(client), _thread_names()
        load_scripts(client)
        with _held_elsewhere(client), _waiting(threads):
            with monitored() as counts:
                time.sleep(seconds)
            more = _connections(client) - connections
            new = [name for name in _thread_names() if name not in names and not name.startswith("waiter")]
    sent = {command.lower(): float(count) for command, count in sorted(counts.by_clients.items())}
    return [
        Table(
            f"{threads} threads of one process, waiting {seconds:g} s for one lock",
            [
                Row("connections more than a process that holds a lock", more, at_most=1),
                Row("threads more, besides those that wait", len(new), at_most=1),
                Row("commands sent meanwhile", counts.by_clients.total(), at_most=COMMANDS_LIMIT, details=sent),
            ],
        )
    ]


@contextmanager
def _held_elsewhere(client) -> Iterator[None]:
    """Somebody else holds the lock, and lets it go at the end."""
    key = FairLock(LOCK).key
    client.hset(key, "somebody else", 1)
    client.expire(key, 60)
    try:
        yield
    finally:
        client.delete(key)


@contextmanager
def _waiting(threads: int) -> Iterator[None]:
    """Threads that wait, started one after another, so that one connection does for their acquires."""
    lock = FairLock(LOCK)

    def wait() -> None:
        with lock:
            pass

    started = [threading.Thread(target=wait, name=f"waiter {number}", daemon=True) for number in range(threads)]
    for number, thread in enumerate(started, start=1):
        thread.start()
        while _asleep() < number:
            time.sleep(0.001)
    try:
        yield
    finally:
        lock.force_release(reason="end of the benchmark")
        for thread in started:
            thread.join(30)


def _asleep() -> int:
    """How many have their place in the queue, and have given back the connection by which they got it."""
    return sum(wait.beat_at < math.inf for wait in WAITS.snapshot())


def _connections(client) -> int:
    """This process's connections to the server, as the server counts them."""
    return int(client.info("clients")["connected_clients"])


def _thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
