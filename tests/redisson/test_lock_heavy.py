"""RedissonLockHeavyTest: it has to come to an end, and nothing may be left."""

from __future__ import annotations

import random

import pytest

from django_rlock import RLock, Semaphore
from tests.redisson.crowds import all_together

loads = pytest.mark.parametrize(("owners", "loops"), [(2, 100), (5, 50), (10, 25), (20, 20)])


async def work_in_turn(binding, redis_client, owners: int, loops: int, acquire) -> None:
    semaphore = Semaphore("semaphore")
    await binding.call(semaphore, "release")

    async def work() -> None:
        for number in range(loops):
            if await acquire(RLock("lock")):
                redis_client.set("bucket", number)
                await binding.release(RLock("lock"))
            await binding.call(semaphore, "release")
            await binding.call(semaphore, "acquire")

    await all_together(binding, owners, work)
    assert not await binding.call(RLock("lock"), "locked")
    assert await binding.call(semaphore, "available_permits") == 1


@loads
async def test_lock_unlock_rlock(binding, redis_client, owners, loops):
    await work_in_turn(binding, redis_client, owners, loops, binding.acquire)


@loads
async def test_try_lock_unlock_rlock(binding, redis_client, owners, loops):
    def try_for_a_while(lock):
        return binding.acquire(lock, wait_time=random.uniform(0, 0.01))

    await work_in_turn(binding, redis_client, owners, loops, try_for_a_while)
