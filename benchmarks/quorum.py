"""RedLock over five servers, compared with pottery's and with one server, near and two milliseconds away.

Client, servers and proxy share one core, so work that five servers elsewhere do at the same time is done in turn here.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from urllib.parse import urlsplit

import pottery
import redis
import redis.asyncio
from django.test.utils import override_settings

from benchmarks.delay import delayed
from benchmarks.peers import LEASE, as_async_pair, as_pair
from benchmarks.results import Row, Table, median_row
from benchmarks.stage import one_core
from benchmarks.timing import KINDS, AsyncPair, Costs, Pair, ratios, time_async, time_sync
from django_rlock import RLock
from django_rlock._transport.calls import next_nonce, pack
from django_rlock.locks.redlock import RedLock
from example_project.embedded import EmbeddedServer

NODES, AWAY = 5, 0.002
"""AWAY is what the proxy adds to a round trip, in seconds."""
ROUNDS, NEAR_PAIRS, FAR_PAIRS, PINGS = 20, 40, 8, 100
QUICK_ROUNDS, QUICK_NEAR_PAIRS, QUICK_FAR_PAIRS, QUICK_PINGS = 2, 3, 2, 5
MOST_PAIRS = (ROUNDS + 1) * NEAR_PAIRS
POTTERY_LIMIT, ASYNC_POTTERY_LIMIT, SINGLE_LIMIT = 0.4, 0.6, 1.25


def run(quick: bool) -> list[Table]:
    sizes = (QUICK_ROUNDS, QUICK_NEAR_PAIRS, QUICK_FAR_PAIRS, QUICK_PINGS)
    rounds, near_pairs, far_pairs, pings = sizes if quick else (ROUNDS, NEAR_PAIRS, FAR_PAIRS, PINGS)
    with five_nodes() as (near, far):
        near_costs = Measured(near, "near", rounds, near_pairs)
        far_costs = Measured(far, "far", rounds, far_pairs)
        added = [ping_row(near[:1], far[:1], pings), ping_row(near, far, pings)]
    return [
        Table(
            f"RedLock, {NODES} nodes on the loopback interface, acquire + release",
            near_costs.rows("pottery", POTTERY_LIMIT, ASYNC_POTTERY_LIMIT),
        ),
        Table(
            f"The same through a proxy that adds {AWAY * 1000:g} ms to each round trip",
            [*far_costs.rows("RLock, one node", SINGLE_LIMIT, SINGLE_LIMIT), *added],
        ),
    ]


@contextmanager
def five_nodes() -> Iterator[tuple[list[str], list[str]]]:
    """The URLs of five servers, near and far away, and aliases for both, for one node and for all."""
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(NODES)]
        ports = [server.port or 0 for server in servers]
        proxy, far_ports = stack.enter_context(delayed(ports, AWAY))
        near, far = ([f"redis://127.0.0.1:{port}/0" for port in each] for each in (ports, far_ports))
        stack.enter_context(override_settings(**aliases(near=near, far=far)))
        stack.enter_context(one_core(proxy, *(server.pid for server in servers)))
        yield near, far


def aliases(**urls: Sequence[str]) -> dict[str, object]:
    caches: dict[str, dict[str, str]] = {}
    locks: dict[str, dict[str, object]] = {}
    for place, nodes in urls.items():
        caches[f"{place} one"] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": nodes[0]}
        locks[f"{place} one"] = {"CACHE": f"{place} one"}
        # The servers have just started: with a QUARANTINE they would have no votes for half a minute.
        locks[f"{place} five"] = {"NODES": list(nodes), "QUARANTINE": 0}
    return {"CACHES": {"default": caches["near one"], **caches}, "RLOCK": locks}


class Measured:
    """The times of the contenders at one place, for threads and for asyncio."""

    def __init__(self, urls: Sequence[str], place: str, rounds: int, pairs: int) -> None:
        with ExitStack() as stack:
            self.sync = time_sync(sync_pairs(stack, urls, place), rounds, pairs)
        self.coroutines = asyncio.run(time_coroutines(urls, place, rounds, pairs))

    def rows(self, base: str, sync_limit: float, async_limit: float) -> list[Row]:
        """The figures relative to the base's; the limits are RedLock's."""
        return [*_rows(self.sync, "sync", base, sync_limit), *_rows(self.coroutines, "async", base, async_limit)]


def _rows(costs: Costs, binding: str, base: str, limit: float) -> list[Row]:
    limits = {"RedLock, wall": limit}
    return [
        median_row(
            f"{name}, {binding}, {kind} time",
            ratios(costs, name, base, kind),
            f"× {base}",
            at_most=limits.get(f"{name}, {kind}"),
        )
        for name in costs
        if name != base
        for kind in KINDS
    ]


def sync_pairs(stack: ExitStack, urls: Sequence[str], place: str) -> dict[str, Pair]:
    clients = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
    return {
        "RedLock": as_pair(RedLock("bench:redlock", using=f"{place} five")),
        "RedLock without fencing": as_pair(RedLock("bench:unfenced", fencing=False, using=f"{place} five")),
        "pottery": as_pair(pottery.Redlock(key="bench", masters=set(clients), auto_release_time=LEASE)),
        "raw sockets": raw_pair([stack.enter_context(connection(url)) for url in urls], place),
        "RLock, one node": as_pair(RLock("bench:rlock", using=f"{place} one")),
        "redis-py, one node": as_pair(clients[0].lock("bench:redis-py", timeout=LEASE)),
    }


def raw_pair(connections: Sequence[socket.socket], place: str) -> Pair:
    """The lower bound for any client: the two scripts of RedLock, packed beforehand, on sockets of its own."""
    packed = packed_pairs(place)

    def pair() -> None:
        for command in next(packed):
            for each in connections:
                each.sendall(command)
            for each in connections:
                each.recv(4096)

    return pair


def raw_async_pair(connections: Sequence[socket.socket], place: str) -> AsyncPair:
    """The same on asyncio, with a callback for each node."""
    packed = packed_pairs(place)
    loop = asyncio.get_running_loop()
    missing, heard = 0, loop.create_future()

    def read(each: socket.socket) -> None:
        nonlocal missing
        each.recv(4096)
        missing -= 1
        if not missing:
            heard.set_result(None)

    async def pair() -> None:
        nonlocal missing, heard
        for command in next(packed):
            missing, heard = len(connections), loop.create_future()
            for each in connections:
                each.send(command)
            await heard

    for each in connections:
        each.setblocking(False)
        loop.add_reader(each, read, each)
    return pair


def packed_pairs(place: str) -> Iterator[list[bytes]]:
    """RedLock's two scripts for one new owner after another: nodes refuse an owner that has released."""
    lock = RedLock("bench:raw", using=f"{place} five")
    owners = (f"00000000-0000-4000-8000-{number:012}:1" for number in range(MOST_PAIRS))
    calls = [(lock._kind.acquire(lock, each, 1, LEASE), lock._kind.release(lock, each, 0, LEASE)) for each in owners]
    return iter([[pack(call, next_nonce()) for call in pair] for pair in calls])


async def time_coroutines(urls: Sequence[str], place: str, rounds: int, pairs: int) -> Costs:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(redis.asyncio.Redis.from_url(url)) for url in urls]
        with ExitStack() as sockets:
            raw = raw_async_pair([sockets.enter_context(connection(url)) for url in urls], place)
            return await time_async(async_pairs(clients, place) | {"raw sockets": raw}, rounds, pairs)


def async_pairs(clients: Sequence[redis.asyncio.Redis], place: str) -> dict[str, AsyncPair]:
    theirs = clients[0].lock("bench:redis-py", timeout=LEASE)
    locks = {
        "RedLock": RedLock("bench:redlock", using=f"{place} five"),
        "RedLock without fencing": RedLock("bench:unfenced", fencing=False, using=f"{place} five"),
        "RLock, one node": RLock("bench:rlock", using=f"{place} one"),
    }
    pottery_lock = pottery.AIORedlock(key="bench", masters=set(clients), auto_release_time=LEASE)
    return {
        **{name: as_async_pair(lock.aacquire, lock.arelease) for name, lock in locks.items()},
        "pottery": as_async_pair(pottery_lock.acquire, pottery_lock.release),
        "redis-py, one node": as_async_pair(theirs.acquire, theirs.release),
    }


def ping_row(near: Sequence[str], far: Sequence[str], pings: int) -> Row:
    """What the proxy adds to a PING, or to one for each of several nodes at once: no more, if it keeps them together.

    The time is measured until the last reply.
    """
    with ExitStack() as stack:
        here, there = ([stack.enter_context(connection(url)) for url in urls] for urls in (near, far))
        added = [ping_all(there) - ping_all(here) for _ in range(pings)]
    what = "a PING" if len(near) == 1 else f"{len(near)} PINGs at once"
    return median_row(f"what the proxy adds to {what}", [1000 * seconds for seconds in added], "ms")


def connection(url: str) -> socket.socket:
    """A plain socket, so that a client's own work does not count."""
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port))


def ping_all(connections: Sequence[socket.socket]) -> float:
    started = time.perf_counter()
    for each in connections:
        each.sendall(b"PING\r\n")
    for each in connections:
        each.recv(64)
    return time.perf_counter() - started
