"""A holder that frees its own lock by force: its holds end, and no loss is reported."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockLostError,
    LockNotOwnedError,
    LockUnavailableError,
    MultiLock,
    RLock,
    SpinLock,
)
from django_rlock._redis import scripts
from django_rlock.locks import BaseLock, ReadLock, WriteLock
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_lost
from tests.background import look_at, renew_now, settle
from tests.eventually import UNTIL_SERVED, eventually
from tests.faces import elsewhere

KEY = "rlock:stock:42"


def several(name: str, **options) -> MultiLock:
    return MultiLock(RLock(f"{name}:1"), FairLock(f"{name}:2"), ReadLock(f"{name}:3"), **options)


@pytest.fixture(
    params=[FairLock, RLock, SpinLock, FencedLock, ReadLock, WriteLock, several], ids=lambda each: each.__name__
)
def any_kind(request: pytest.FixtureRequest) -> Callable[..., BaseLock]:
    """Each kind of lock, and several of them as one."""
    return request.param


@pytest.fixture
def losses():
    """The locks whose loss was reported."""
    settle()  # an earlier test's
    told: list[object] = []

    def note(lock, **_):
        told.append(lock.name)

    lock_lost.connect(note)
    yield told
    lock_lost.disconnect(note)


@pytest.mark.parametrize("owner", [None, "order-7"])
async def test_it_may_be_taken_again(face, any_kind, redis_client, losses, owner):
    lock = any_kind("stock:42", owner=owner)
    for _ in range(2):
        assert await face.acquire(lock)
    assert await face.call(lock, "force_release")
    assert not lock.lost
    assert await face.call(lock, "hold_count") == 0
    assert await face.acquire(lock)
    assert await face.call(lock, "hold_count") == 1
    await face.release(lock)
    assert not redis_client.keys("rlock:stock:42*")
    settle()
    assert losses == []


async def test_its_block_ends_with_a_clear_error(face, any_kind, losses):
    """The rest of the block was not under the lock, which an outer block may count on."""
    lock = any_kind("stock:42")
    with pytest.raises(LockNotOwnedError, match="force_release"):
        async with face.inside(lock), face.inside(lock):
            await face.call(lock, "force_release")
    with pytest.raises(ZeroDivisionError):
        async with face.inside(lock):
            await face.call(lock, "force_release")
            raise ZeroDivisionError
    settle()
    assert losses == []


async def test_another_object_of_another_kind_does_it_as_well(face, any_kind):
    """As the admin and the commands do, which know no kind."""
    lock = any_kind("stock:42")
    await face.acquire(lock)
    for part in lock.parts:
        assert await face.call(RLock(part.name), "force_release")
    assert HOLDS.snapshot() == []
    assert await face.acquire(lock)
    await face.release(lock)


async def test_another_owner_is_told_of_its_loss(face, any_kind):
    lock = any_kind("stock:42")
    await face.acquire(lock)
    assert await elsewhere(face, lock, "force_release")
    with suppress(LockLostError):  # unless its process has been notified meanwhile: then it takes the lock anew
        await face.acquire(lock)
        await face.release(lock)
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_another_owner_takes_it_anew_when_it_was_told(face, any_kind):
    lock = any_kind("stock:42")
    await face.acquire(lock)
    assert await elsewhere(face, lock, "force_release")
    renew_now()
    await face.until(lambda: all(hold.lost for hold in HOLDS.snapshot()))
    await face.acquire(lock)
    await face.release(lock)
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_only_what_is_held_under_the_wire_name_ends(face, kind):
    lock = kind("stock:42")
    await face.acquire(lock)
    (hold,) = HOLDS.snapshot()
    assert not await face.call(lock, "force_release", "somebody else")
    lock.check()
    assert HOLDS.snapshot() == [hold]
    assert hold.renewed
    assert await face.call(lock, "force_release", hold.owner_id)
    assert HOLDS.snapshot() == []


async def test_both_sides_end_but_one_side_leaves_the_other(face, redis_client):
    read, write = ReadLock("stock:42"), WriteLock("stock:42")
    for forced in (read, write):
        await face.acquire(write)
        await face.acquire(read)
        assert await face.call(forced, "force_release")
        (left,) = HOLDS.snapshot()
        assert type(left.lock) is not type(forced)
        assert await face.call(FairLock("stock:42"), "force_release")
        assert HOLDS.snapshot() == []
        assert not redis_client.exists(KEY)


async def test_a_loss_of_before_is_told_all_the_same(face, kind, redis_client):
    """The enclosing block lost the lock; the inner one took it again, and freed that by force."""
    lock = kind("stock:42", lease_time=0.05)
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            await face.until(lambda: lock.lost)
            await face.acquire(lock, lease_time=10)
            assert await face.call(lock, "force_release")


async def test_what_was_lost_is_not_ended_with_what_another_holds(face, kind, redis_client):
    lock = kind("stock:42", lease_time=0.05)
    await face.acquire(lock)
    await face.until(lambda: lock.lost and not redis_client.exists(KEY))  # the holder counts its lease shorter
    redis_client.hset(KEY, "somebody", 1)
    assert await face.call(lock, "force_release")
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_a_renewal_meanwhile_tells_of_no_loss(face, kind, proxy, losses):
    """It would find the lock gone before the caller hears that it was freed."""
    lock = kind("stock:42")
    await face.acquire(lock)
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

    renewing = threading.Thread(target=renew_now)
    renewing.start()
    assert await face.call(lock, "force_release")
    renewing.join(UNTIL_SERVED)
    assert await face.acquire(lock)
    await face.release(lock)
    settle()
    assert losses == []


async def test_a_reply_that_was_lost_ends_it_as_well(face, kind, proxy):
    lock = kind("stock:42")
    await face.acquire(lock)
    lost = proxy.lose_reply(scripts.LOCK_FORCE_RELEASE)
    assert await face.call(lock, "force_release")
    assert lost.served.is_set()
    assert await face.acquire(lock)
    await face.release(lock)


async def test_a_server_that_is_away_leaves_it_held_and_renewed(face, kind, own_server):
    server = own_server()
    lock = kind("stock:42")
    await face.acquire(lock)
    server.kill()
    with pytest.raises(LockUnavailableError):
        await face.call(lock, "force_release")
    lock.check()
    assert HOLDS.snapshot()[0].renewed
    HOLDS.clear()
