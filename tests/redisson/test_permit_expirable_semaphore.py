"""RedissonPermitExpirableSemaphoreTest."""

from __future__ import annotations

from typing import Any

import pytest

from django_rlock import PermitExpirableSemaphore
from tests.redisson.crowds import LOOPS, PROCESSES, in_processes

UNKNOWN = "0" * 32
LEASE = 0.5
"""A lease that ends while a test runs, in seconds."""


@pytest.fixture
def semaphore() -> PermitExpirableSemaphore:
    return PermitExpirableSemaphore("semaphore")


async def numbers(binding, semaphore) -> list[int]:
    """How many are left, taken, and there in all."""
    return [await binding.call(semaphore, f"{which}_permits") for which in ("available", "acquired", "total")]


async def ended(binding, redis_client, live: int = 0) -> None:
    """Until no lease but those of so many permits runs, by the server's clock."""

    def running() -> int:
        seconds, microseconds = redis_client.time()
        return redis_client.zcount("{rlock:semaphore}:timeout", f"({seconds * 1000 + microseconds // 1000}", "+inf")

    await binding.until(lambda: running() == live)


async def test_update_lease_time(binding, redis_client, semaphore):
    """Until the new end it is taken, and then it is not."""
    await binding.call(semaphore, "try_set_permits", 1)
    assert not await binding.call(semaphore, "update_lease_time", UNKNOWN, 1)
    permit = await binding.call(semaphore, "acquire", lease_time=20)
    assert await binding.call(semaphore, "update_lease_time", permit, LEASE)
    await ended(binding, redis_client)
    assert not await binding.call(semaphore, "update_lease_time", permit, 1)
    permit = await binding.call(semaphore, "acquire", lease_time=LEASE)
    assert await binding.call(semaphore, "update_lease_time", permit, 20)
    assert not await binding.call(semaphore, "acquire", wait_time=LEASE + 0.1)
    assert await binding.call(semaphore, "update_lease_time", permit, 0.1)
    assert await binding.call(semaphore, "acquire", wait_time=20)


@pytest.mark.lengthy
async def test_expiration(binding, redis_client, semaphore):
    """What has a time to live goes with all that belongs to it; what was asked is forgotten in two minutes."""
    await binding.call(semaphore, "try_set_permits", 1, ttl=3)
    assert await binding.call(semaphore, "acquire", lease_time=0.2)
    assert redis_client.exists("rlock:semaphore", "{rlock:semaphore}:timeout") == 2
    await binding.until(lambda: not redis_client.exists("rlock:semaphore", "{rlock:semaphore}:timeout"))
    assert all(0 < redis_client.ttl(key) <= 120 for key in redis_client.keys("*semaphore*"))


def test_concurrency_loop_multi_instance(clients, redis_client, semaphore):
    semaphore.try_set_permits(1)
    in_processes(clients, [f"count({LOOPS}, PermitExpirableSemaphore('semaphore').permit)"] * 4)
    assert redis_client.get("counter") == str(PROCESSES * 4 * LOOPS)
    assert semaphore.available_permits() == 1


async def test_release_many_expired_does_not_throw(binding, redis_client, semaphore):
    """Leases that ended harm no acquire after them."""
    await binding.call(semaphore, "try_set_permits", 10)
    await binding.call(semaphore, "acquire", 6, lease_time=0.1)
    await ended(binding, redis_client)
    permit = await binding.call(semaphore, "acquire", 1)
    assert await binding.call(semaphore, "available_permits") == 9
    await binding.call(permit, "release")
    assert await binding.call(semaphore, "available_permits") == 10


async def test_try_release_many_expired(binding, redis_client, semaphore):
    """An ended permit cannot be released, and comes back with the next release of a live one."""
    await binding.call(semaphore, "try_set_permits", 10)
    old = await binding.call(semaphore, "acquire", 3, lease_time=0.1)
    live = await binding.call(semaphore, "acquire", 3, lease_time=20)
    await ended(binding, redis_client, live=3)
    assert await binding.call(semaphore, "try_release", live) == 3
    assert await binding.call(semaphore, "available_permits") == 10
    assert await binding.call(semaphore, "try_release", old) == 0
    assert await binding.call(semaphore, "available_permits") == 10


@pytest.mark.parametrize("wanted", [(2, 2), (1, 2)])
async def test_concurrency_multi_permits(binding, semaphore, wanted):
    """Ported from testConcurrencyMultiPermits and testConcurrencyMultiPermits2: both have them, one after the other."""
    await binding.call(semaphore, "try_set_permits", 2)
    inside: list[Any] = []

    async def work(permits: int) -> None:
        for _ in range(10):
            permit = await binding.call(semaphore, "acquire", permits)
            inside.append(permit)
            assert len(inside) == 1, "two inside, who together have more than there are"
            await binding.sleep(0)
            inside.remove(permit)
            await binding.call(permit, "release")

    started = [binding.start(work, permits) for permits in wanted]
    for each in started:
        await binding.result(each)
    assert await numbers(binding, semaphore) == [2, 0, 2]
