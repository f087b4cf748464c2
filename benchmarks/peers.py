"""The contenders for an uncontended pair. Each is a function that acquires and releases a lock nothing else uses."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
import redis_lock
from django_redis import get_redis_connection

from benchmarks.stage import URL_VARIABLE
from benchmarks.timing import AsyncPair, Pair
from django_rlock import FairLock, RLock
from django_rlock._transport.calls import next_nonce, pack
from django_rlock.locks import rlock

LEASE = 30
"""The lease in seconds; the lease that our watchdog renews is as long."""


def sync_pairs() -> dict[str, Pair]:
    """Pairs on lock objects that are made once, as redis-py's users do."""
    client = get_redis_connection()
    return {
        "redis-py": as_pair(client.lock("bench:redis-py", timeout=LEASE)),
        "RLock": as_pair(RLock("bench:rlock")),
        "FairLock": as_pair(FairLock("bench:fair")),
        "python-redis-lock": as_pair(redis_lock.Lock(client, "bench:python-redis-lock", expire=LEASE)),
        "raw socket": raw_pair(),
    }


def as_pair(lock: Any) -> Pair:
    """Acquire and release."""

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def sync_pairs_made_per_call() -> dict[str, Pair]:
    """Pairs that make the lock object each time, as in views: the name is known when the request comes."""
    client = get_redis_connection()

    def ours() -> None:
        with rlock("bench:rlock"):
            pass

    def theirs() -> None:
        with client.lock("bench:redis-py", timeout=LEASE):
            pass

    def python_redis_lock() -> None:
        with redis_lock.Lock(client, "bench:python-redis-lock", expire=LEASE):
            pass

    return {"redis-py": theirs, "rlock()": ours, "python-redis-lock": python_redis_lock}


def sync_pairs_with_new_names() -> dict[str, Pair]:
    """The same with a new name each time, as locks of orders and stock have: nothing can be kept for the name."""
    client, numbers = get_redis_connection(), itertools.count()

    def ours() -> None:
        with rlock(f"bench:rlock:{next(numbers)}"):
            pass

    def theirs() -> None:
        with client.lock(f"bench:redis-py:{next(numbers)}", timeout=LEASE):
            pass

    return {"redis-py": theirs, "rlock()": ours}


def raw_pair() -> Pair:
    """The lower bound for any client: the two scripts of RLock, packed beforehand, on a socket of its own."""
    acquire, release = _raw_commands()
    connection = socket.create_connection(_address())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pair() -> None:
        connection.sendall(acquire)
        connection.recv(4096)
        connection.sendall(release)
        connection.recv(4096)

    return pair


def _raw_commands() -> tuple[bytes, bytes]:
    lock = RLock("bench:raw")
    owner = "00000000-0000-4000-8000-000000000000:1"
    calls = lock._kind.acquire(lock, owner, 1, LEASE, False), lock._kind.release(lock, owner, 0, LEASE)
    acquire, release = [pack(call, next_nonce()) for call in calls]
    return acquire, release


def _address() -> tuple[str, int]:
    url = urlsplit(os.environ[URL_VARIABLE])
    return url.hostname or "", url.port or 0


@asynccontextmanager
async def async_pairs() -> AsyncIterator[dict[str, AsyncPair]]:
    """The same on asyncio; python-redis-lock does not support it."""
    client = redis.asyncio.Redis.from_url(os.environ[URL_VARIABLE])
    reader, writer = await asyncio.open_connection(*_address())
    try:
        theirs, plain, fair = client.lock("bench:redis-py", timeout=LEASE), RLock("bench:rlock"), FairLock("bench:fair")
        yield {
            "redis-py": as_async_pair(theirs.acquire, theirs.release),
            "RLock": as_async_pair(plain.aacquire, plain.arelease),
            "FairLock": as_async_pair(fair.aacquire, fair.arelease),
            "raw stream": _raw_async_pair(reader, writer),
        }
    finally:
        writer.close()
        await client.aclose()


def as_async_pair(acquire: AsyncPair, release: AsyncPair) -> AsyncPair:
    """Acquire and release."""

    async def pair() -> None:
        await acquire()
        await release()

    return pair


def _raw_async_pair(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncPair:
    acquire, release = _raw_commands()

    async def pair() -> None:
        writer.write(acquire)
        await reader.read(4096)
        writer.write(release)
        await reader.read(4096)

    return pair
