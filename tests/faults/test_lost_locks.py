"""A lock that is lost while held: its holder is notified in every way, once, and the next hold is not affected."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from django_rlock import (
    BaseLock,
    LockLostError,
    LockNotOwnedError,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
)
from django_rlock._core.clock import monotonic
from django_rlock._redis import scripts
from django_rlock._transport import pool
from django_rlock._transport.calls import run_sync
from django_rlock._transport.identity import current_owner
from django_rlock._transport.registry import background_driver
from django_rlock.locks import watchdog
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import RENEW
from django_rlock.locks.watchdog import lose
from django_rlock.signals import lock_acquired, lock_force_released, lock_lost, lock_released, lock_timed_out
from tests.background import is_clean, look_at, no_threads, renew_now, settle, until_heard, until_renewed
from tests.bindings import elsewhere
from tests.eventually import PATIENCE, eventually
from tests.heard import heard
from tests.proxy import load_scripts

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"
TESTS = Path(__file__).parents[1]


@pytest.fixture
def told():
    """What the receivers of ``lock_lost`` were given."""
    settle()  # what earlier tests lost is reported by now
    with heard(lock_lost) as calls:
        yield calls


async def test_lost_hold_is_told_in_every_way(binding, kind, redis_client, told, caplog):
    called = threading.Event()
    lock = kind("stock:42", on_lost=lambda _: called.set())
    with pytest.raises(LockLostError, match="'stock:42' was lost"):
        async with binding.inside(lock):
            assert not lock.lost
            lock.check()
            redis_client.delete(KEY)
            renew_now()
            await binding.until(called.is_set)
            assert lock.lost
            with pytest.raises(LockLostError):
                lock.check()
            with pytest.raises(LockLostError):
                await binding.call(lock, "extend", 5)
    assert [given["sender"] for given in told] == [kind]
    assert told[0]["lock"] is lock
    assert "freed it" in told[0]["reason"]
    assert "was lost while held" in caplog.text
    assert HOLDS.snapshot() == []


async def test_lease_that_a_caller_chose_ends_and_is_told(binding, kind, told):
    lock = kind("stock:42", lease_time=0.15)
    with pytest.raises(LockLostError, match="lease"):
        async with binding.inside(lock):
            await binding.until(lambda: told)
            assert lock.lost
    settle()
    assert len(told) == 1


async def test_owner_that_notices_first_tells_as_well(binding, kind, told):
    """The background thread may be late."""
    lock = kind("stock:42")
    await binding.acquire(lock)
    HOLDS.snapshot()[0].deadline -= 1000
    with pytest.raises(LockLostError):
        await binding.release(lock)
    await binding.until(lambda: told)
    settle()
    assert len(told) == 1


@pytest.mark.parametrize("with_scripts", [False, True])
async def test_release_finds_the_lock_gone(binding, kind, redis_client, told, with_scripts):
    """NOSCRIPT means that the release was not executed, so "not yours" is no echo of it."""
    with pytest.raises(LockLostError):
        async with binding.inside(kind("stock:42")):
            redis_client.delete(KEY)
            if with_scripts:
                redis_client.script_flush()
    settle()
    assert len(told) == 1


async def test_entering_again_finds_the_lock_gone(binding, kind, redis_client, told):
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with binding.inside(lock):
            redis_client.delete(KEY)
            redis_client.hset(KEY, "another", 1)
            with pytest.raises(LockLostError):
                await binding.acquire(lock)
    assert redis_client.hgetall(KEY) == {"another": "1"}
    settle()
    assert len(told) == 1


async def test_error_of_the_block_is_not_hidden(binding, kind, redis_client, caplog):
    with pytest.raises(ZeroDivisionError):
        async with binding.inside(kind("stock:42")):
            redis_client.delete(KEY)
            raise ZeroDivisionError
    assert "While leaving the block of lock 'stock:42' after an error" in caplog.text


async def test_taken_again_after_a_loss(binding, kind, redis_client, told):
    """Each lost block reports the loss, and the clean-up of the lost hold does not free the new one."""
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with binding.inside(lock):
            with pytest.raises(LockLostError):
                async with binding.inside(lock):
                    redis_client.delete(KEY)
                    renew_now()
                    await binding.until(lambda: told)
                    assert await binding.acquire(lock)
                    assert not lock.lost
                    assert redis_client.hvals(KEY) == ["1"]
                    await binding.release(lock)
                    assert lock.lost
            assert lock.lost
    assert not redis_client.exists(KEY)
    settle()
    assert len(told) == 1


async def test_lost_twice_in_nested_blocks(binding, kind, redis_client, told):
    lock = kind("stock:42")
    with pytest.raises(LockLostError):
        async with binding.inside(lock):
            redis_client.delete(KEY)
            HOLDS.snapshot()[0].deadline -= 1000
            await binding.until(lambda: lock.lost)
            with pytest.raises(LockLostError):
                async with binding.inside(lock):
                    redis_client.delete(KEY)
                    HOLDS.snapshot()[0].deadline -= 1000
    assert HOLDS.snapshot() == []


async def test_late_clean_up_does_not_free_the_next_hold(binding, kind, proxy, redis_client, told):
    """Renewals go unanswered until the hold counts as lost; its owner takes the lock again; then the rest arrives."""
    lock = kind("stock:42")
    stuck = proxy.hold(scripts.LOCK_RENEW)
    await binding.acquire(lock)
    renew_now()
    await binding.until(stuck.served.is_set)
    HOLDS.snapshot()[0].deadline -= 1000
    assert lock.lost
    redis_client.delete(KEY)
    assert await binding.acquire(lock, lease_time=20)
    stuck.let_go.set()
    await binding.until(is_clean)
    await binding.sleep(0.1)
    assert await binding.call(lock, "owned")
    assert redis_client.pttl(KEY) > 15_000
    await binding.release(lock)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_owner_and_watchdog_notice_at_once(binding, kind, redis_client, monkeypatch):
    """After a pause of the process both wake together: the owner takes the lock again while the other cleans up."""
    lock = kind("stock:42")
    await binding.acquire(lock)
    hold = HOLDS.snapshot()[0]
    hold.deadline -= 1000
    assert await binding.acquire(lock, lease_time=20)  # the owner is faster
    lose(hold, hold.lease_ended())  # the watchdog had looked at it before
    settle()
    await binding.until(is_clean)
    assert await binding.call(lock, "owned")
    await binding.release(lock)
    with pytest.raises(LockLostError):
        await binding.release(lock)


@pytest.mark.parametrize("change", ["extend", "enter_again"])
async def test_renewal_under_way_does_not_shorten_a_longer_lease(binding, kind, proxy, redis_client, change):
    lock = kind("stock:42")
    renewal = proxy.hold(scripts.LOCK_RENEW)
    await binding.acquire(lock)
    renew_now()
    await binding.until(renewal.served.is_set)
    if change == "extend":
        await binding.call(lock, "extend", 60)
    else:
        await binding.acquire(lock, lease_time=60)
    renewal.let_go.set()
    await binding.sleep(0.2)
    assert redis_client.pttl(KEY) > 50_000
    hold = HOLDS.snapshot()[0]
    assert hold.deadline - hold.since > 50
    await binding.release(lock)
    if change == "enter_again":
        await binding.release(lock)


async def test_a_late_reply_to_a_renewal_revives_no_lost_lock(binding, kind, proxy, redis_client):
    """Its caller may have seen that it was lost."""
    lock = kind("stock:42")
    renewal = proxy.hold(scripts.LOCK_RENEW)
    await binding.acquire(lock)
    (hold,) = HOLDS.snapshot()
    renew_now()
    await binding.until(renewal.served.is_set)
    hold.deadline = monotonic()
    assert lock.lost
    renewal.let_go.set()
    await binding.until(lambda: hold.lost or hold.deadline > monotonic())
    assert hold.lost
    assert lock.lost
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_a_lock_that_is_lost_without_a_reply_is_freed(binding, kind, proxy, redis_client):
    """Its renewal may have reached the server: then it would stay for a lease that nobody has."""
    lock = kind("stock:42")
    renewal = proxy.swallow_reply(scripts.LOCK_RENEW)
    await binding.acquire(lock)
    renew_now()
    await binding.until(renewal.served.is_set)
    HOLDS.snapshot()[0].deadline -= 1000
    assert lock.lost
    await binding.until(lambda: not redis_client.exists(KEY))
    with pytest.raises(LockLostError):
        await binding.release(lock)


@pytest.mark.parametrize("signal", [lock_acquired, lock_released, lock_timed_out, lock_lost, lock_force_released])
async def test_receiver_that_raises_breaks_nothing(binding, kind, redis_client, signal):
    called = []

    def broken(**_):
        called.append(1)
        raise ZeroDivisionError

    signal.connect(broken)
    try:
        lock = kind("stock:42")
        assert await binding.acquire(lock)
        assert not await binding.result(binding.start(_try, binding, lock))
        assert await elsewhere(binding, lock, "force_release")
        with pytest.raises(LockLostError):
            await binding.release(lock)
        async with binding.inside(lock):
            pass
        settle()
    finally:
        signal.disconnect(broken)
    assert called
    assert not redis_client.exists(KEY)


async def _try(binding, lock):
    return await binding.acquire(lock, wait_time=0.02)


async def test_on_lost_that_raises_is_logged(binding, kind, redis_client, caplog):
    def broken(_):
        raise ZeroDivisionError

    lock = kind("stock:42", on_lost=broken)
    await binding.acquire(lock)
    redis_client.delete(KEY)
    renew_now()
    await binding.until(lambda: "on_lost" in caplog.text)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_on_lost_that_exits_does_not_end_the_renewal_of_others(binding, kind, redis_client, caplog):
    kept, lock = kind("stock:43"), kind("stock:42", on_lost=lambda _: sys.exit(1))
    await binding.acquire(kept)
    await binding.acquire(lock)
    redis_client.delete(KEY)
    renew_now()
    await binding.until(lambda: "A callback failed" in caplog.text)
    (hold,) = [hold for hold in HOLDS.snapshot() if hold.lock is kept]
    until_renewed(hold)
    assert redis_client.exists("rlock:stock:43")
    await binding.release(kept)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_a_forced_release_is_asked_about_until_there_is_an_answer(binding, kind, proxy, redis_client):
    lock = kind("stock:42", lease_time=3 * PATIENCE)  # so no renewal tells of it
    await binding.acquire(lock)
    until_heard()
    cut = [proxy.cut_before(scripts.LOCK_STATE) for _ in range(4)]
    assert await elsewhere(binding, lock, "force_release")
    await binding.until(lambda: lock.lost)
    assert all(each.served.is_set() for each in cut)
    with pytest.raises(LockLostError):
        await binding.release(lock)


@pytest.mark.parametrize("limited", ["lock", "alias", "member", "several"])
async def test_max_hold_time_ends_the_renewal(binding, kind, told, caplog, settings, limited):
    lock: BaseLock = kind("stock:42", max_hold_time=0.1 if limited in {"lock", "member"} else None)
    if limited == "alias":
        settings.RLOCK = {"default": {"MAX_HOLD_TIME": 0.1}}
    if limited == "member":
        lock = MultiLock(lock)
    if limited == "several":
        lock = MultiLock(lock, max_hold_time=0.1)
    await binding.acquire(lock)
    [hold] = HOLDS.snapshot()
    await binding.until(lambda: monotonic() > hold.since + 0.1)
    renew_now(hold)
    await binding.until(lambda: "max_hold_time" in caplog.text)
    assert f"acquired at {TESTS}/" in caplog.text
    hold.deadline -= 1000
    look_at(hold)
    await binding.until(lambda: told)
    with pytest.raises(LockLostError, match=r"held for longer than its max_hold_time of 0.1 s, since .*\.py:\d+"):
        await binding.release(lock)


def test_line_of_a_hold_is_that_of_the_project(kind):
    lock = kind("stock:42")
    lines: list[str] = []
    with lock:
        lines += HOLDS.snapshot()[0].taken_at, f"{__file__}:{sys._getframe().f_lineno - 1}"
    lock.acquire()
    lines += HOLDS.snapshot()[0].taken_at, f"{__file__}:{sys._getframe().f_lineno - 1}"
    lock.release()
    with MultiLock(lock, kind("stock:43")):
        lines += HOLDS.snapshot()[0].taken_at, f"{__file__}:{sys._getframe().f_lineno - 1}"
    assert lines[::2] == lines[1::2]


async def test_hold_of_an_hour_is_named_once_and_renewed(binding, kind, caplog, monkeypatch):
    monkeypatch.setattr(watchdog, "LONG_HOLD", 0.05)
    lock = kind("stock:42")
    async with binding.inside(lock):
        [hold] = HOLDS.snapshot()
        await binding.until(lambda: monotonic() > hold.since + 0.05)
        for _ in range(2):
            renew_now(hold)
            await binding.until(lambda: hold.deadline > monotonic() + 25)
        lock.check()
    [told] = [record.getMessage() for record in caplog.records if "renewed forever" in record.getMessage()]
    assert f"acquired at {TESTS}/" in told


def test_permit_is_renewed_for_max_hold_time_at_most(settings, caplog):
    settings.RLOCK = {"default": {"MAX_HOLD_TIME": 0.05}}
    licences = PermitExpirableSemaphore("licences")
    licences.try_set_permits(1)
    permit = licences.acquire(renewed=True)
    assert permit is not None
    [hold] = HOLDS.snapshot()
    eventually(lambda: monotonic() > hold.since + 0.05)
    renew_now(hold)
    eventually(lambda: "Permit of semaphore 'licences', acquired at" in caplog.text)
    assert not hold.renewed
    licences.release(permit)


def test_holds_of_one_server_are_renewed_by_one_script(kind, server, redis_client):
    load_scripts(server)  # a script that it does not know yet is sent for each hold

    def scripts_run() -> int:
        return redis_client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)

    locks = [kind(f"stock:{number}", lease_time=60) for number in range(20)]
    for lock in locks:
        lock.acquire()
    settle()
    before = scripts_run()
    calls = [hold.lease_call(90, RENEW) for hold in HOLDS.snapshot()]
    replies = run_sync(background_driver("default").run_all(calls))
    assert scripts_run() - before < 10  # one; and what is cleaned up again behind earlier tests
    assert [reply[1] for reply in replies] == [1] * 20
    for lock in locks:
        assert lock.remaining_lease() > 60
        lock.release()


@pytest.fixture
def only_ours(monkeypatch):
    """Connections are used by the test alone, and taken to be alive however long the machine stalls."""
    monkeypatch.setattr(pool, "FRESH", PATIENCE)
    with no_threads():
        yield


@pytest.mark.usefixtures("only_ours")
def test_a_renewal_outlasts_a_connection_that_has_ended(kind, redis_client):
    """One that was used a moment ago, and so is taken to be alive."""
    driver = background_driver("default")
    with kind("stock:42") as lock:

        def renew() -> Any:
            call = lock._kind.lease(lock, current_owner().owner_id, 90, RENEW)
            return call, run_sync(driver.run_all([call]))[0]

        renew()
        redis_client.client_kill_filter(_type="normal", skipme=True)
        call, reply = renew()
        assert (reply[1], call.sends) == (1, 2)


async def test_a_hold_that_cannot_be_renewed_costs_no_others(binding, kind, redis_client):
    """They are renewed by one script."""
    locks = {name: kind(name) for name in ("sound", "freed", "replaced", "sound too")}
    for lock in locks.values():
        await binding.acquire(lock)
    redis_client.delete("rlock:freed")
    redis_client.set("rlock:replaced", "no lock")
    renew_now()
    first = {hold.lock.name: hold.deadline for hold in HOLDS.snapshot()}
    await binding.until(lambda: locks["freed"].lost and locks["replaced"].suspect)
    assert not locks["replaced"].lost
    for name in ("sound", "sound too"):
        (hold,) = [hold for hold in HOLDS.snapshot() if hold.lock.name == name]
        assert hold.deadline > first[name]
        assert not locks[name].suspect
        await binding.release(locks[name])
    HOLDS.clear()


async def test_extend_ends_the_renewal(binding, kind, redis_client, told):
    lock = kind("stock:42")
    await binding.acquire(lock)
    await binding.call(lock, "extend", 20)
    assert 0 < await binding.call(lock, "remaining_lease") <= 20
    (hold,) = HOLDS.snapshot()
    renew_now(hold)
    settle()
    assert redis_client.pttl(KEY) <= 20_000
    hold.deadline -= 1000
    look_at(hold)
    await binding.until(lambda: told)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_failed_extend_leaves_the_renewal_on(binding, kind, proxy, redis_client):
    lock = kind("stock:42")
    await binding.acquire(lock)
    for _ in range(2):
        proxy.swallow_reply(scripts.LOCK_EXTEND)
    with pytest.raises(LockUnavailableError):
        await binding.call(lock, "extend", 50)
    assert HOLDS.snapshot()[0].renewed or lock.lost
    HOLDS.clear()
    redis_client.delete(KEY)


async def test_release_of_what_nobody_holds(binding, kind, redis_client):
    with pytest.raises(LockNotOwnedError, match="is not held by this owner") as caught:
        await binding.release(kind("stock:42"))
    assert caught.value.lock_name == "stock:42"
    assert caught.value.owner
    redis_client.hset(KEY, "another", 1)
    with pytest.raises(LockNotOwnedError):
        await binding.release(kind("stock:42"))
    with pytest.raises(LockNotOwnedError, match="order-7"):
        await binding.release(kind("stock:42", owner="order-7"))
    assert redis_client.hgetall(KEY) == {"another": "1"}
