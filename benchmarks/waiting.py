"""A hundred threads of one process that wait for one lock: what they cost while nothing happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.results import Row, Table
from benchmarks.stage import load_scripts, monitored, observer
from django_rlock import FairLock
from django_rlock._redis.keys import queue_key
from django_rlock._transport.identity import client_id
from django_rlock.locks.holds import WAITS

THREADS, SECONDS = 100, 10.0
QUICK_THREADS, QUICK_SECONDS = 5, 0.5
LOCK = "bench:waiting"
COMMANDS_LIMIT = 20
_GIVE_BACK = 0.01
"""How long a queued thread takes to return the connection that it used, in seconds."""
SETTLE = 10.7
"""How long it takes until a held lock has been reported and renewed, in seconds; every holder connects for that."""
QUICK_SETTLE = 0.7


def run(quick: bool) -> list[Table]:
    threads, seconds, settle = (QUICK_THREADS, QUICK_SECONDS, QUICK_SETTLE) if quick else (THREADS, SECONDS, SETTLE)
    with FairLock("bench:held before"), observer() as client:
        time.sleep(settle)
        connections, names = _connections(client), _thread_names()
        load_scripts(client)
        with _held_elsewhere(client), _waiting(client, threads):
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
                Row("threads more, besides the waiting ones", len(new), at_most=1),
                Row("commands sent meanwhile", counts.by_clients.total(), at_most=COMMANDS_LIMIT, details=sent),
            ],
        )
    ]


@contextmanager
def _held_elsewhere(client) -> Iterator[None]:
    """Another process holds the lock, and releases it at the end."""
    key = FairLock(LOCK).key
    client.hset(key, f"{client_id()[:-1]}-:1", 1)
    client.expire(key, 60)
    try:
        yield
    finally:
        client.delete(key)


@contextmanager
def _waiting(client, threads: int) -> Iterator[None]:
    """Threads that wait, started one after another, so that one connection is enough for their acquires."""
    lock = FairLock(LOCK)

    def wait() -> None:
        with lock:
            pass

    started = [threading.Thread(target=wait, name=f"waiter {number}", daemon=True) for number in range(threads)]
    for number, thread in enumerate(started, start=1):
        thread.start()
        while len(WAITS.snapshot()) < number or client.zcard(queue_key(lock.key)) < number:
            time.sleep(0.001)
        time.sleep(_GIVE_BACK)
    try:
        yield
    finally:
        lock.force_release(reason="end of the benchmark")
        for thread in started:
            thread.join(30)


def _connections(client) -> int:
    """This process's connections to the server, as the server counts them."""
    return int(client.info("clients")["connected_clients"])


def _thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
