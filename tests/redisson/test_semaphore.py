"""RedissonSemaphoreTest."""

from __future__ import annotations

import random
import time
from itertools import count

import pytest

from django_rlock import Semaphore
from django_rlock.locks.holds import WAITS
from tests.redisson.crowds import LOOPS, PROCESSES, all_together, asks_the_server, in_processes, scripts_run

MOST = 2**31 - 1


@pytest.fixture
def semaphore() -> Semaphore:
    return Semaphore("semaphore")


async def left(binding, semaphore) -> int:
    return await binding.call(semaphore, "available_permits")


async def released_in_vain(binding, redis_client, semaphore, permits: int = 1) -> None:
    """Give permits back that are too few for the one who waits, and see it wait on."""
    before = scripts_run(redis_client)
    await binding.call(semaphore, "release", permits)
    await binding.until(lambda: scripts_run(redis_client) >= before + 2)  # the release, and the try that it woke
    assert len(WAITS.snapshot()) == 1


@asks_the_server
async def test_acquire_after_add_permits(binding, redis_client, semaphore):
    """One permit is too little for who waits for two; another that is added is enough."""
    await binding.call(semaphore, "try_set_permits", 0)
    waiter = binding.start(binding.call, semaphore, "acquire", 2)
    await binding.until(WAITS.snapshot)
    await released_in_vain(binding, redis_client, semaphore)
    await binding.call(semaphore, "add_permits", 1)
    assert await binding.result(waiter)
    assert await left(binding, semaphore) == 0


async def test_acquire_without_set_permits(binding, semaphore):
    for _ in range(2):
        await binding.call(semaphore, "release")
    assert await binding.call(semaphore, "acquire", 2)
    assert await left(binding, semaphore) == 0


async def test_try_set_permits(binding, redis_client, semaphore):
    """Once; and for a time, after which they are gone."""
    assert await binding.call(semaphore, "try_set_permits", 10)
    assert not await binding.call(semaphore, "try_set_permits", 15)
    assert await left(binding, semaphore) == 10
    long, short = Semaphore("long"), Semaphore("short")
    began = time.monotonic()
    for each, ttl in ((long, 20), (short, 0.2)):
        assert await binding.call(each, "try_set_permits", 5, ttl=ttl)
    await binding.until(lambda: not redis_client.exists("rlock:short"))
    assert 0.15 < time.monotonic() - began < 20
    assert [await left(binding, each) for each in (long, short)] == [5, 0]


async def test_add_permits(binding, semaphore):
    for change, expected in ((10, 10), (-10, 0), (4, 4)):
        await binding.call(semaphore, "add_permits", change)
        assert await left(binding, semaphore) == expected
    await binding.call(semaphore, "release", 10)
    assert await left(binding, semaphore) == 14
    assert await binding.call(semaphore, "acquire", 5)
    assert await left(binding, semaphore) == 9


async def test_reduce_permits(binding, semaphore):
    """Below zero; released permits count up from there."""
    await binding.call(semaphore, "try_set_permits", 0)
    await binding.call(semaphore, "add_permits", -5)
    assert await left(binding, semaphore) == -5
    assert not await binding.call(semaphore, "acquire", blocking=False)
    await binding.call(semaphore, "release", 10)
    assert await left(binding, semaphore) == 5
    assert await binding.call(semaphore, "acquire", 5)
    assert await left(binding, semaphore) == 0


@asks_the_server
async def test_blocking_n_acquire(binding, redis_client, semaphore):
    """With two free, a request for four waits for two releases."""
    await binding.call(semaphore, "try_set_permits", 5)
    assert await binding.call(semaphore, "acquire", 3)
    waiter = binding.start(binding.call, semaphore, "acquire", 4)
    await binding.until(WAITS.snapshot)
    await released_in_vain(binding, redis_client, semaphore)
    await binding.call(semaphore, "release")
    assert await binding.result(waiter)
    assert await left(binding, semaphore) == 0


@asks_the_server
async def test_try_n_acquire(binding, redis_client, semaphore):
    """The same with a limited wait, in which none is released."""
    await binding.call(semaphore, "try_set_permits", 5)
    assert await binding.call(semaphore, "acquire", 3, blocking=False)
    assert not await binding.call(semaphore, "acquire", 4, blocking=False)
    assert not await binding.call(semaphore, "acquire", 4, wait_time=0.05)
    waiter = binding.start(lambda: binding.call(semaphore, "acquire", 4, wait_time=20))
    await binding.until(WAITS.snapshot)
    await released_in_vain(binding, redis_client, semaphore)
    await binding.call(semaphore, "release")
    assert await binding.result(waiter)
    assert await left(binding, semaphore) == 0


async def test_release_without_permits(binding, semaphore):
    await binding.call(semaphore, "release")
    assert await left(binding, semaphore) == 1


async def test_drain_permits(binding, semaphore):
    assert await binding.call(semaphore, "drain_permits") == 0
    await binding.call(semaphore, "try_set_permits", 10)
    assert await binding.call(semaphore, "acquire", 3)
    assert await binding.call(semaphore, "drain_permits") == 7
    assert await left(binding, semaphore) == await binding.call(semaphore, "drain_permits") == 0


async def test_release_acquire(binding, semaphore):
    await binding.call(semaphore, "try_set_permits", 10)
    for method, permits, expected in (("acquire", 1, 9), ("release", 1, 10), ("acquire", 5, 5), ("release", 5, 10)):
        await binding.call(semaphore, method, permits)
        assert await left(binding, semaphore) == expected


async def test_concurrency_single_instance(binding, semaphore):
    await binding.call(semaphore, "try_set_permits", 1)
    counter = [0]

    async def work() -> None:
        async with binding.inside(semaphore):
            seen = counter[0]
            await binding.sleep(0.001)
            counter[0] = seen + 1

    await all_together(binding, 15, work)
    assert counter == [15]


async def test_concurrency_loop_max(binding, semaphore):
    """Ported from testConcurrencyLoopMax_MultiInstance, in one process: one permit, or all that there can be."""
    await binding.call(semaphore, "try_set_permits", MOST)
    taken = count()

    async def work() -> None:
        for _ in range(10):
            permits = random.choice([1, MOST])
            assert await binding.call(semaphore, "acquire", permits)
            next(taken)
            await binding.call(semaphore, "release", permits)

    await all_together(binding, 4, work)
    assert next(taken) == 40
    assert await left(binding, semaphore) == MOST


@pytest.mark.parametrize(("threads", "loops"), [(4, LOOPS), (8, 1)], ids=["loop", "once"])
def test_concurrency_multi_instance(clients, redis_client, semaphore, threads, loops):
    """Ported from testConcurrencyLoop_MultiInstance and testConcurrency_MultiInstance_1_permits."""
    semaphore.try_set_permits(1)
    in_processes(clients, [f"count({loops}, lambda: Semaphore('semaphore'))"] * threads)
    assert redis_client.get("counter") == str(PROCESSES * threads * loops)
    assert semaphore.available_permits() == 1
