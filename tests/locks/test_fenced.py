"""The fenced lock's tokens, through both bindings."""

import pytest

from django_rlock import FencedLock, LockNotOwnedError, RLock
from django_rlock._redis.keys import token_key

KEY = "rlock:stock:42"


async def take_once(binding, lock) -> int:
    async with binding.inside(lock):
        return lock.token


async def test_token_rises_with_every_owner(binding):
    lock = FencedLock("stock:42")
    tokens = [await take_once(binding, lock) for _ in range(3)]
    tokens.append(await binding.result(binding.start(take_once, binding, lock)))
    assert tokens == sorted(set(tokens))


async def test_token_stays_on_re_entry(binding):
    lock = FencedLock("stock:42")
    async with binding.inside(lock):
        token = lock.token
        async with binding.inside(FencedLock("stock:42")):
            assert lock.token == token
        assert lock.token == token


async def test_token_rises_where_the_server_came_back_with_older_data(binding, redis_client):
    """A failover, or a crash: the release is forgotten, and so is every later holder."""
    lock = FencedLock("stock:42")
    async with binding.inside(lock):
        for key in (KEY, token_key(KEY)):
            redis_client.copy(key, f"older {key}")
    between = await binding.result(binding.start(take_once, binding, lock))
    for key in (KEY, token_key(KEY)):
        redis_client.rename(f"older {key}", key)
    redis_client.pexpire(KEY, 100)  # the lease of the hold that has come back is nearly over
    assert await take_once(binding, lock) > between


@pytest.mark.parametrize(("fence_ttl", "left"), [(60, 60_000), (None, -1)])
async def test_counter_lives_for_fence_ttl(binding, redis_client, settings, fence_ttl, left):
    settings.RLOCK = {"default": {"FENCE_TTL": fence_ttl}}
    await take_once(binding, FencedLock("stock:42"))
    assert left - 10_000 < redis_client.pttl(token_key(KEY)) <= left


async def test_without_a_hold_there_is_no_token(binding):
    with pytest.raises(LockNotOwnedError, match="has no fencing token outside a hold"):
        FencedLock("stock:42").token  # noqa: B018


async def test_hold_of_another_kind_has_no_token(binding):
    async with binding.inside(RLock("stock:42")):
        with pytest.raises(RuntimeError, match="without tokens"):
            FencedLock("stock:42").token  # noqa: B018
