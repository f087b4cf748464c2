"""Many locks, their reports and a million other keys: what the listing is timed with, here and in the benchmarks.

python -m tests.console.crowd
"""

import json
import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis


def plant_locks(
    client: redis.Redis,
    locks: int = 500,
    processes: int = 10,
    prefix: str = "rlock:",
    silent: float = 0.0,
    longer: float = 0.0,
) -> list[str]:
    """Locks held by processes that report them, as those write them; last so many seconds ago (``silent``).

    Their leases last so many seconds ``longer`` than usual. Returns the processes, for ``beating``.
    """
    seconds, micros = client.time()
    now = seconds + micros / 1e6 - silent
    clients = [str(uuid.UUID(bytes=os.urandom(16), version=4)) for _ in range(processes)]
    pipe = client.pipeline(transaction=False)
    for number, process in enumerate(clients):
        pipe.hset(f"rlock_process:{process}", mapping={"host": f"web-{number}", "pid": 1000 + number, "role": "web"})
        pipe.zadd("rlock_processes", {process: now})
    for number in range(locks):
        process = clients[number % processes]
        owner, key = f"{process}:{number}", f"{prefix}stock:{number}"
        entry = {"key": key, "kind": "fair", "owner": owner, "since": now - number, "place": "MainThread", "count": 1}
        entry |= {"context": {"route": f"POST /buy/{number}/", "user": "7"}, "lease": 30.0 + longer, "renewed": True}
        pipe.hset(f"rlock_process:{process}", f"hold {owner} {key}", json.dumps(entry))
        pipe.hset(key, owner, 1)
        pipe.pexpire(key, 30_000 + round(1000 * longer))
    pipe.execute()
    return clients


def plant_past(client: redis.Redis, name: str) -> None:
    """What a process remembers of a lock: a hold, a loss, a wait, one in vain, and a forced release."""
    now = client.time()[0]
    about = {"place": "MainThread", "context": {"route": "POST /buy/1/", "user": "7"}, "seconds": 4.0}
    spans = [
        {**about, "what": "hold", "at": now - 25},
        {**about, "what": "hold", "at": now - 20, "failed": True, "reason": "alice freed it by force"},
        {**about, "what": "wait", "at": now - 25},
        {**about, "what": "wait", "at": now - 24, "failed": True},
        {**about, "what": "freed", "at": now - 20, "by": "alice", "reason": "stuck", "whom": "web-1 pid 7"},
    ]
    fields: Any = {f"lock rlock:{name}": json.dumps(spans), "host": "web-1", "pid": "7", "role": "web"}
    client.hset("rlock_history:x", mapping=fields)
    client.zadd("rlock_histories", {"x": now})


@contextmanager
def beating(client: redis.Redis, processes: Sequence[str]) -> Iterator[None]:
    """Let planted processes live until the end of the block: they heartbeat, as those with a report do."""
    ended = threading.Event()

    def heartbeat() -> None:
        while not ended.wait(1.0):
            seconds, micros = client.time()
            client.zadd("rlock_processes", dict.fromkeys(processes, seconds + micros / 1e6), xx=True)

    thread = threading.Thread(target=heartbeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def plant_waiters(client: redis.Redis, name: str, counts: list[int]) -> None:
    """Waiters in the queue of a lock: so many of each process, those of the first process first."""
    seconds, micros = client.time()
    now, key = seconds + micros / 1e6, f"rlock:{name}"
    for number, count in enumerate(counts):
        process = str(uuid.uuid4())
        client.hset(f"rlock_process:{process}", mapping={"host": f"shop-{number}", "pid": 2000 + number, "role": "web"})
        client.zadd("rlock_processes", {process: now})
        for turn in range(count):
            owner, since = f"{process}:{turn}", now - 1000 + 10 * number + turn / 100
            entry = {"key": key, "kind": "fair", "owner": owner, "since": since, "place": f"thread {turn}"}
            entry |= {"context": {"route": f"POST /buy/{turn}/"}}
            client.hset(f"rlock_process:{process}", f"wait {owner} {key}", json.dumps(entry))
            client.zadd(f"rlock_queue:{{{key}}}", {owner: round(since * 1e6)})


def plant_other_keys(client: redis.Redis, count: int) -> None:
    """Keys of the cache that shares the server."""
    for start in range(0, count, 10_000):
        client.mset({f":1:page:{number}": "x" for number in range(start, min(start + 10_000, count))})


def time_listing(rounds: int = 20) -> list[float]:
    """Seconds that each of some listings took, connections being open."""
    from django_rlock.inspection import iter_locks

    list(iter_locks())
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        list(iter_locks())
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    from example_project.embedded import EmbeddedServer

    with EmbeddedServer() as server:
        os.environ |= {"RLOCK_TEST_URL": server.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        import django

        django.setup()
        with server.client() as client:
            plant_other_keys(client, 1_000_000)
            plant_locks(client)
        times = time_listing()
        sys.stdout.write(
            f"500 locks, 10 processes, 1,000,000 other keys: median {statistics.median(times) * 1000:.1f} ms, "
            f"slowest of {len(times)} {max(times) * 1000:.1f} ms\n"
        )


if __name__ == "__main__":
    main()
