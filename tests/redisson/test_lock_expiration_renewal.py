"""RedissonLockExpirationRenewalTest and RedissonReadLockEntryTest: what the watchdog renews, and for how long."""

from __future__ import annotations

import pytest

from django_rlock import LockLostError, ReadWriteLock, RLock
from django_rlock.locks.holds import HOLDS
from tests.bindings import held_elsewhere

SHORT = {"WATCHDOG_TIMEOUT": 3.0}

sides = pytest.mark.parametrize(
    "make",
    [RLock, lambda name: ReadWriteLock(name).read_lock, lambda name: ReadWriteLock(name).write_lock],
    ids=["lock", "read", "write"],
)


async def renewed(binding) -> None:
    """Until the watchdog has renewed what is held."""
    (hold,) = [hold for hold in HOLDS.snapshot() if hold.lost is None]
    before = hold.deadline
    await binding.until(lambda: hold.deadline > before)


@pytest.mark.lengthy
@sides
async def test_lock_after_timeout(binding, own_server, settings, make):
    """Ported from testLockAfterTimeout, testReadLockAfterTimeout and testWriteLockAfterTimeout.

    The server comes back without its data: the release tells of it, and what is taken anew is renewed as ever.
    """
    server = own_server()
    settings.RLOCK = {"default": SHORT}
    await binding.acquire(make("lock"))
    server.restart()
    # Now there is a connection. The release would find the old one closed, send its command twice, and could not
    # know whether the first one was obeyed.
    assert not await binding.call(make("lock"), "locked")
    with pytest.raises(LockLostError):
        await binding.release(make("lock"))
    await binding.acquire(make("lock"))
    await renewed(binding)
    await binding.release(make("lock"))


@pytest.mark.lengthy
async def test_lock_reentrant_renew(binding, settings):
    """The end of an inner hold ends no renewal, neither its own lock's nor another owner's."""
    settings.RLOCK = {"default": SHORT}
    lock = RLock("lock")
    for _ in range(2):
        async with binding.inside(lock), binding.inside(lock):
            pass
    async with held_elsewhere(binding, lock):
        for _ in range(2):
            await renewed(binding)
        assert await binding.call(lock, "locked")
    async with binding.inside(lock):
        async with binding.inside(lock):
            pass
        await renewed(binding)
