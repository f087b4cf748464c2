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


async def left(face, semaphore) -> int:
    return await face.call(semaphore, "available_permits")


async def released_in_vain(face, redis_client, semaphore, permits: int = 1) -> None:
    """Give permits back that are too few for the one who waits, and see it wait on."""
    before = scripts_run(redis_client)
    await face.call(semaphore, "release", permits)
    await face.until(lambda: scripts_run(redis_client) >= before + 2)  # the release, and the try that it woke
    assert len(WAITS.snapshot()) == 1


@asks_the_server
async def test_acquire_after_add_permits(face, redis_client, semaphore):
    """One permit is too little for who waits for two; another that is added is enough."""
    await face.call(semaphore, "try_set_permits", 0)
    waiter = face.start(face.call, semaphore, "acquire", 2)
    await face.until(WAITS.snapshot)
    await released_in_vain(face, redis_client, semaphore)
    await face.call(semaphore, "add_permits", 1)
    assert await face.result(waiter)
    assert await left(face, semaphore) == 0


async def test_acquire_without_set_permits(face, semaphore):
    for _ in range(2):
        await face.call(semaphore, "release")
    assert await face.call(semaphore, "acquire", 2)
    assert await left(face, semaphore) == 0


async def test_try_set_permits(face, redis_client, semaphore):
    """Once; and for a time, after which they are gone."""
    assert await face.call(semaphore, "try_set_permits", 10)
    assert not await face.call(semaphore, "try_set_permits", 15)
    assert await left(face, semaphore) == 10
    long, short = Semaphore("long"), Semaphore("short")
    began = time.monotonic()
    for each, ttl in ((long, 20), (short, 0.2)):
        assert await face.call(each, "try_set_permits", 5, ttl=ttl)
    await face.until(lambda: not redis_client.exists("rlock:short"))
    assert 0.15 < time.monotonic() - began < 20
    assert [await left(face, each) for each in (long, short)] == [5, 0]


async def test_add_permits(face, semaphore):
    for change, expected in ((10, 10), (-10, 0), (4, 4)):
        await face.call(semaphore, "add_permits", change)
        assert await left(face, semaphore) == expected
    await face.call(semaphore, "release", 10)
    assert await left(face, semaphore) == 14
    assert await face.call(semaphore, "acquire", 5)
    assert await left(face, semaphore) == 9


async def test_reduce_permits(face, semaphore):
    """Below zero; released permits count up from there."""
    await face.call(semaphore, "try_set_permits", 0)
    await face.call(semaphore, "add_permits", -5)
    assert await left(face, semaphore) == -5
    assert not await face.call(semaphore, "acquire", blocking=False)
    await face.call(semaphore, "release", 10)
    assert await left(face, semaphore) == 5
    assert await face.call(semaphore, "acquire", 5)
    assert await left(face, semaphore) == 0


@asks_the_server
async def test_blocking_n_acquire(face, redis_client, semaphore):
    """With two free, a request for four waits for two releases."""
    await face.call(semaphore, "try_set_permits", 5)
    assert await face.call(semaphore, "acquire", 3)
    waiter = face.start(face.call, semaphore, "acquire", 4)
    await face.until(WAITS.snapshot)
    await released_in_vain(face, redis_client, semaphore)
    await face.call(semaphore, "release")
    assert await face.result(waiter)
    assert await left(face, semaphore) == 0


@asks_the_server
async def test_try_n_acquire(face, redis_client, semaphore):
    """The same with a limited wait, in which none is released."""
    await face.call(semaphore, "try_set_permits", 5)
    assert await face.call(semaphore, "acquire", 3, blocking=False)
    assert not await face.call(semaphore, "acquire", 4, blocking=False)
    assert not await face.call(semaphore, "acquire", 4, wait_time=0.05)
    waiter = face.start(lambda: face.call(semaphore, "acquire", 4, wait_time=20))
    await face.until(WAITS.snapshot)
    await released_in_vain(face, redis_client, semaphore)
    await face.call(semaphore, "release")
    assert await face.result(waiter)
    assert await left(face, semaphore) == 0


async def test_release_without_permits(face, semaphore):
    await face.call(semaphore, "release")
    assert await left(face, semaphore) == 1


async def test_drain_permits(face, semaphore):
    assert await face.call(semaphore, "drain_permits") == 0
    await face.call(semaphore, "try_set_permits", 10)
    assert await face.call(semaphore, "acquire", 3)
    assert await face.call(semaphore, "drain_permits") == 7
    assert await left(face, semaphore) == await face.call(semaphore, "drain_permits") == 0


async def test_release_acquire(face, semaphore):
    await face.call(semaphore, "try_set_permits", 10)
    for method, permits, expected in (("acquire", 1, 9), ("release", 1, 10), ("acquire", 5, 5), ("release", 5, 10)):
        await face.call(semaphore, method, permits)
        assert await left(face, semaphore) == expected


async def test_concurrency_single_instance(face, semaphore):
    await face.call(semaphore, "try_set_permits", 1)
    counter = [0]

    async def work() -> None:
        async with face.inside(semaphore):
            seen = counter[0]
            await face.sleep(0.001)
            counter[0] = seen + 1

    await all_together(face, 15, work)
    assert counter == [15]


async def test_concurrency_loop_max(face, semaphore):
    """Ported from testConcurrencyLoopMax_MultiInstance, in one process: one permit, or all that there can be."""
    await face.call(semaphore, "try_set_permits", MOST)
    taken = count()

    async def work() -> None:
        for _ in range(10):
            permits = random.choice([1, MOST])
            assert await face.call(semaphore, "acquire", permits)
            next(taken)
            await face.call(semaphore, "release", permits)

    await all_together(face, 4, work)
    assert next(taken) == 40
    assert await left(face, semaphore) == MOST


@pytest.mark.parametrize(("threads", "loops"), [(4, LOOPS), (8, 1)], ids=["loop", "once"])
def test_concurrency_multi_instance(clients, redis_client, semaphore, threads, loops):
    """Ported from testConcurrencyLoop_MultiInstance and testConcurrency_MultiInstance_1_permits."""
    semaphore.try_set_permits(1)
    in_processes(clients, [f"count({loops}, lambda: Semaphore('semaphore'))"] * threads)
    assert redis_client.get("counter") == str(PROCESSES * threads * loops)
    assert semaphore.available_permits() == 1
