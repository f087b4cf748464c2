"""RedissonReadWriteLockTest."""

from __future__ import annotations

import time
from itertools import count

import pytest

from django_rlock import LockUpgradeError, ReadLock, WriteLock
from django_rlock._transport.identity import NamedOwner
from django_rlock.locks.holds import HOLDS, WAITS
from tests.bindings import visit
from tests.redisson.crowds import LOOPS, PROCESSES, all_together, in_processes

pytestmark = pytest.mark.lengthy

LONG = 20
"""A lease that does not end while a test runs, in seconds."""


def lease_end(lock: ReadLock) -> float:
    """When the lease of a named owner's hold ends, as far as is known by now."""
    hold = HOLDS.get(lock, NamedOwner(lock.owner or ""))
    assert hold is not None
    return hold.deadline


async def all_lost(binding) -> None:
    """Until the watchdog has seen that leases have ended."""
    await binding.until(lambda: all(hold.lost for hold in HOLDS.snapshot()))


@pytest.mark.lengthy
async def test_read_lock_expiration(binding):
    """A writer enters when the last reader leaves: the lease that another one had has ended without effect."""
    long, short = ReadLock("lock", owner="long"), ReadLock("lock", owner="short")
    await binding.acquire(long, lease_time=LONG)
    await binding.acquire(short, lease_time=3)
    ends = lease_end(short)
    writer = binding.start(visit, binding, WriteLock("lock"))
    await binding.until(WAITS.snapshot)
    await binding.release(short)
    await binding.until(lambda: time.monotonic() > ends)
    assert len(WAITS.snapshot()) == 1
    await binding.release(long)
    await binding.result(writer)


@pytest.mark.thorough
async def test_read_lock_expiration_renewal(binding, settings):
    """Readers for longer than the watchdog's timeout; every release finds its hold."""
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 5.0}}
    owners = count()

    async def read_twice() -> None:
        lock = ReadLock("lock", owner=f"reader {next(owners)}")
        for _ in range(2):
            async with binding.inside(lock):
                first_end = lease_end(lock)
                await binding.until(lambda end=first_end: time.monotonic() > end)

    await all_together(binding, 10, read_twice)


@pytest.mark.lengthy
async def test_read_lock_lease_timeout(binding, redis_client):
    """The reader itself may write when its lease has ended, which the end of an inner hold counts anew."""
    read, write = ReadLock("lock", lease_time=2), WriteLock("lock", wait_time=0)
    for _ in range(2):
        await binding.acquire(read)
    await binding.release(read)
    with pytest.raises(LockUpgradeError):
        await binding.acquire(write)
    await binding.until(lambda: not redis_client.exists("rlock:lock"))
    await all_lost(binding)
    assert await binding.acquire(write)
    await binding.release(write)


@pytest.mark.parametrize(("pairs", "loops"), [(2, 2 * LOOPS), (12, 1)], ids=["loop", "once"])
def test_concurrency_multi_instance(clients, redis_client, pairs, loops):
    """Ported from testConcurrencyLoop_MultiInstance and testConcurrency_MultiInstance: every other one reads."""
    pair = [f"count({loops}, lambda: WriteLock('lock'))", f"look({loops}, lambda: ReadLock('lock'))"]
    in_processes(clients, pair * pairs)
    assert redis_client.get("counter") == str(PROCESSES * pairs * loops)
