"""A server whose replies take long: the first call of a process succeeds, for connecting takes many round trips."""

import heapq
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Self

import pytest

from django_rlock import FairLock, LockUnavailableError, PermitExpirableSemaphore, RLock
from django_rlock._transport import async_pool, calls, pool, servers
from django_rlock._transport.servers import server
from django_rlock.locks.redlock import RedLock
from tests.bindings import visit
from tests.eventually import PATIENCE
from tests.forms import long
from tests.topologies.pools import TOKEN, AsItBlocks, AsItGives, AsItMakes
from tests.topologies.servers import command
from tests.topologies.ways import PASSWORD, port_of


class Delay:
    """A TCP proxy that brings all bytes ``seconds`` late, each way; none while it ``is_silent``."""

    def __init__(self, port: int, seconds: float) -> None:
        self._target = "127.0.0.1", port
        self._seconds = seconds
        self._accepting = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._accepting]
        self._due: list[tuple[float, int, socket.socket, bytes]] = []
        self._numbers = itertools.count()
        self._arrived = threading.Condition()
        self.port = self._accepting.getsockname()[1]
        self.accepted = 0
        self.scripts = 0
        self.is_silent = False

    @contextmanager
    def running(self) -> Iterator[Self]:
        for work in (self._accept, self._deliver):
            threading.Thread(target=work, daemon=True).start()
        try:
            yield self
        finally:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._accepting.accept()
                self.accepted += 1
                upstream = socket.create_connection(self._target)
                self._open += client, upstream
                for pair in ((client, upstream), (upstream, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        data = b"the first"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            self.scripts += data.count(b"EVALSHA")
            if not self.is_silent:
                with self._arrived:
                    heapq.heappush(self._due, (time.monotonic() + self._seconds, next(self._numbers), target, data))
                    self._arrived.notify()

    def _deliver(self) -> None:
        while True:
            with self._arrived:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._arrived.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, target, data = heapq.heappop(self._due)
            with suppress(OSError):
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def distant(started, use) -> Iterator[Callable[..., Delay]]:
    """Makes a topology the default alias, with a number of seconds for each round trip to its server or sentinel."""
    with ExitStack() as stack:

        def reach(name: str, round_trip: float, **options: object) -> Delay:
            chosen = started(name)
            port = port_of(chosen.sentinel or chosen.servers[0])
            delay = stack.enter_context(Delay(port, round_trip / 2).running())
            behind = {"SENTINELS": [("127.0.0.1", delay.port)]} if chosen.sentinel else {}
            location = chosen.location.replace(str(port), str(delay.port))
            use(replace(chosen, location=location, options=chosen.options | behind | options))
            return delay

        yield reach


def limit_replies(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in (calls, pool, async_pool):
        monkeypatch.setattr(module, "REPLY_GRACE", seconds)


@pytest.mark.parametrize("name", ["tls", "sentinel-tls", *long("single", "acl", "sentinel")])
@pytest.mark.parametrize("round_trip", [0.3, *long(0.05, 0.15, 0.2, 0.4)])
async def test_the_first_call_without_a_wait_succeeds(binding, distant, name, round_trip):
    delay = distant(name, round_trip)
    lock = RLock("stock:42")
    assert await binding.acquire(lock, wait_time=0)
    await binding.release(lock)
    assert delay.accepted == server("default").size == 1


@pytest.mark.parametrize("pool_class", [AsItMakes, AsItGives, *long(AsItBlocks)])
async def test_also_over_a_pool_of_the_project(binding, distant, pool_class, monkeypatch):
    """It connects before it gives the connection to this package."""
    monkeypatch.setitem(TOKEN, "now", PASSWORD)
    distant("tls", 0.3, CONNECTION_POOL_CLASS=f"{pool_class.__module__}.{pool_class.__name__}")
    assert await binding.acquire(RLock("stock:42"), wait_time=0)
    await binding.release(RLock("stock:42"))


async def test_a_call_that_has_to_bring_its_script_is_given_time_for_both_replies(binding, distant, started):
    """The server has restarted: it replies that it does not know the script."""
    distant("single", 0.6)
    lock = RLock("stock:42")
    await visit(binding, lock)
    command(started("single").servers[0], "SCRIPT FLUSH")
    assert await binding.acquire(lock, wait_time=0)
    await binding.release(lock)


async def test_the_first_call_over_distant_nodes_succeeds(binding, own_server, settings, monkeypatch):
    """A node that replies to each step of the login in time is up, although the login as a whole takes longer."""
    monkeypatch.setattr(servers, "CONNECT_WITHIN", 1)
    with ExitStack() as stack:
        nodes = [own_server(None, port=0, args=["--requirepass", PASSWORD]) for _ in range(3)]
        delays = [stack.enter_context(Delay(port_of(node), 0.3).running()) for node in nodes]
        urls = [f"redis://:{PASSWORD}@127.0.0.1:{delay.port}/1" for delay in delays]
        settings.RLOCK = {"default": {"NODES": urls, "NODE_TIMEOUT": 2, "WATCHDOG_TIMEOUT": 100, "QUARANTINE": 0}}
        lock = RedLock("stock:42")
        assert await binding.acquire(lock, wait_time=0)
        await binding.release(lock)
    assert [delay.accepted for delay in delays] == [1, 1, 1]


async def test_a_connection_that_opens_too_late_serves_the_next_call(binding, distant, monkeypatch):
    """Here the server is further away than a call may wait for a reply."""
    distant("single", 0.4)
    limit_replies(monkeypatch, 0.1)
    with pytest.raises(LockUnavailableError):
        await binding.acquire(RLock("stock:42"), wait_time=0)
    await binding.until(lambda: server("default").idle)
    limit_replies(monkeypatch, PATIENCE)
    await visit(binding, RLock("stock:42"))
    assert server("default").size == 1


async def test_a_server_that_falls_silent_during_the_login_is_given_up(binding, distant, monkeypatch):
    """Each reply is waited for a second, not the login as a whole."""
    delay = distant("single", 0.0)
    delay.is_silent = True
    limit_replies(monkeypatch, 0.2)
    began = time.monotonic()
    with pytest.raises(LockUnavailableError, match="Timeout connecting"):
        await binding.acquire(RLock("stock:42"), wait_time=0)
    assert time.monotonic() - began < PATIENCE / 20, "it is redis-py's limit that ended it"


@pytest.mark.parametrize("make", [FairLock, RLock, PermitExpirableSemaphore])
async def test_a_lease_that_is_shorter_than_a_round_trip_is_not_tried_without_pauses(binding, distant, make):
    """It was tried again at once: a waiter sent hundreds of commands a second."""
    lock = make(make.__name__)
    delay = distant("single", 0.01)
    if make is PermitExpirableSemaphore:
        await binding.call(lock, "try_set_permits", 1)
    with pytest.raises(LockUnavailableError, match=r"took \d+ ms, which is longer than its lease of 3 ms"):
        await binding.acquire(lock, wait_time=1, lease_time=0.003)
    assert 3 <= delay.scripts <= 30
