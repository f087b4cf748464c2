"""RedissonMultiLockTest, and what RedissonFasterMultiLockTest has beside the tests of every lock."""

from __future__ import annotations

import pytest

from django_rlock import MultiLock, RLock
from django_rlock.locks.holds import HOLDS
from tests.bindings import elsewhere

NAMES = "first", "second", "third"


@pytest.fixture
def three() -> MultiLock:
    return MultiLock(*map(RLock, NAMES))


async def test_try_lock_wait(binding, three):
    """It waits for the end of a lease that is never released."""
    assert await elsewhere(binding, three, "acquire", lease_time=0.2)
    assert await binding.acquire(three, wait_time=20)
    await binding.release(three)
    await binding.until(lambda: all(hold.lost for hold in HOLDS.snapshot()))  # the first owner's


async def test_wait_and_lease_timeouts(binding, three):
    """Of ten owners that want it at once one gets it. The others' waits end before its lease."""

    async def ask() -> bool:
        return await binding.acquire(MultiLock(*map(RLock, NAMES)), wait_time=0.5, lease_time=60)

    asking = [binding.start(ask) for _ in range(10)]
    assert sorted([await binding.result(each) for each in asking]) == [False] * 9 + [True]
    assert await binding.call(three, "locked")
    assert await binding.call(three, "force_release")
    HOLDS.clear()
