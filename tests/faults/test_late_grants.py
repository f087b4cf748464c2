"""A grant whose lease is over before its acquire returns: it is given back, and tried again while the wait lasts."""

import threading
from typing import Any

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockLostError,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
    ReadLock,
    ReadWriteLock,
    RLock,
    SpinLock,
)
from django_rlock._core.clock import monotonic
from django_rlock._redis import scripts
from django_rlock.locks import acquire, watchdog
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_acquired
from tests.apart import ApartLock
from tests.eventually import UNTIL_SERVED

pytestmark = pytest.mark.lengthy

LEASE = 0.4
"""Seconds: so short that a test may wait for its end, and longer than a busy machine takes for a reply."""

SLOW = "the reply that granted it took [0-9]+ ms, which is longer than its lease of 400 ms"


def several(first: Any, second: Any) -> Any:
    """Makes a MultiLock of two kinds."""
    return lambda name, **times: MultiLock(first(f"{name}, a"), second(f"{name}, b"), **times)


KINDS: dict[str, tuple[Any, scripts.Script]] = {
    "fair": (FairLock, scripts.FAIR_ACQUIRE),
    "rlock": (RLock, scripts.RLOCK_ACQUIRE),
    "spin": (SpinLock, scripts.RLOCK_ACQUIRE),
    "fenced": (FencedLock, scripts.FENCED_ACQUIRE),
    "read": (lambda name, **times: ReadWriteLock(name, **times).read_lock, scripts.READ_ACQUIRE),
    "write": (lambda name, **times: ReadWriteLock(name, **times).write_lock, scripts.WRITE_ACQUIRE),
}
MULTI: dict[str, tuple[Any, scripts.Script]] = {
    "multi, one script": (several(RLock, RLock), scripts.MULTI_ACQUIRE),
    "multi, one script, with a token": (several(FencedLock, ReadLock), scripts.MULTI_ACQUIRE),
    "multi, the last member": (several(ApartLock, RLock), scripts.RLOCK_ACQUIRE),
    "multi, the first member": (several(ApartLock, RLock), scripts.FENCED_ACQUIRE),
}


def late(proxy, script):
    """Keep the next reply to a script until a lease that it granted is over."""
    reply = proxy.hold_reply(script)

    def let_go() -> None:
        reply.served.wait(UNTIL_SERVED)
        threading.Event().wait(LEASE)
        reply.let_go.set()

    threading.Thread(target=let_go, daemon=True).start()
    return reply


async def is_free(binding, lock) -> None:
    """Wait until the background thread has given everything back."""

    async def is_taken() -> bool:
        return await binding.call(lock, "locked")

    while await is_taken():
        await binding.sleep(0.01)
    assert HOLDS.snapshot() == []


@pytest.mark.parametrize("kind", KINDS | MULTI)
async def test_is_tried_again_while_the_wait_lasts(binding, proxy, kind):
    make, script = (KINDS | MULTI)[kind]
    lock = make("stock:42", lease_time=LEASE, wait_time=5)
    reply = late(proxy, script)
    assert await binding.acquire(lock, lease_time=LEASE)
    assert reply.served.is_set()
    assert not lock.lost
    assert {hold.count for hold in HOLDS.snapshot()} == {1}
    await binding.release(lock)
    await is_free(binding, lock)


@pytest.mark.parametrize("kind", KINDS | MULTI)
async def test_without_a_wait_the_server_is_too_slow(binding, proxy, kind):
    make, script = (KINDS | MULTI)[kind]
    lock = make("stock:42", lease_time=LEASE)
    late(proxy, script)
    with pytest.raises(LockUnavailableError, match=SLOW):
        await binding.acquire(lock, blocking=False)
    await is_free(binding, lock)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_thread_that_is_late_itself(binding, redis_client, monkeypatch, kind):
    """The reply came in time, so the server is not to blame."""
    make, _ = KINDS[kind]
    watch = watchdog.watch

    def stall(hold) -> None:
        watch(hold)
        monkeypatch.setattr(acquire, "watch", watch)
        hold.deadline = monotonic()

    lock = make("stock:42", wait_time=5)
    monkeypatch.setattr(acquire, "watch", stall)
    assert await binding.acquire(lock, blocking=False) is False
    monkeypatch.setattr(acquire, "watch", stall)
    assert await binding.acquire(lock)
    assert not lock.lost
    assert HOLDS.snapshot()[0].count == 1
    await binding.release(lock)
    await is_free(binding, lock)


async def test_a_receiver_that_takes_longer_than_the_lease(binding, redis_client):
    slow = threading.Event()

    def wait(**_: object) -> None:
        if not slow.is_set():
            slow.set()
            threading.Event().wait(LEASE)

    lost: list[object] = []
    lock = RLock("stock:42", lease_time=LEASE, wait_time=5, on_lost=lost.append)
    lock_acquired.connect(wait)
    try:
        assert await binding.acquire(lock)
    finally:
        lock_acquired.disconnect(wait)
    assert not lock.lost
    await binding.release(lock)
    await binding.until(lambda: lost == [lock])


async def test_entering_again_after_the_end_of_the_lease_says_that_it_is_lost(binding, proxy):
    lock = FairLock("stock:42", lease_time=LEASE)
    await binding.acquire(lock)
    late(proxy, scripts.FAIR_ACQUIRE)
    with pytest.raises(LockLostError):
        await binding.acquire(lock)
    with pytest.raises(LockLostError):
        await binding.release(lock)
    assert HOLDS.snapshot() == []


async def test_an_extension_that_is_over_says_that_it_is_lost(binding, proxy):
    lock = FairLock("stock:42")
    await binding.acquire(lock)
    late(proxy, scripts.LOCK_EXTEND)
    with pytest.raises(LockLostError):
        await binding.call(lock, "extend", LEASE)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_a_block_is_entered_with_a_lease_that_still_runs(binding, proxy):
    lock = FairLock("stock:42", lease_time=LEASE, wait_time=5)
    reply = late(proxy, scripts.FAIR_ACQUIRE)
    async with binding.inside(lock):
        assert reply.served.is_set()
        assert not lock.lost
    await is_free(binding, lock)


async def test_a_multilock_whose_first_member_is_lost_by_the_time_of_the_last(binding, proxy, redis_client):
    """The second one is in time, since it was asked for much later."""
    lock = MultiLock(ApartLock("a"), RLock("b"), lease_time=LEASE, wait_time=5)
    reply = proxy.hold(scripts.RLOCK_ACQUIRE)

    def let_go() -> None:
        reply.served.wait(UNTIL_SERVED)
        (first,) = HOLDS.snapshot()
        first.deadline = monotonic()
        reply.let_go.set()

    threading.Thread(target=let_go, daemon=True).start()
    assert await binding.acquire(lock)
    assert not lock.lost
    await binding.release(lock)
    await is_free(binding, lock)


@pytest.mark.parametrize("renewed", [False, True])
async def test_permits_are_tried_again_while_the_wait_lasts(binding, proxy, redis_client, settings, renewed):
    settings.RLOCK = {"default": {**getattr(settings, "RLOCK", {}).get("default", {}), "WATCHDOG_TIMEOUT": LEASE}}
    semaphore = PermitExpirableSemaphore("licences")
    await binding.call(semaphore, "try_set_permits", 1)
    reply = late(proxy, scripts.PERMIT_ACQUIRE)
    times = {"renewed": True} if renewed else {"lease_time": LEASE}
    permit = await binding.acquire(semaphore, wait_time=5, **times)
    assert reply.served.is_set()
    assert not permit.lost
    await binding.call(semaphore, "release", permit)
    assert await binding.call(semaphore, "available_permits") == 1


async def test_permits_without_a_wait_are_given_back(binding, proxy):
    semaphore = PermitExpirableSemaphore("licences")
    await binding.call(semaphore, "try_set_permits", 1)
    late(proxy, scripts.PERMIT_ACQUIRE)
    with pytest.raises(LockUnavailableError, match=SLOW):
        await binding.acquire(semaphore, blocking=False, lease_time=LEASE)
    assert HOLDS.snapshot() == []
