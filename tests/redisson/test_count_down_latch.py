"""RedissonCountDownLatchTest and RedissonCountDownLatchConcurrentTest."""

from __future__ import annotations

import pytest

from django_rlock import CountDownLatch
from tests.redisson.crowds import all_together


@pytest.fixture
def latch() -> CountDownLatch:
    return CountDownLatch("latch")


async def test_single_count_down_await_single_instance(binding, latch):
    """Each waiter that gets through finds that all have counted down."""
    owners = 12
    assert await binding.call(latch, "try_set_count", owners)
    counted: list[None] = []

    async def work() -> tuple[int, int]:
        counted.append(None)
        await binding.call(latch, "count_down")
        assert await binding.call(latch, "wait")
        return len(counted), await binding.call(latch, "count")

    assert await all_together(binding, owners, work) == [(owners, 0)] * owners
