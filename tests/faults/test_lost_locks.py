"""A lock that is lost while it is held: its holder is told, in every way, once, and nothing of the next hold breaks."""

import sys
import threading

import pytest

from django_rlock import LockLostError, LockNotOwnedError, LockUnavailableError, scripts
from django_rlock.drivers import background
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_acquired, lock_force_released, lock_lost, lock_released, lock_timed_out
from tests.background import renew_now, until_renewed, until_round_ends

KEY = "rlock:stock:42"


@pytest.fixture
def told():
    """What the receivers of ``lock_lost`` were given."""
    calls = []

    def receiver(**given):
        calls.append(given)

    lock_lost.connect(receiver)
    yield calls
    lock_lost.disconnect(receiver)


@pytest.fixture
def fast_watchdog(settings):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.6}}


async def test_lost_hold_is_told_in_every_way(face, kind, redis_client, told, caplog):
    called = threading.Event()
    lock = kind("stock:42", on_lost=lambda _: called.set())
    with pytest.raises(LockLostError, match="'stock:42' was lost"):
        async with face.inside(lock):
            assert not lock.lost
            lock.check()
            redis_client.delete(KEY)
            renew_now()
            await face.until(called.is_set)
            assert lock.lost
            with pytest.raises(LockLostError):
                lock.check()
            with pytest.raises(LockLostError):
                await face.call(lock, "extend", 5)
    assert [given["sender"] for given in told] == [kind]
    assert told[0]["lock"] is lock
    assert "freed it" in told[0]["reason"]
    assert "was lost while held" in caplog.text
    assert HOLDS.snapshot() == []


async def test_lease_that_somebody_chose_ends_and_is_told(face, kind, told):
    lock = kind("stock:42", lease_time=0.15)
    with pytest.raises(LockLostError, match="lease"):
        async with face.inside(lock):
            await face.until(lambda: told)
            assert lock.lost
    assert len(told) == 1


async def test_owner_that_notices_first_tells_as_well(face, kind, told):
    """The background thread may be late."""
    lock = kind("stock:42")
    await face.acquire(lock)
    HOLDS.snapshot()[0].deadline -= 1000
    with pytest.raises(LockLostError):
        await face.release(lock)
    await face.until(lambda: told)
    assert len(told) == 1


async def test_release_finds_the_lock_gone(face, kind, redis_client, told):
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            redis_client.delete(KEY)
    assert len(told) == 1


async def test_release_finds_the_lock_gone_on_a_server_that_lost_its_scripts(face, kind, redis_client, told):
    """NOSCRIPT means that the release was not obeyed, so "not yours" is no echo of it."""
    lock = kind("stock:42")
    await face.acquire(lock)
    redis_client.flushall()
    redis_client.script_flush()
    with pytest.raises(LockLostError):
        await face.release(lock)
    assert len(told) == 1


async def test_entering_again_finds_the_lock_gone(face, kind, redis_client, told):
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            redis_client.delete(KEY)
            redis_client.hset(KEY, "somebody", 1)
            with pytest.raises(LockLostError):
                await face.acquire(lock)
    assert redis_client.hgetall(KEY) == {"somebody": "1"}
    assert len(told) == 1


async def test_error_of_the_block_is_not_hidden(face, kind, redis_client, caplog):
    with pytest.raises(ZeroDivisionError):
        async with face.inside(kind("stock:42")):
            redis_client.delete(KEY)
            raise ZeroDivisionError
    assert "While leaving the block of lock 'stock:42' after an error" in caplog.text


async def test_taken_again_after_a_loss(face, kind, redis_client, fast_watchdog, told):
    """Each lost block is told, and the clean-up of the lost hold does not free the new one."""
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            with pytest.raises(LockLostError):
                async with face.inside(lock):
                    redis_client.delete(KEY)
                    await face.until(lambda: told)
                    assert await face.acquire(lock)
                    assert not lock.lost
                    assert redis_client.hvals(KEY) == ["1"]
                    await face.release(lock)
                    assert lock.lost
            assert lock.lost
    assert not redis_client.exists(KEY)
    assert len(told) == 1


async def test_lost_twice_in_nested_blocks(face, kind, redis_client, told):
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            redis_client.delete(KEY)
            HOLDS.snapshot()[0].deadline -= 1000
            await face.until(lambda: lock.lost)
            with pytest.raises(LockLostError):
                async with face.inside(lock):
                    redis_client.delete(KEY)
                    HOLDS.snapshot()[0].deadline -= 1000
    assert HOLDS.snapshot() == []


async def test_late_clean_up_does_not_free_the_next_hold(face, kind, proxy, redis_client, settings, told):
    """Renewals go unanswered until the hold counts as lost; its owner takes the lock again; then the rest arrives."""
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.4}}
    lock = kind("stock:42")
    stuck = proxy.hold(scripts.LOCK_RENEW)
    await face.acquire(lock)
    await face.until(stuck.served.is_set)
    await face.until(lambda: lock.lost)
    redis_client.delete(KEY)
    assert await face.acquire(lock, lease_time=20)
    stuck.let_go.set()
    await face.until(lambda: not background._loop.deferred)
    await face.sleep(0.1)
    assert await face.call(lock, "owned")
    assert redis_client.pttl(KEY) > 15_000
    await face.release(lock)
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_owner_and_watchdog_notice_at_once(face, kind, redis_client, monkeypatch):
    """After a pause of the process both wake together: the owner takes the lock again while the other cleans up."""
    from django_rlock.locks import watchdog

    lock = kind("stock:42")
    await face.acquire(lock)
    hold = HOLDS.snapshot()[0]
    monkeypatch.setattr(background, "_jobs", [])
    hold.deadline -= 1000
    assert await face.acquire(lock, lease_time=20)  # the owner is faster
    monkeypatch.setattr(HOLDS, "snapshot", lambda: [hold])  # the watchdog had read the table before
    watchdog.renew(hold.deadline + 1000)
    await face.until(lambda: not background._loop.deferred)
    assert await face.call(lock, "owned")
    await face.release(lock)
    with pytest.raises(LockLostError):
        await face.release(lock)


@pytest.mark.parametrize("change", ["extend", "enter_again"])
async def test_renewal_under_way_does_not_shorten_a_longer_lease(face, kind, proxy, redis_client, change):
    lock = kind("stock:42")
    renewal = proxy.hold(scripts.LOCK_RENEW)
    await face.acquire(lock)
    renew_now()
    await face.until(renewal.served.is_set)
    if change == "extend":
        await face.call(lock, "extend", 60)
    else:
        await face.acquire(lock, lease_time=60)
    renewal.let_go.set()
    assert until_round_ends()
    assert redis_client.pttl(KEY) > 50_000
    hold = HOLDS.snapshot()[0]
    assert hold.deadline - hold.since > 50
    await face.release(lock)
    if change == "enter_again":
        await face.release(lock)


@pytest.mark.parametrize("signal", [lock_acquired, lock_released, lock_timed_out, lock_lost, lock_force_released])
async def test_receiver_that_raises_breaks_nothing(face, kind, redis_client, signal):
    called = []

    def broken(**_):
        called.append(1)
        raise ZeroDivisionError

    signal.connect(broken)
    try:
        lock = kind("stock:42")
        assert await face.acquire(lock)
        assert not await face.result(face.start(_try, face, lock))
        assert await face.call(lock, "force_release")
        with pytest.raises(LockLostError):
            await face.release(lock)
        async with face.inside(lock):
            pass
    finally:
        signal.disconnect(broken)
    assert called
    assert not redis_client.exists(KEY)


async def _try(face, lock):
    return await face.acquire(lock, wait_time=0.02)


async def test_on_lost_that_raises_is_logged(face, kind, redis_client, caplog):
    def broken(_):
        raise ZeroDivisionError

    lock = kind("stock:42", on_lost=broken)
    await face.acquire(lock)
    redis_client.delete(KEY)
    renew_now()
    await face.until(lambda: "on_lost" in caplog.text)
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_on_lost_that_exits_does_not_end_the_renewal_of_others(face, kind, redis_client, caplog):
    kept, lock = kind("stock:43"), kind("stock:42", on_lost=lambda _: sys.exit(1))
    await face.acquire(kept)
    await face.acquire(lock)
    redis_client.delete(KEY)
    renew_now()
    await face.until(lambda: "A background job failed" in caplog.text)
    until_renewed(next(hold for hold in HOLDS.snapshot() if hold.lock is kept))
    assert redis_client.exists("rlock:stock:43")
    await face.release(kept)
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_max_hold_time_ends_the_renewal(face, kind, fast_watchdog, told, caplog):
    lock = kind("stock:42", max_hold_time=0.3)
    await face.acquire(lock)
    await face.until(lambda: told)
    assert "max_hold_time" in caplog.text
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_renewed_while_held_and_not_after(face, kind, redis_client):
    lock = kind("stock:42")
    async with face.inside(lock):
        for _ in range(2):
            redis_client.pexpire(KEY, 20_000)
            until_renewed(HOLDS.snapshot()[0])
            assert redis_client.pttl(KEY) > 20_000
        lock.check()
    assert not redis_client.exists(KEY)


async def test_extend_ends_the_renewal(face, kind, redis_client, fast_watchdog, told):
    lock = kind("stock:42")
    await face.acquire(lock)
    await face.call(lock, "extend", 0.8)
    assert 0.7 < await face.call(lock, "remaining_lease") <= 0.8
    await face.until(lambda: told)
    await face.until(lambda: not redis_client.exists(KEY))
    with pytest.raises(LockLostError):
        await face.release(lock)


async def test_failed_extend_leaves_the_renewal_on(face, kind, proxy, redis_client, fast_watchdog):
    lock = kind("stock:42")
    await face.acquire(lock)
    for _ in range(2):
        proxy.swallow_reply(scripts.LOCK_RENEW)
    with pytest.raises(LockUnavailableError):
        await face.call(lock, "extend", 50)
    assert HOLDS.snapshot()[0].renewed or lock.lost
    HOLDS.clear()
    redis_client.delete(KEY)


async def test_release_of_what_nobody_holds(face, kind, redis_client):
    with pytest.raises(LockNotOwnedError, match="is not held by this owner") as caught:
        await face.release(kind("stock:42"))
    assert caught.value.lock_name == "stock:42"
    assert caught.value.owner
    redis_client.hset(KEY, "somebody", 1)
    with pytest.raises(LockNotOwnedError):
        await face.release(kind("stock:42"))
    with pytest.raises(LockNotOwnedError, match="order-7"):
        await face.release(kind("stock:42", owner="order-7"))
    assert redis_client.hgetall(KEY) == {"somebody": "1"}
