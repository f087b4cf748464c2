"""The read-write lock on every topology: its scripts name keys by what they read, all in the lock's slot."""

from django_rlock import FairLock, ReadWriteLock
from django_rlock._redis.keys import writers_key
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import until_renewed
from tests.faces import waiting

KEY = "rlock:prices"


async def visit(face, lock) -> bool:
    async with face.inside(lock):
        return True


async def waiting_long(face, count) -> None:
    """No look of their own brings them in: those come with the lease's end, or a heartbeat, at the earliest."""
    await waiting(face, count)
    assert all(wait.heartbeat_at - wait.since > 1 for wait in WAITS.snapshot())


async def test_readers_and_writers_wake_each_other(face, topology):
    lock = ReadWriteLock("prices", prefer="writer")
    await face.acquire(lock.read_lock)
    await face.acquire(lock.read_lock)
    assert await face.result(face.start(visit, face, lock.read_lock))
    writer = face.start(visit, face, lock.write_lock)
    await waiting_long(face, 1)
    await face.until(lambda: topology.redis.exists(writers_key(KEY)))
    reader = face.start(visit, face, lock.read_lock)
    await waiting_long(face, 2)
    for _ in range(2):
        await face.release(lock.read_lock)
    assert await face.result(writer)
    assert await face.result(reader)
    assert not topology.redis.exists(KEY)


async def test_writer_steps_down(face, topology):
    lock = ReadWriteLock("prices")
    await face.acquire(lock.write_lock)
    await face.acquire(lock.read_lock)
    reader = face.start(visit, face, lock.read_lock)
    await waiting_long(face, 1)
    await face.release(lock.write_lock)
    assert await face.result(reader)
    await face.release(lock.read_lock)
    assert not topology.redis.exists(KEY)


async def test_renewed_and_forced(face, topology):
    lock = ReadWriteLock("prices")
    for side in (lock.read_lock, lock.write_lock):
        await face.acquire(side)
        until_renewed(*HOLDS.snapshot())
        assert await face.call(side, "owned")
        assert await face.call(FairLock("prices"), "force_release")
        assert not topology.redis.exists(KEY)
        HOLDS.clear()
