"""RedissonFencedLockTest. Its tokens count by one and on every entry; ours rise with every owner."""

from __future__ import annotations

from django_rlock import FencedLock


async def test_token_increase(binding):
    lock = FencedLock("lock")
    tokens = []
    for times in ({}, {}, {"lease_time": 10}, {"blocking": False}):
        await binding.acquire(lock, **times)
        tokens.append(lock.token)
        await binding.release(lock)
    assert tokens == sorted(set(tokens))
