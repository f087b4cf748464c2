"""RedissonFairLockTest, as far as it is about order and giving up; its keys are not ours."""

from __future__ import annotations

import time

import pytest

from django_rlock import FairLock, LockUnavailableError
from django_rlock.locks.holds import HOLDS, WAITS
from tests.bindings import elsewhere, held_elsewhere, visit
from tests.eventually import UNTIL_SERVED, eventually

KEY = "rlock:lock"
QUEUE = f"rlock_queue:{{{KEY}}}"


async def queue_up(binding, redis_client, bodies):
    """Start bodies that wait, one after the other."""
    started = []
    for number, (body, *args) in enumerate(bodies, 1):
        started.append(binding.start(body, *args))
        await binding.until(lambda number=number: redis_client.zcard(QUEUE) == number)
    return started


async def test_lease_timeout(binding, redis_client):
    """No owner releases it, and each gets it when the lease of the one before has ended; in order."""
    served: list[int] = []

    async def take(number: int) -> None:
        assert await binding.acquire(FairLock("lock"), wait_time=15, lease_time=0.1)
        served.append(number)

    async with held_elsewhere(binding, FairLock("lock")):
        takers = await queue_up(binding, redis_client, [(take, number) for number in range(8)])
    await binding.results(takers)
    assert served == list(range(8))
    await binding.until(lambda: all(hold.lost for hold in HOLDS.snapshot()))


@pytest.mark.parametrize(("wait_time", "served"), [(0.2, False), (20, True)], ids=["give up", "are served"])
def test_timeout_drift(clients, redis_client, settings, wait_time, served):
    """Ported from testWaitTimeoutDrift, testLockAcquiredTimeoutDrift and testFirstThreadDeathTimeoutDrift.

    However many have waited before, one that was killed while it waited costs the next one a claim at most, and what it
    leaves behind has an end.
    """
    short = {"WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}
    settings.RLOCK = {"default": short}
    others, killed = clients(2, **short)
    lock = FairLock("lock")
    lock.acquire()
    visit = f"lock('lock').acquire(wait_time={wait_time}) and lock('lock').release() is None"
    waits = [others.begin(visit, f"waiter {number}") for number in range(10)]
    if served:
        eventually(lambda: redis_client.zcard(QUEUE) == 10)
    else:
        assert [each.result(UNTIL_SERVED) for each in waits] == [False] * 10
    killed.begin("lock('lock').acquire()")
    eventually(lambda: redis_client.zcard(QUEUE) == 1 + 10 * served)
    killed.kill()
    assert 0 < redis_client.pttl(QUEUE) <= 6_000
    lock.release()
    assert [each.result(UNTIL_SERVED) for each in waits] == [served] * 10
    began = time.monotonic()
    assert lock.acquire(wait_time=20)
    assert time.monotonic() - began < 20  # a lease would be 30
    lock.release()
    assert not redis_client.exists(QUEUE)


@pytest.mark.thorough
async def test_acquire_failed_timeout_drift(binding, redis_client):
    """An owner that gives up leaves the order of the others unchanged."""
    served: list[int] = []

    async def wait(number: int, wait_time: float) -> None:
        if await binding.acquire(FairLock("lock"), wait_time=wait_time):
            served.append(number)
            await binding.release(FairLock("lock"))

    async with held_elsewhere(binding, FairLock("lock")):
        waits = await queue_up(binding, redis_client, [(wait, n, 4 if n == 2 else 20) for n in (1, 2, 3, 4)])
        await binding.result(waits[1])
        assert redis_client.zcard(QUEUE) == 3
    await binding.results(waits)
    assert served == [1, 3, 4]


@pytest.mark.thorough
async def test_lock_acquired_boolean_timeout_drift(binding, redis_client):
    """Trying once never queues: the first after the release has it, the others when its lease has ended."""
    async with held_elsewhere(binding, FairLock("lock")):
        for _ in range(3):
            assert not await elsewhere(binding, FairLock("lock"), "acquire", blocking=False)
        assert not redis_client.exists(QUEUE)
    assert await elsewhere(binding, FairLock("lock", lease_time=3), "acquire", blocking=False)
    for _ in range(2):
        assert not await elsewhere(binding, FairLock("lock"), "acquire", blocking=False)
    await binding.until(lambda: not redis_client.exists(KEY))
    assert await binding.acquire(FairLock("lock"), blocking=False)
    await binding.release(FairLock("lock"))
    await binding.until(lambda: all(hold.lost for hold in HOLDS.snapshot()))


async def test_name_mapper(binding, redis_client, settings):
    settings.RLOCK = {"default": {"KEY_PREFIX": "mapped:"}}
    async with held_elsewhere(binding, FairLock("lock")):
        waiting = binding.start(visit, binding, FairLock("lock"))
        await binding.until(lambda: redis_client.exists("rlock_queue:{mapped:lock}"))
        assert redis_client.exists("mapped:lock")
    await binding.result(waiting)


@pytest.mark.thorough
async def test_acquire_failed_not_called_on_redis_timeout(binding, redis_client):
    """The server stands still in the middle of a wait; whatever the wait's end, the queue is empty after it."""
    async with held_elsewhere(binding, FairLock("lock")):
        waiting = binding.start(attempt, binding, FairLock("lock", wait_time=2))
        await binding.until(lambda: redis_client.zcard(QUEUE) == 1)
        redis_client.client_pause(6_000, all=False)
        assert await binding.result(waiting) in {False, None}
        redis_client.client_unpause()
        await binding.until(lambda: not redis_client.exists(QUEUE))
    assert WAITS.snapshot() == []


async def attempt(binding, lock) -> bool | None:
    try:
        return await binding.acquire(lock)
    except LockUnavailableError:
        return None
