"""The count-down latch: waiters go when it is counted down to 0, or deleted."""

import asyncio
import inspect

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


async def wait(binding, latch, *args, **kwargs):
    return await latch.await_(*args, **kwargs) if binding.name == "async" else latch.wait(*args, **kwargs)


async def test_latch_counts_down(binding, done, redis_client):
    assert await wait(binding, done) is True  # never set, and so open
    assert await binding.call(done, "count") == 0
    assert await binding.call(done, "try_set_count", 2) is True
    assert await binding.call(done, "try_set_count", 5) is False
    for left in (1, 0, 0):
        await binding.call(done, "count_down")
        assert await binding.call(done, "count") == left
    assert await wait(binding, done) is True
    assert not redis_client.exists(KEY)
    assert await binding.call(done, "try_set_count", 5) is True
    assert await binding.call(done, "delete") is True
    assert await binding.call(done, "delete") is False


@pytest.mark.parametrize("how", ["count_down", "delete"])
async def test_an_open_latch_releases_all_waiters(binding, done, how):
    await binding.call(done, "try_set_count", 1)
    waiters = [binding.start(wait, binding, done) for _ in range(3)]
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
    waiter = binding.start(wait, binding, tagged)
    await waiting(binding)
    await binding.call(tagged, "count_down")
    assert await binding.result(waiter) is True


async def test_latch_of_no_parts_is_open(binding, done):
    assert await binding.call(done, "try_set_count", 0) is True
    assert await wait(binding, done) is True


@pytest.mark.parametrize("count", [-1, 2**31, True, 1.0, None])
async def test_counts_that_are_none(binding, done, redis_client, count):
    with pytest.raises((TypeError, ValueError), match=f"count must be a whole number.*not {count!r}"):
        await binding.call(done, "try_set_count", count)
    assert not redis_client.exists(KEY)


async def test_lost_reply_counts_once(binding, proxy, done, redis_client):
    lost = proxy.lose_reply(scripts.LATCH_SET)
    assert await binding.call(done, "try_set_count", 3) is True
    assert lost.served.is_set()
    lost = proxy.lose_reply(scripts.LATCH_COUNT_DOWN)
    await binding.call(done, "count_down")
    assert lost.served.is_set()
    assert redis_client.get(KEY) == "2"


def test_cancelled_count_down_is_done_all_the_same(done, proxy, redis_client):
    async def body() -> None:
        await done.atry_set_count(3)
        stuck = proxy.hold(scripts.LATCH_COUNT_DOWN)
        task = asyncio.ensure_future(done.acount_down())
        await asyncio.to_thread(stuck.served.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(eventually, lambda: redis_client.get(KEY) == "2")
        stuck.let_go.set()

    asyncio.run(body())


def test_bindings_describe_themselves():
    for binding, name in ((CountDownLatch.wait, "wait"), (CountDownLatch.await_, "await_")):
        assert (binding.__name__, binding.__qualname__) == (name, f"CountDownLatch.{name}")
        assert list(inspect.signature(binding).parameters) == ["self", "wait_time"]
    assert "until the latch is open" in (CountDownLatch.wait.__doc__ or "")
    assert CountDownLatch.acount_down.__name__ == "acount_down"
