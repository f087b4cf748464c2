"""A cluster behind one address, as serverless products offer it: each command may only have keys of one slot."""

from collections.abc import Callable, Iterator

import pytest

from django_rlock import FairLock, LockLostError, MultiLock, RLock
from django_rlock._transport.registry import background_driver
from django_rlock._transport.worker import RETRY
from django_rlock.console.reading import asking
from django_rlock.locks import heartbeats
from django_rlock.locks.holds import HOLDS
from tests.background import renew_now
from tests.bindings import BlockingBinding as Binding
from tests.bindings import visit, waiting
from tests.eventually import PATIENCE
from tests.topologies.conftest import Started
from tests.topologies.servers import Topology

NAMES = "stock:1", "stock:2", "stock:3"


@pytest.fixture
def topology(started: Started, use: Callable[[Topology], None]) -> Iterator[Topology]:
    """A server of which nobody knows yet that it has slots: with changed settings, all begins anew."""
    found = started("one address")
    use(found)
    yield found
    found.redis.flushall()


def keys(topology: Topology) -> list[str]:
    return sorted(key for key in topology.redis.keys("rlock:stock:*"))


async def test_several_locks_are_taken_and_given_back_together(binding: Binding, topology: Topology) -> None:
    for _ in range(2):
        lock = MultiLock(*map(FairLock, NAMES))
        for _ in range(2):
            async with binding.inside(lock):
                assert keys(topology) == [f"rlock:{name}" for name in NAMES]
        assert keys(topology) == []
    assert HOLDS.snapshot() == []


async def test_several_locks_are_taken_all_or_none(binding: Binding, topology: Topology) -> None:
    topology.redis.hset("rlock:stock:3", "another", 1)
    assert not await binding.acquire(MultiLock(*map(FairLock, NAMES)), blocking=False)
    assert keys(topology) == ["rlock:stock:3"]


async def test_locks_taken_alone_are_given_back_together(binding: Binding, topology: Topology) -> None:
    for name in NAMES:
        assert await binding.acquire(FairLock(name))
    topology.redis.delete("rlock:stock:2")
    with pytest.raises(LockLostError, match="stock:2"):
        await binding.release(MultiLock(*map(FairLock, NAMES)))
    assert keys(topology) == []
    assert HOLDS.snapshot() == []


async def test_many_locks_are_renewed(binding: Binding, topology: Topology) -> None:
    for name in NAMES:
        assert await binding.acquire(RLock(name))
    for _ in range(2):
        for name in NAMES:
            topology.redis.pexpire(f"rlock:{name}", 5000)
        renew_now()
        await binding.until(lambda: all(topology.redis.pttl(f"rlock:{name}") > 5000 for name in NAMES))
    assert background_driver("default").location("a") != background_driver("default").location("b")
    for name in NAMES:
        await binding.release(RLock(name))


@pytest.mark.parametrize("retry", [RETRY, PATIENCE], ids=["by its next heartbeat", "by the failure of its heartbeat"])
async def test_a_process_that_waits_for_several_locks_is_woken(
    binding: Binding, topology: Topology, monkeypatch: pytest.MonkeyPatch, retry: float
) -> None:
    monkeypatch.setattr(heartbeats, "RETRY", retry)
    for name in NAMES:
        topology.redis.hset(f"rlock:{name}", "another", 1)
    waits = [binding.start(visit, binding, FairLock(name)) for name in NAMES]
    await waiting(binding, len(NAMES))
    for name in NAMES:
        topology.redis.delete(f"rlock:{name}")
    for name in NAMES:
        heartbeats.heartbeat_soon(FairLock(name))
    await binding.results(waits)


async def test_waiters_are_counted_by_slots(binding: Binding, topology: Topology) -> None:
    for name in NAMES:
        topology.redis.hset(f"rlock:{name}", "another", 1)
    with asking("a test", "default") as server:
        assert server.count_present([f"rlock:{name}" for name in NAMES]) == len(NAMES)
