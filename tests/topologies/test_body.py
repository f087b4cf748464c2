"""What every lock promises, on every topology."""

import pytest

from django_rlock import LockLostError, LockTimeoutError, RLock
from django_rlock._transport import subscriber
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import renew_now, until_heard, until_renewed
from tests.eventually import PATIENCE
from tests.faces import elsewhere

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"


async def visit(face, lock, inside: list[object]) -> None:
    async with face.inside(lock):
        inside.append(lock)
        assert len(inside) == 1, "two inside at once"
        await face.sleep(0)
        inside.clear()


async def test_taken_re_entered_and_given_back(face, kind, topology):
    lock = kind("stock:42")
    for count in (1, 2):
        assert await face.acquire(lock)
        assert await face.call(lock, "hold_count") == count
    assert list(topology.redis.hgetall(KEY).values()) == ["2"]
    for _ in range(2):
        await face.release(lock)
    assert not await face.call(lock, "locked")
    assert not topology.redis.exists(KEY)


async def test_taken_by_another(face, kind, topology):
    topology.redis.hset(KEY, "somebody", 1)
    assert not await face.acquire(kind("stock:42"), blocking=False)
    with pytest.raises(LockTimeoutError) as caught:
        async with face.inside(kind("stock:42", wait_time=0.05)):
            pytest.fail("it was not free")
    assert "somebody" in str(caught.value.holder)


async def test_waiter_is_woken(face, kind, topology):
    lock = kind("stock:42")
    for _ in range(2):
        await face.acquire(lock)
        waiting = face.start(visit, face, kind("stock:42"), [])
        wait = await face.until(WAITS.snapshot)
        # No look of its own brings it in: those come with the lease's end, or a heartbeat, at the earliest.
        assert wait[0].heartbeat_at - wait[0].since > 1
        await face.release(lock)
        await face.result(waiting)
        assert WAITS.snapshot() == []


async def test_many_take_turns(face, kind, topology):
    inside: list[object] = []
    visits = [face.start(visit, face, kind("stock:42"), inside) for _ in range(8)]
    for each in visits:
        await face.result(each)
    assert not topology.redis.exists(KEY)


async def test_renewed(face, topology):
    async with face.inside(RLock("stock:42")):
        until_renewed(*HOLDS.snapshot())
        assert topology.redis.exists(KEY)


async def test_loss_is_reported(face, topology):
    lock = RLock("stock:42")
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            topology.redis.delete(KEY)
            renew_now()
            await face.until(lambda: lock.lost)
    assert HOLDS.snapshot() == []


async def test_force_release_lets_the_next_one_in(face, kind, topology):
    lock = kind("stock:42")
    await face.acquire(lock)
    waiting = face.start(visit, face, kind("stock:42"), [])
    await face.until(WAITS.snapshot)
    assert await elsewhere(face, lock, "force_release")
    await face.result(waiting)
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_holder_hears_of_its_forced_release(face, kind, topology, monkeypatch):
    # Neither a renewal nor a subscription that was checked shows it.
    monkeypatch.setattr(subscriber, "PING_AFTER", PATIENCE)
    lock = kind("stock:42", lease_time=600)
    await face.acquire(lock)
    until_heard()
    assert await elsewhere(face, kind("stock:42"), "force_release")
    await face.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        await face.release(lock)
