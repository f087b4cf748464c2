"""The promises of every lock, on every topology."""

import pytest

from django_rlock import LockLostError, LockTimeoutError, RLock
from django_rlock._transport import subscriber
from django_rlock.console import inspection
from django_rlock.locks import acquire
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import renew_now, until_heard, until_renewed
from tests.bindings import elsewhere, visit_alone
from tests.eventually import PATIENCE, UNTIL_SERVED

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"


async def test_taken_re_entered_and_given_back(binding, kind, topology):
    lock = kind("stock:42")
    for count in (1, 2):
        assert await binding.acquire(lock)
        assert await binding.call(lock, "hold_count") == count
    assert list(topology.redis.hgetall(KEY).values()) == ["2"]
    for _ in range(2):
        await binding.release(lock)
    assert not await binding.call(lock, "locked")
    assert not topology.redis.exists(KEY)


async def test_taken_by_another(binding, kind, topology, monkeypatch):
    monkeypatch.setattr(acquire, "HOLDER_WITHIN", UNTIL_SERVED)
    monkeypatch.setattr(inspection, "READ_WITHIN", UNTIL_SERVED)
    topology.redis.hset(KEY, "another", 1)
    assert not await binding.acquire(kind("stock:42"), blocking=False)
    with pytest.raises(LockTimeoutError) as caught:
        async with binding.inside(kind("stock:42", wait_time=0.05)):
            pytest.fail("it was not free")
    assert "another" in str(caught.value.holder)


async def test_waiter_is_woken(binding, kind, topology):
    lock = kind("stock:42")
    for _ in range(2):
        await binding.acquire(lock)
        waiting = binding.start(visit_alone, binding, kind("stock:42"), [])
        wait = await binding.until(WAITS.snapshot)
        # No look of its own brings it in: those come with the lease's end, or a heartbeat, at the earliest.
        assert wait[0].heartbeat_at - wait[0].since > 1
        await binding.release(lock)
        await binding.result(waiting)
        assert WAITS.snapshot() == []


async def test_many_take_turns(binding, kind, topology):
    inside: list[object] = []
    visits = [binding.start(visit_alone, binding, kind("stock:42"), inside) for _ in range(8)]
    await binding.results(visits)
    assert not topology.redis.exists(KEY)


async def test_renewed(binding, topology):
    async with binding.inside(RLock("stock:42")):
        until_renewed(*HOLDS.snapshot())
        assert topology.redis.exists(KEY)


async def test_loss_is_reported(binding, topology):
    lock = RLock("stock:42")
    with pytest.raises(LockLostError):
        async with binding.inside(lock):
            topology.redis.delete(KEY)
            renew_now()
            await binding.until(lambda: lock.lost)
    assert HOLDS.snapshot() == []


async def test_force_release_lets_the_next_one_in(binding, kind, topology):
    lock = kind("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit_alone, binding, kind("stock:42"), [])
    await binding.until(WAITS.snapshot)
    assert await elsewhere(binding, lock, "force_release")
    await binding.result(waiting)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_holder_hears_of_its_forced_release(binding, kind, topology, monkeypatch):
    # Neither a renewal nor a subscription that was checked shows it.
    monkeypatch.setattr(subscriber, "PING_AFTER", PATIENCE)
    lock = kind("stock:42", lease_time=600)
    await binding.acquire(lock)
    until_heard()
    assert await elsewhere(binding, kind("stock:42"), "force_release")
    await binding.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        await binding.release(lock)
