"""A holder that frees its own lock by force: its holds end, and no loss is reported."""

import time
from contextlib import suppress

import pytest

from django_rlock import (
    FairLock,
    LockLostError,
    LockNotOwnedError,
    LockUnavailableError,
    RLock,
)
from django_rlock._redis import scripts
from django_rlock.locks import ReadLock, WriteLock
from django_rlock.locks.holds import HOLDS
from tests.background import look_at, renew_now, settle
from tests.beside import beside
from tests.bindings import elsewhere
from tests.eventually import UNTIL_SERVED, eventually

KEY = "rlock:stock:42"


@pytest.mark.parametrize("owner", [None, "order-7"])
async def test_it_may_be_taken_again(binding, any_kind, redis_client, losses, owner):
    lock = any_kind("stock:42", owner=owner)
    for _ in range(2):
        assert await binding.acquire(lock)
    assert await binding.call(lock, "force_release")
    assert not lock.lost
    assert await binding.call(lock, "hold_count") == 0
    assert await binding.acquire(lock)
    assert await binding.call(lock, "hold_count") == 1
    await binding.release(lock)
    assert not redis_client.keys("rlock:stock:42*")
    settle()
    assert losses == []


async def test_its_block_ends_with_a_clear_error(binding, any_kind, losses):
    """The rest of the block was not under the lock, which an outer block may count on."""
    lock = any_kind("stock:42")
    with pytest.raises(LockNotOwnedError, match="force_release"):
        async with binding.inside(lock), binding.inside(lock):
            await binding.call(lock, "force_release")
    with pytest.raises(ZeroDivisionError):
        async with binding.inside(lock):
            await binding.call(lock, "force_release")
            raise ZeroDivisionError
    settle()
    assert losses == []


async def test_another_object_of_another_kind_does_it_as_well(binding, any_kind):
    """As the admin and the commands do, which know no kind."""
    lock = any_kind("stock:42")
    await binding.acquire(lock)
    for part in lock.parts:
        assert await binding.call(RLock(part.name), "force_release")
    assert HOLDS.snapshot() == []
    assert await binding.acquire(lock)
    await binding.release(lock)


async def test_another_owner_is_told_of_its_loss(binding, any_kind):
    lock = any_kind("stock:42")
    await binding.acquire(lock)
    assert await elsewhere(binding, lock, "force_release")
    with suppress(LockLostError):  # unless its process has been notified meanwhile: then it takes the lock anew
        await binding.acquire(lock)
        await binding.release(lock)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_another_owner_takes_it_anew_when_it_was_told(binding, any_kind):
    lock = any_kind("stock:42")
    await binding.acquire(lock)
    assert await elsewhere(binding, lock, "force_release")
    renew_now()
    await binding.until(lambda: all(hold.lost for hold in HOLDS.snapshot()))
    await binding.acquire(lock)
    await binding.release(lock)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_only_what_is_held_under_the_wire_name_ends(binding, kind):
    lock = kind("stock:42")
    await binding.acquire(lock)
    (hold,) = HOLDS.snapshot()
    assert not await binding.call(lock, "force_release", "another owner")
    lock.check()
    assert HOLDS.snapshot() == [hold]
    assert hold.renewed
    assert await binding.call(lock, "force_release", hold.owner_id)
    assert HOLDS.snapshot() == []


async def test_both_sides_end_but_one_side_leaves_the_other(binding, redis_client):
    read, write = ReadLock("stock:42"), WriteLock("stock:42")
    for forced in (read, write):
        await binding.acquire(write)
        await binding.acquire(read)
        assert await binding.call(forced, "force_release")
        (left,) = HOLDS.snapshot()
        assert type(left.lock) is not type(forced)
        assert await binding.call(FairLock("stock:42"), "force_release")
        assert HOLDS.snapshot() == []
        assert not redis_client.exists(KEY)


async def test_a_loss_of_before_is_told_all_the_same(binding, kind, redis_client):
    """The enclosing block lost the lock; the inner one took it again, and freed that by force."""
    lock = kind("stock:42", lease_time=0.05)
    with pytest.raises(LockLostError):
        async with binding.inside(lock):
            await binding.until(lambda: lock.lost)
            await binding.acquire(lock, lease_time=10)
            assert await binding.call(lock, "force_release")


async def test_what_was_lost_is_not_ended_with_what_another_holds(binding, kind, redis_client):
    lock = kind("stock:42", lease_time=0.05)
    await binding.acquire(lock)
    await binding.until(lambda: lock.lost and not redis_client.exists(KEY))  # the holder counts its lease shorter
    redis_client.hset(KEY, "another", 1)
    assert await binding.call(lock, "force_release")
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_a_renewal_meanwhile_tells_of_no_loss(binding, kind, proxy, losses):
    """It would find the lock gone before the caller hears that it was freed."""
    lock = kind("stock:42")
    await binding.acquire(lock)
    (hold,) = HOLDS.snapshot()
    forced = proxy.hold_reply(scripts.LOCK_FORCE_RELEASE)

    def renew_now() -> None:
        forced.served.wait(UNTIL_SERVED)
        due = time.monotonic() + 0.05
        hold.deadline += due - hold.renew_at()
        look_at(hold)
        eventually(lambda: time.monotonic() > due)
        settle()
        forced.let_go.set()

    with beside(renew_now):
        assert await binding.call(lock, "force_release")
    assert await binding.acquire(lock)
    await binding.release(lock)
    settle()
    assert losses == []


async def test_a_server_that_is_away_leaves_it_held_and_renewed(binding, kind, own_server):
    server = own_server()
    lock = kind("stock:42")
    await binding.acquire(lock)
    server.kill()
    with pytest.raises(LockUnavailableError):
        await binding.call(lock, "force_release")
    lock.check()
    assert HOLDS.snapshot()[0].renewed
    HOLDS.clear()
