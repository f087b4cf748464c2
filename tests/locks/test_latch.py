"""The count-down latch: waiters go when it is counted down to 0, or deleted."""

import asyncio

import pytest

from django_rlock import CountDownLatch
from django_rlock._redis import scripts
from django_rlock.locks import counters, kinds
from tests.bindings import waiting
from tests.eventually import eventually

KEY = "rlock:import:42"
CHANNEL = "redisson_countdownlatch__channel__{rlock:import:42}"


@pytest.fixture
def done():
    return CountDownLatch("import:42")


async def test_latch_counts_down(binding, done, redis_client):
    assert await binding.call(done, "wait") is True  # never set, and so open
    assert await binding.call(done, "count") == 0
    assert await binding.call(done, "try_set_count", 2) is True
    assert await binding.call(done, "try_set_count", 5) is False
    for left in (1, 0, 0):
        await binding.call(done, "count_down")
        assert await binding.call(done, "count") == left
    assert await binding.call(done, "wait") is True
    assert not redis_client.exists(KEY)
    assert await binding.call(done, "try_set_count", 5) is True
    assert await binding.call(done, "delete") is True
    assert await binding.call(done, "delete") is False


@pytest.mark.parametrize("how", ["count_down", "delete"])
async def test_an_open_latch_releases_all_waiters(binding, done, how):
    await binding.call(done, "try_set_count", 1)
    waiters = [binding.start(binding.call, done, "wait") for _ in range(3)]
    await waiting(binding, 3)
    await binding.call(done, how)
    assert [await binding.result(waiter) for waiter in waiters] == [True, True, True]


def test_wait_asks_again_sooner_where_it_may_not_be_told():
    assert CountDownLatch("import:42")._kind.pauses(CountDownLatch("import:42"), -1, 1)[0] == kinds.REPOLL
    assert (
        CountDownLatch("{import}:42")._kind.pauses(CountDownLatch("{import}:42"), -1, 1)[0] == counters.UNHEARD_REPOLL
    )


async def test_name_with_a_hash_tag(binding, redis_client):
    tagged = CountDownLatch("{import}:42")
    await binding.call(tagged, "try_set_count", 1)
    assert set(redis_client.keys()) == {"rlock:{import}:42", "rlock_requests:rlock:{import}:42"}
    waiter = binding.start(binding.call, tagged, "wait")
    await waiting(binding)
    await binding.call(tagged, "count_down")
    assert await binding.result(waiter) is True


@pytest.mark.parametrize("count", [-1, 2**31, True, 1.0, None])
async def test_counts_that_are_none(binding, done, redis_client, count):
    with pytest.raises((TypeError, ValueError), match=f"count must be a whole number.*not {count!r}"):
        await binding.call(done, "try_set_count", count)
    assert not redis_client.exists(KEY)


async def test_cancelled_count_down_is_done_all_the_same(done, proxy, redis_client):
    await done.atry_set_count(3)
    stuck = proxy.hold(scripts.LATCH_COUNT_DOWN)
    task = asyncio.ensure_future(done.acount_down())
    await asyncio.to_thread(stuck.served.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(eventually, lambda: redis_client.get(KEY) == "2")
    stuck.let_go.set()
