"""RedissonCountDownLatchTest and RedissonCountDownLatchConcurrentTest."""

from __future__ import annotations

import pytest

from django_rlock import CountDownLatch
from django_rlock.locks.holds import WAITS
from tests.redisson.crowds import all_together


@pytest.fixture
def latch() -> CountDownLatch:
    return CountDownLatch("latch")


async def wait(binding, latch: CountDownLatch, wait_time: float | None = None) -> bool:
    return await latch.await_(wait_time) if binding.name == "async" else latch.wait(wait_time)


async def test_await_timeout(binding, latch):
    """It is counted down before the wait ends."""
    assert await binding.call(latch, "try_set_count", 1)
    waiter = binding.start(wait, binding, latch, 20)
    await binding.until(WAITS.snapshot)
    await binding.call(latch, "count_down")
    assert await binding.result(waiter) is True


async def test_await_timeout_fail(binding, latch):
    """It is counted down after the wait has ended, and is open then."""
    assert await binding.call(latch, "try_set_count", 1)
    assert await wait(binding, latch, 0.1) is False
    await binding.call(latch, "count_down")
    assert await wait(binding, latch, 0) is True


async def test_single_count_down_await_single_instance(binding, latch):
    """Each waiter that gets through finds that all have counted down."""
    owners = 12
    assert await binding.call(latch, "try_set_count", owners)
    counted: list[None] = []

    async def work() -> tuple[int, int]:
        counted.append(None)
        await binding.call(latch, "count_down")
        assert await wait(binding, latch)
        return len(counted), await binding.call(latch, "count")

    assert await all_together(binding, owners, work) == [(owners, 0)] * owners
