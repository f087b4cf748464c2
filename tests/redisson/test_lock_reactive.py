"""RedissonLockReactiveTest and RedissonLockRxTest; what they call a thread id is an explicit owner here."""

from __future__ import annotations

from django_rlock import RLock


async def test_is_held_by_thread(binding):
    first, second = RLock("lock", owner="1"), RLock("lock", owner="2")
    for holder, other in ((first, second), (second, first)):
        await binding.acquire(holder)
        assert await binding.call(holder, "owned")
        assert not await binding.call(other, "owned")
        await binding.release(holder)
        assert not await binding.call(holder, "owned")
