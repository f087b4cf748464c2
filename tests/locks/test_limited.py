"""``permits=``: a lock that so many owners hold at once."""

import threading
from typing import Any

import pytest

from django_rlock import LimitedLock, LockTimeoutError, ReadWriteLock, distributed_lock, rlock
from django_rlock._monitoring import reporter
from django_rlock.locks.holds import HOLDS
from tests.beside import beside
from tests.bindings import elsewhere, visit, waiting
from tests.eventually import UNTIL_SERVED, eventually

KEY = "rlock:printers"


async def others(binding: Any, count: int) -> list[LimitedLock]:
    """Locks of other owners, which hold one of three permits each."""
    locks = [rlock("printers", permits=3, owner=f"owner {number}", wait_time=0) for number in range(count)]
    for lock in locks:
        assert await binding.acquire(lock)
    return locks


@pytest.fixture
def release():
    """Releases what the given locks hold."""
    held: list[LimitedLock] = []
    yield held.extend
    for lock in held:
        lock.release()


async def test_so_many_hold_it_at_once(binding, redis_client, release):
    release(await others(binding, 2))
    lock = rlock("printers", permits=3, wait_time=0)
    async with binding.inside(lock):
        assert await elsewhere(binding, lock, "acquire") is False
        async with binding.inside(lock):  # its owner needs no second permit
            assert await binding.call(lock, "hold_count") == 2
        assert await elsewhere(binding, lock, "acquire") is False
    assert await binding.acquire(lock)
    await binding.release(lock)


async def test_a_release_lets_a_waiter_in(binding, release):
    held = await others(binding, 3)
    release(held[1:])
    lock = rlock("printers", permits=3, wait_time=UNTIL_SERVED)

    visitor = binding.start(visit, binding, lock)
    await waiting(binding)
    await binding.release(held[0])
    await binding.result(visitor)


async def test_permits_of_the_dead_come_back(binding, redis_client, release):
    held = await others(binding, 3)
    release(held[:2])
    [dead] = [hold for hold in HOLDS.snapshot() if hold.owner_id == "owner 2"]
    HOLDS.remove(dead)  # as if its process were gone: nobody renews it
    [key] = redis_client.keys(f"*{KEY}*:owner 2:rwlock_timeout:1")
    redis_client.pexpire(key, 100)
    lock = rlock("printers", permits=3, wait_time=UNTIL_SERVED)
    async with binding.inside(lock):
        assert not await elsewhere(binding, lock, "acquire", blocking=False)


async def test_a_changed_number_takes_effect_by_itself(binding, release):
    release(await others(binding, 3))
    assert not await binding.acquire(rlock("printers", permits=3), blocking=False)
    assert not await binding.acquire(rlock("printers", permits=2), blocking=False)
    async with binding.inside(rlock("printers", permits=4, wait_time=0)):
        pass


async def test_a_writer_waits_for_all_of_them_and_keeps_them_out(binding):
    held = await others(binding, 2)
    writer = ReadWriteLock("printers", wait_time=0).write_lock
    assert not await binding.acquire(writer)
    for lock in held:
        await binding.release(lock)
    async with binding.inside(writer):
        assert not await binding.acquire(rlock("printers", permits=3, owner="another"), blocking=False)


async def test_the_admin_sees_holders_and_waiters(binding, release, monkeypatch):
    monkeypatch.setattr(reporter, "MIN_AGE", 0.0)
    held = await others(binding, 3)
    release(held[1:])
    lock = rlock("printers", permits=3, wait_time=UNTIL_SERVED)

    visitor = binding.start(visit, binding, lock)
    await waiting(binding)
    info = await binding.call(lock, "info")
    assert {holder.owner for holder in info.holders} == {"owner 0", "owner 1", "owner 2"}
    assert (info.kind, info.waiting) == ("limited", 1)
    await binding.release(held[0])
    await binding.result(visitor)


def test_function_that_three_may_run_at_once():
    inside, enough = threading.Semaphore(0), threading.Event()

    @distributed_lock("printers", permits=3, wait_time=0)
    def work() -> None:
        inside.release()
        assert enough.wait(UNTIL_SERVED)

    with beside(work), beside(work), beside(work):
        for _ in range(3):
            assert inside.acquire(timeout=UNTIL_SERVED)
        with pytest.raises(LockTimeoutError):
            work()
        enough.set()
    eventually(lambda: not rlock("printers").locked())
    work()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"permits": 0}, "permits must be a whole number from 1"),
        ({"permits": True}, "permits must be a whole number"),
        ({"permits": 3, "kind": "fair"}, "makes a lock of its own kind"),
        ({"permits": 3, "at_least": 60}, "cannot be kept after its release"),
        ({"kind": "read", "at_least": 60}, "cannot be kept after its release"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        rlock("printers", **options)
    with pytest.raises((TypeError, ValueError), match=message):
        distributed_lock("printers", **options)
