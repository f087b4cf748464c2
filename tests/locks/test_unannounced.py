"""A lock that another client frees without a message: waiters don't sleep until the lease ends that they know of."""

import pytest

from django_rlock import FairLock, FencedLock, ReadLock, RLock, WriteLock
from tests.bindings import visit, waiting

KEY = "rlock:stock:42"
HOLDER = f"{'a' * 14}8{'a' * 21}:1"
LONG = 600_000


@pytest.fixture(autouse=True)
def often(settings):
    """As often as heartbeats may be sent in a test."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 1.0}}


@pytest.mark.parametrize("kind", [RLock, FencedLock, FairLock, ReadLock, WriteLock])
async def test_deleted_lock_is_found(binding, kind, redis_client):
    """As Redisson's fair and spin locks free any lock by force."""
    redis_client.hset(KEY, HOLDER, 1)
    redis_client.pexpire(KEY, LONG)
    waiter = binding.start(visit, binding, kind("stock:42"))
    await waiting(binding)
    redis_client.delete(KEY)
    await binding.result(waiter)


async def test_writer_that_becomes_a_reader_is_found_by_all_readers(binding, redis_client):
    """As Redisson's does."""
    redis_client.hset(KEY, mapping={"mode": "write", f"{HOLDER}:write": 1, HOLDER: 1})
    redis_client.pexpire(KEY, LONG)
    redis_client.set(f"{{{KEY}}}:{HOLDER}:rwlock_timeout:1", 1, px=LONG)
    readers = [binding.start(visit, binding, ReadLock("stock:42")) for _ in range(3)]
    await waiting(binding, 3)
    with redis_client.pipeline() as both:
        both.hset(KEY, "mode", "read").hdel(KEY, f"{HOLDER}:write").execute()
    for reader in readers:
        await binding.result(reader)
    redis_client.delete(KEY)
