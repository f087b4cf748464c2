"""RedissonRedLockTest. It combines lock objects; ours is a lock over independent servers, here three."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pytest_django import Settings

from django_rlock import rlock
from django_rlock.locks import BaseLock
from example_project.embedded import EmbeddedServer
from tests.redisson.crowds import all_together

OPTIONS = {"NODE_TIMEOUT": 1.0, "QUARANTINE": 0}
"""Patient, since all the servers share a busy machine."""
LEASE = 20
"""Seconds; none is to end here, however slow the machine."""


@pytest.fixture(scope="module")
def _three_servers() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer()) for _ in range(3)]


@pytest.fixture
def nodes(_three_servers: list[EmbeddedServer], settings: Settings) -> list[EmbeddedServer]:
    settings.RLOCK = {"quorum": {"NODES": [server.url for server in _three_servers], **OPTIONS}}
    for server in _three_servers:
        with server.client() as client:
            client.flushall()
    return _three_servers


def red_lock(**times: Any) -> BaseLock:
    return rlock("lock", using="quorum", **times)


def take_elsewhere(server: EmbeddedServer) -> None:
    with server.client() as client:
        client.hset("rlock:lock", "somebody", 1)


def give_back_elsewhere(server: EmbeddedServer) -> None:
    with server.client() as client:
        client.delete("rlock:lock")


@pytest.mark.parametrize("times", [{"lease_time": LEASE}, {"lease_time": 60}, {"wait_time": 0.05, "lease_time": LEASE}])
async def test_lock_lease_time(binding, nodes, times):
    """Ported from testLockLeasetimeWithMilliSeconds, …WithSeconds, …WithMinutes and testTryLockLeasetime."""
    counter = [0]

    async def work() -> None:
        for _ in range(5):
            while not await binding.acquire(red_lock(**times)):
                pass
            seen = counter[0]
            await binding.sleep(0.001)
            counter[0] = seen + 1
            await binding.release(red_lock())

    await all_together(binding, 10, work)
    assert counter == [50]


async def test_lock_failed(binding, nodes):
    for server in nodes[1:]:
        take_elsewhere(server)
    assert not await binding.acquire(red_lock(), wait_time=0)
    with nodes[0].client() as client:
        await binding.until(lambda: not client.exists("rlock:lock"))


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_lock_success(binding, nodes, taken):
    """Ported from testLockSuccess and testLockSuccess2."""
    take_elsewhere(nodes[taken])
    assert await binding.acquire(red_lock(), wait_time=0.5, lease_time=LEASE)
    assert await binding.call(red_lock(), "owned")
    await binding.release(red_lock())
    with nodes[taken].client() as client:
        assert client.hgetall("rlock:lock") == {"somebody": "1"}
    for server in nodes:
        give_back_elsewhere(server)


async def test_connection_failed(binding, nodes):
    nodes[2].kill()
    try:
        async with binding.inside(red_lock()):
            assert await binding.call(red_lock(), "owned")
    finally:
        nodes[2].start()


async def test_multi_threads(binding, nodes):
    """Another owner waits until it is released."""
    inside = [0]

    async def second() -> None:
        async with binding.inside(red_lock()):
            inside[0] += 1

    async with binding.inside(red_lock()):
        began = time.monotonic()
        waiting = binding.start(second)
        while time.monotonic() - began < 0.1:
            await binding.sleep(0.01)
        assert inside == [0]
    await binding.result(waiting)
    assert inside == [1]
