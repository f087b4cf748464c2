"""RedissonLockReactiveTest and RedissonLockRxTest; what they call a thread id is an explicit owner here."""

from __future__ import annotations

from django_rlock import RLock


async def test_is_held_by_thread(face):
    first, second = RLock("lock", owner="1"), RLock("lock", owner="2")
    for holder, other in ((first, second), (second, first)):
        await face.acquire(holder)
        assert await face.call(holder, "owned")
        assert not await face.call(other, "owned")
        await face.release(holder)
        assert not await face.call(holder, "owned")
