"""The read-write lock on every topology: its scripts name keys by what they read, all in the lock's slot."""

from django_rlock import FairLock, ReadWriteLock
from django_rlock._redis.keys import writers_key
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import until_renewed
from tests.bindings import waiting

KEY = "rlock:prices"


async def visit(binding, lock) -> bool:
    async with binding.inside(lock):
        return True


async def waiting_long(binding, count) -> None:
    """No look of their own brings them in: those come with the lease's end, or a heartbeat, at the earliest."""
    await waiting(binding, count)
    assert all(wait.heartbeat_at - wait.since > 1 for wait in WAITS.snapshot())


async def test_readers_and_writers_wake_each_other(binding, topology):
    lock = ReadWriteLock("prices", prefer="writer")
    await binding.acquire(lock.read_lock)
    await binding.acquire(lock.read_lock)
    assert await binding.result(binding.start(visit, binding, lock.read_lock))
    writer = binding.start(visit, binding, lock.write_lock)
    await waiting_long(binding, 1)
    await binding.until(lambda: topology.redis.exists(writers_key(KEY)))
    reader = binding.start(visit, binding, lock.read_lock)
    await waiting_long(binding, 2)
    for _ in range(2):
        await binding.release(lock.read_lock)
    assert await binding.result(writer)
    assert await binding.result(reader)
    assert not topology.redis.exists(KEY)


async def test_writer_steps_down(binding, topology):
    lock = ReadWriteLock("prices")
    await binding.acquire(lock.write_lock)
    await binding.acquire(lock.read_lock)
    reader = binding.start(visit, binding, lock.read_lock)
    await waiting_long(binding, 1)
    await binding.release(lock.write_lock)
    assert await binding.result(reader)
    await binding.release(lock.read_lock)
    assert not topology.redis.exists(KEY)


async def test_renewed_and_forced(binding, topology):
    lock = ReadWriteLock("prices")
    for side in (lock.read_lock, lock.write_lock):
        await binding.acquire(side)
        until_renewed(*HOLDS.snapshot())
        assert await binding.call(side, "owned")
        assert await binding.call(FairLock("prices"), "force_release")
        assert not topology.redis.exists(KEY)
        HOLDS.clear()
