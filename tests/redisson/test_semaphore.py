"""RedissonSemaphoreTest."""

from __future__ import annotations

import random
from itertools import count

import pytest

from django_rlock import Semaphore
from tests.redisson.crowds import LOOPS, PROCESSES, all_together, in_processes

MOST = 2**31 - 1


@pytest.fixture
def semaphore() -> Semaphore:
    return Semaphore("semaphore")


async def left(binding, semaphore) -> int:
    return await binding.call(semaphore, "available_permits")


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
