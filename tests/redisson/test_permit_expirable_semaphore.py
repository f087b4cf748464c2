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


def test_concurrency_loop_multi_instance(clients, redis_client, semaphore):
    semaphore.try_set_permits(1)
    in_processes(clients, [f"count({LOOPS}, PermitExpirableSemaphore('semaphore').permit)"] * 4)
    assert redis_client.get("counter") == str(PROCESSES * 4 * LOOPS)
    assert semaphore.available_permits() == 1


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
    await binding.results(started)
    assert await numbers(binding, semaphore) == [2, 0, 2]
