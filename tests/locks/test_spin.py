"""The spin lock: what it does otherwise than the plain lock."""

import math

import pytest

from django_rlock import ConstantBackoff, ExponentialBackoff, RLock, SpinLock
from django_rlock.locks.holds import WAITS
from tests.bindings import visit


async def test_waiter_asks_again_and_listens_to_nothing(binding, redis_client):
    lock = SpinLock("stock:42", backoff=ConstantBackoff(0.005))
    channels = redis_client.pubsub_channels()
    async with binding.inside(lock):
        redis_client.config_resetstat()
        waiting = binding.start(visit, binding, lock)
        await binding.until(lambda: redis_client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) > 5)
        assert redis_client.pubsub_channels() == channels
    await binding.result(waiting)


async def test_release_wakes_the_waiters_of_a_plain_lock(binding):
    """Whose poll would come in half a minute only."""
    async with binding.inside(SpinLock("stock:42", lease_time=600)):
        waiting = binding.start(visit, binding, RLock("stock:42"))
        await binding.until(WAITS.snapshot)
    await binding.result(waiting)


async def test_backoff_of_nothing_waits_all_the_same(binding, redis_client):
    redis_client.hset("rlock:stock:42", "another", 1)
    redis_client.pexpire("rlock:stock:42", 50)
    async with binding.inside(SpinLock("stock:42", backoff=lambda _tries: 0)):
        pass


def test_backoff_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"backoff must be a function .* not 0\.01"):
        SpinLock("stock:42", backoff=0.01)  # type: ignore[arg-type]


def test_exponential_pauses_grow_to_the_maximum():
    pauses = [ExponentialBackoff(initial=0.010, maximum=0.100, multiplier=3)(tries) for tries in range(1, 70)]
    assert pauses[0] == 0.010
    assert 0.030 <= pauses[1] <= 0.031
    assert 0.090 <= pauses[2] <= 0.092
    assert set(pauses[3:]) == {0.100}


def test_constant_pauses_stay():
    assert {ConstantBackoff(0.030)(tries) for tries in range(1, 10)} == {0.030}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantBackoff(0),
        lambda: ConstantBackoff(math.inf),
        lambda: ExponentialBackoff(initial=0),
        lambda: ExponentialBackoff(initial=2, maximum=1),
        lambda: ExponentialBackoff(multiplier=0.5),
        lambda: ExponentialBackoff(multiplier=1e5),
        lambda: ExponentialBackoff(maximum=math.inf),
    ],
)
def test_pauses_without_sense_are_refused(make):
    with pytest.raises(ValueError, match="A backoff needs"):
        make()
