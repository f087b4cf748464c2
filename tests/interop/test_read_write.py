"""Readers of both sides at once: who keeps whose writers out, for how long, and who is woken."""

from __future__ import annotations

import pytest

from django_rlock import LockLostError, LockUpgradeError, ReadWriteLock
from tests.bindings import elsewhere
from tests.eventually import UNTIL_SERVED
from tests.interop.redisson import JavaError, read_lock, write_lock
from tests.interop.sites import waiting_here

LONG = 600
SHORT = 0.1


async def read(binding, lock: ReadWriteLock) -> None:
    await binding.acquire(lock.read_lock, lease_time=LONG)
    await binding.release(lock.read_lock)


@pytest.fixture
def ours(name) -> ReadWriteLock:
    return ReadWriteLock(name)


async def test_writers_wait_for_the_readers_of_both_sides(binding, ours, name, site, alice, bob):
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    for _ in range(2):
        assert await binding.acquire(ours.read_lock, lease_time=LONG)
    assert bob.do(write_lock(name), "tryLock") is False
    alice.do(read_lock(name), "unlock")
    await binding.release(ours.read_lock)
    assert bob.do(write_lock(name), "tryLock") is False
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    await binding.release(ours.read_lock)
    assert await binding.acquire(ours.write_lock, blocking=False) is False
    alice.do(read_lock(name), "unlock")
    await binding.until(lambda: site.names() == [])
    assert await binding.acquire(ours.write_lock, blocking=False) is True
    await binding.release(ours.write_lock)


async def test_all_readers_in_java_wake_when_python_has_written(binding, ours, name, site, java):
    readers = [java("alice"), java("bob")]
    assert await binding.acquire(ours.write_lock, lease_time=LONG)
    site.start_counting()
    waiting = [reader.begin(read_lock(name), "lock", LONG, "SECONDS") for reader in readers]
    await binding.until(lambda: site.tries() >= 4 and all(reader.sleeps() for reader in readers))
    await binding.release(ours.write_lock)
    for each in waiting:
        each.result(UNTIL_SERVED)
    for reader in readers:
        reader.do(read_lock(name), "unlock")
    await binding.until(lambda: site.names() == [])


async def test_all_readers_in_python_wake_when_java_has_written(binding, ours, name, site, alice):
    alice.do(write_lock(name), "lock", LONG, "SECONDS")
    waiting = [binding.start(read, binding, ours) for _ in range(2)]
    await binding.until(lambda: waiting_here() == 2)
    alice.do(write_lock(name), "unlock")
    await binding.results(waiting)
    await binding.until(lambda: site.names() == [])


async def test_readers_in_java_wake_when_a_writer_in_python_steps_down(binding, ours, name, site, alice):
    """Of which Redisson's own writer notifies no one."""
    for side in ours.write_lock, ours.read_lock:
        assert await binding.acquire(side, lease_time=LONG)
    site.start_counting()
    waiting = alice.begin(read_lock(name), "lock", LONG, "SECONDS")
    await binding.until(lambda: site.tries() >= 2 and alice.sleeps())
    await binding.release(ours.write_lock)
    waiting.result(UNTIL_SERVED)
    assert await binding.acquire(ours.read_lock, lease_time=LONG), "it reads still"
    for _ in range(2):
        await binding.release(ours.read_lock)
    assert alice.do(write_lock(name), "tryLock") is False
    alice.do(read_lock(name), "unlock")


async def test_writer_in_java_may_read_and_step_down(binding, ours, name, site, alice):
    for side in write_lock(name), read_lock(name):
        alice.do(side, "lock", LONG, "SECONDS")
    assert await binding.acquire(ours.read_lock, blocking=False) is False
    alice.do(write_lock(name), "unlock")
    assert await binding.acquire(ours.read_lock, blocking=False) is True
    assert await binding.call(ours.write_lock, "locked") is False
    alice.do(read_lock(name), "unlock")
    await binding.release(ours.read_lock)
    await binding.until(lambda: site.names() == [])


async def test_javas_release_leaves_pythons_reader_its_lease(binding, ours, name, site, alice):
    """Redisson gives the lock the longest lease of the readers' holds, which it finds by the names of their keys."""
    for _ in range(2):
        assert await binding.acquire(ours.read_lock, lease_time=LONG)
    alice.do(read_lock(name), "lock", 5, "SECONDS")
    alice.do(read_lock(name), "unlock")
    assert site.client.pttl(name) / 1000 > LONG - 60
    await binding.release(ours.read_lock)
    alice.do(read_lock(name), "lock", 5, "SECONDS")
    alice.do(read_lock(name), "unlock")
    assert site.client.pttl(name) / 1000 > LONG - 60
    await binding.release(ours.read_lock)


async def test_pythons_release_leaves_javas_reader_its_lease(binding, ours, name, site, alice):
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    assert await binding.acquire(ours.read_lock, lease_time=5)
    await binding.release(ours.read_lock)
    assert site.client.pttl(name) / 1000 > LONG - 60
    alice.do(read_lock(name), "unlock")


async def test_dead_reader_in_java_keeps_nobody_waiting(binding, ours, name, site, alice, bob):
    assert await binding.acquire(ours.read_lock, lease_time=LONG)
    alice.do(read_lock(name), "lock", int(SHORT * 1000), "MILLISECONDS")
    await binding.until(lambda: len(site.names()) == 2)
    site.start_counting()
    waiting = bob.begin(write_lock(name), "lock", LONG, "SECONDS")
    await binding.until(lambda: site.tries() >= 2 and bob.sleeps())
    await binding.release(ours.read_lock)
    waiting.result(UNTIL_SERVED)
    bob.do(write_lock(name), "unlock")


async def test_dead_reader_in_python_keeps_nobody_waiting(binding, ours, name, site, alice, bob):
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    assert await binding.acquire(ours.read_lock, lease_time=SHORT)
    await binding.until(lambda: len(site.names()) == 2)
    site.start_counting()
    waiting = bob.begin(write_lock(name), "lock", LONG, "SECONDS")
    await binding.until(lambda: site.tries() >= 2 and bob.sleeps())
    alice.do(read_lock(name), "unlock")
    waiting.result(UNTIL_SERVED)
    bob.do(write_lock(name), "unlock")
    with pytest.raises(LockLostError):
        await binding.release(ours.read_lock)


async def test_no_side_upgrades(binding, ours, name, site, alice):
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    assert alice.do(write_lock(name), "tryLock") is False
    assert await binding.acquire(ours.read_lock, lease_time=LONG)
    with pytest.raises(LockUpgradeError):
        await binding.acquire(ours.write_lock)
    await binding.release(ours.read_lock)
    alice.do(read_lock(name), "unlock")


async def test_java_forces_the_readers(binding, ours, name, site, alice, bob):
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    assert await binding.acquire(ours.read_lock)
    assert bob.do(write_lock(name), "forceUnlock") is False
    assert bob.do(read_lock(name), "forceUnlock") is True
    with pytest.raises(LockLostError):
        await binding.release(ours.read_lock)
    with pytest.raises(JavaError, match=r"^IllegalMonitorStateException"):
        alice.do(read_lock(name), "unlock")


async def test_python_forces_the_readers(binding, ours, name, site, alice):
    alice.do(read_lock(name), "lock", LONG, "SECONDS")
    assert await binding.acquire(ours.read_lock)
    assert await elsewhere(binding, ours.read_lock, "force_release") is True
    with pytest.raises(LockLostError):
        await binding.release(ours.read_lock)
    with pytest.raises(JavaError, match=r"^IllegalMonitorStateException"):
        alice.do(read_lock(name), "unlock")
    await binding.until(lambda: site.names() == [])  # Redisson deletes its latch after it has replied
