"""A lock whose holder is gone: its lease ends, and the waiters take it."""

import pytest

from django_rlock import RLock


@pytest.mark.parametrize("lease_ms", [1, 3, 10])
async def test_waiting_for_ever_never_gives_up(binding, redis_client, lease_ms):
    """Waiters wake in the very millisecond in which the lease ends, when the server still counts it as held."""
    for number in range(60):
        redis_client.hset(f"rlock:{number}", "another", 1)
        redis_client.pexpire(f"rlock:{number}", lease_ms)
        lock = RLock(f"{number}")
        assert await binding.acquire(lock), number
        await binding.release(lock)
