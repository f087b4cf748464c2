"""RedissonCountDownLatchTest and RedissonCountDownLatchConcurrentTest."""

from __future__ import annotations

import pytest

from django_rlock import CountDownLatch
from django_rlock.locks.holds import WAITS
from tests.redisson.crowds import all_together


@pytest.fixture
def latch() -> CountDownLatch:
    return CountDownLatch("latch")


async def wait(face, latch: CountDownLatch, wait_time: float | None = None) -> bool:
    return await latch.await_(wait_time) if face.name == "async" else latch.wait(wait_time)


async def test_await_timeout(face, latch):
    """It is counted down before the wait ends."""
    assert await face.call(latch, "try_set_count", 1)
    waiter = face.start(wait, face, latch, 20)
    await face.until(WAITS.snapshot)
    await face.call(latch, "count_down")
    assert await face.result(waiter) is True


async def test_await_timeout_fail(face, latch):
    """It is counted down after the wait has ended, and is open then."""
    assert await face.call(latch, "try_set_count", 1)
    assert await wait(face, latch, 0.1) is False
    await face.call(latch, "count_down")
    assert await wait(face, latch, 0) is True


async def test_single_count_down_await_single_instance(face, latch):
    """Each waiter that gets through finds that all have counted down."""
    owners = 12
    assert await face.call(latch, "try_set_count", owners)
    counted: list[None] = []

    async def work() -> tuple[int, int]:
        counted.append(None)
        await face.call(latch, "count_down")
        assert await wait(face, latch)
        return len(counted), await face.call(latch, "count")

    assert await all_together(face, owners, work) == [(owners, 0)] * owners
