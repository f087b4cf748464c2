"""RedissonSpinLockTest: the asynchronous ones, which no other kind has."""

from __future__ import annotations

import asyncio

from django_rlock import SpinLock
from django_rlock.locks.holds import WAITS
from tests.bindings import TaskBinding
from tests.redisson.others import held_elsewhere, visit


def run(body) -> None:
    asyncio.run(body(TaskBinding()))


def test_try_lock_async():
    """A wait is pending while another task holds it, and done soon after the release."""

    async def body(binding) -> None:
        async with held_elsewhere(binding, SpinLock("lock")):
            visiting = binding.start(visit, binding, SpinLock("lock"))
            await binding.until(WAITS.snapshot)
            assert not visiting.done()
        await binding.result(visiting)

    run(body)


def test_timed_try_lock_async():
    async def body(binding) -> None:
        async with held_elsewhere(binding, SpinLock("lock")):
            visiting = binding.start(visit, binding, SpinLock("lock", wait_time=20))
            await binding.until(WAITS.snapshot)
        await binding.result(visiting)

    run(body)


def test_try_lock_async_wait_time():
    async def body(binding) -> None:
        async with held_elsewhere(binding, SpinLock("lock")):
            began = asyncio.get_running_loop().time()
            assert await SpinLock("lock").aacquire(wait_time=0.1) is False
            assert asyncio.get_running_loop().time() - began >= 0.1

    run(body)


def test_try_lock_async_failed():
    async def body(binding) -> None:
        async with held_elsewhere(binding, SpinLock("lock")):
            assert await SpinLock("lock").aacquire(blocking=False) is False

    run(body)


def test_try_lock_async_succeed():
    async def body(binding) -> None:
        assert await SpinLock("lock").aacquire(blocking=False) is True
        await SpinLock("lock").arelease()

    run(body)
