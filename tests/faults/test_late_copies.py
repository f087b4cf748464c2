"""A command that is executed once more after its sender has moved on changes nothing that its sender no longer wants.

The proxy closes the connection of the first copy, so that the client sends the command again, and forwards that copy to
the server when the test says so.
"""

from functools import partial

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
    ReadLock,
    ReadWriteLock,
    RLock,
    SpinLock,
    WriteLock,
)
from django_rlock._redis import scripts
from django_rlock._redis.keys import fair_keys, queue_key
from django_rlock.locks.holds import HOLDS
from tests.background import renew_now, settle
from tests.faults.copies import arrive, is_settled, often

__all__ = ["often"]

KEY = "rlock:stock:42"

KINDS = {
    "fair": (FairLock, scripts.FAIR_ACQUIRE, scripts.FAIR_RELEASE, scripts.LOCK_RENEW, scripts.LOCK_EXTEND),
    "rlock": (RLock, scripts.RLOCK_ACQUIRE, scripts.RLOCK_RELEASE, scripts.LOCK_RENEW, scripts.LOCK_EXTEND),
    "spin": (SpinLock, scripts.RLOCK_ACQUIRE, scripts.RLOCK_RELEASE, scripts.LOCK_RENEW, scripts.LOCK_EXTEND),
    "fenced": (FencedLock, scripts.FENCED_ACQUIRE, scripts.RLOCK_RELEASE, scripts.LOCK_RENEW, scripts.LOCK_EXTEND),
    "read": (
        lambda *args, **options: ReadWriteLock(*args, **options).read_lock,
        scripts.READ_ACQUIRE,
        scripts.READ_RELEASE,
        scripts.SIDE_RENEW,
        scripts.SIDE_EXTEND,
    ),
    "write": (
        lambda *args, **options: ReadWriteLock(*args, **options).write_lock,
        scripts.WRITE_ACQUIRE,
        scripts.WRITE_RELEASE,
        scripts.SIDE_RENEW,
        scripts.SIDE_EXTEND,
    ),
    "multi, with sides": (
        lambda name, **options: MultiLock(WriteLock(name), ReadLock("stock:43"), FencedLock("stock:44"), **options),
        scripts.MULTI_ACQUIRE,
        scripts.MULTI_RELEASE,
        scripts.SIDE_RENEW,
        scripts.SIDE_EXTEND,
    ),
    "multi": (
        lambda name, **options: MultiLock(RLock(name), FairLock("stock:43"), **options),
        scripts.MULTI_ACQUIRE,
        scripts.MULTI_RELEASE,
        scripts.LOCK_RENEW,
        scripts.LOCK_EXTEND,
    ),
}

INNER = {
    KINDS["multi"]: (scripts.FAIR_ACQUIRE, scripts.FAIR_RELEASE),
    KINDS["multi, with sides"]: (scripts.WRITE_ACQUIRE, scripts.WRITE_RELEASE),
}
"""The scripts by which a member of a MultiLock is entered again, and released without becoming free."""


@pytest.fixture(params=KINDS)
def each(request):
    """Every kind of lock on one server, with the scripts that take, free, renew and extend it."""
    return KINDS[request.param]


# --- what could be taken ---------------------------------------------------------------------------------------------


async def test_acquire_after_the_release_takes_nothing(binding, each, proxy, redis_client):
    make, acquire, *_ = each
    late = proxy.copy_late(acquire)
    async with binding.inside(make("stock:42")):
        pass
    await arrive(binding, late)
    await binding.until(lambda: not redis_client.exists(KEY))
    assert await binding.acquire(make("stock:42"), blocking=False)
    await binding.release(make("stock:42"))


@pytest.mark.parametrize("inner", ["acquire", "release"])
async def test_inner_call_after_the_next_hold_began_changes_nothing(binding, each, proxy, redis_client, inner):
    make, (acquire, release) = each[0], INNER.get(each, each[1:3])
    await binding.acquire(make("stock:42"))
    late = proxy.copy_late(acquire if inner == "acquire" else release)
    await binding.acquire(make("stock:42"))
    await binding.release(make("stock:42"))
    await binding.release(make("stock:42"))
    await changes_nothing(binding, redis_client, late, make("stock:42", lease_time=15))


async def test_extension_after_the_next_hold_began_changes_nothing(binding, each, proxy, redis_client):
    make, *_, extend = each
    await binding.acquire(make("stock:42"))
    late = proxy.copy_late(extend)
    await binding.call(make("stock:42"), "extend", 5)
    await binding.release(make("stock:42"))
    await changes_nothing(binding, redis_client, late, make("stock:42", lease_time=60))


async def test_renewal_after_the_next_hold_began_changes_nothing(binding, each, proxy, redis_client):
    make, _, _, renew, _ = each
    late = proxy.hold(renew)
    await binding.acquire(make("stock:42"))
    for hold in HOLDS.snapshot():
        renew_now(hold)
    await binding.until(late.served.is_set)
    await binding.release(make("stock:42"))
    lock = make("stock:42", lease_time=15)
    await binding.acquire(lock)
    late.let_go.set()
    settle()
    assert 0 < redis_client.pttl(KEY) <= 15_000
    await binding.release(lock)


async def test_renewal_that_failed_and_comes_late_changes_nothing(binding, each, proxy, redis_client):
    make, _, _, renew, _ = each
    late = proxy.copy_late(renew)
    await binding.acquire(make("stock:42"))
    for hold in HOLDS.snapshot():
        renew_now(hold)
    await binding.until(late.served.is_set)
    settle()
    await binding.release(make("stock:42"))
    await changes_nothing(binding, redis_client, late, make("stock:42", lease_time=15))


async def changes_nothing(binding, redis_client, late, lock):
    """A copy that arrives after its sender has taken the lock again leaves state and lease unchanged."""
    await binding.acquire(lock)
    before = state(redis_client)
    await arrive(binding, late)
    # A reader comes in beside another, until it is cleaned up.
    await binding.until(lambda: state(redis_client).keys() == before.keys())
    after = state(redis_client)
    for key, (content, left) in before.items():
        assert after[key][0] == content
        assert min(left, left / 2) <= after[key][1] <= left  # copies ask for less than half of it, or for more
    await binding.release(lock)
    assert not redis_client.exists(KEY)


def state(redis_client):
    """What the server knows of locks: of each key the content and the lease left, in ms."""
    found = redis_client.keys("*stock:4?") + redis_client.keys("*stock:4?}:*:rwlock_timeout:*")
    return {key: (redis_client.dump(key), redis_client.pttl(key)) for key in found}


# --- what could be shortened -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["acquire", "enter", "inner release", "extend"])
async def test_lease_that_was_prolonged_since_stays(binding, each, proxy, redis_client, settings, what):
    """Each of the same hold; a copy of what was sent before comes last. A fair lock's lease may also be as short as
    that of a lock which was just handed over."""
    claim = dict.fromkeys(("CLAIM_TIME", "WAITER_ALIVE_TIME", "WATCHDOG_TIMEOUT"), 100)
    settings.RLOCK = {"default": {**settings.RLOCK["default"], **claim}}
    make, acquire, _, _, extend = each
    enter, leave = INNER.get(each, each[1:3])
    lock = make("stock:42", lease_time=20)
    if what == "acquire":
        late = proxy.copy_late(acquire)
    await binding.acquire(lock)
    if what == "enter":
        late = proxy.copy_late(enter)
    await binding.acquire(lock)
    if what == "inner release":
        late = proxy.copy_late(leave)
    await binding.release(lock)
    if what == "extend":
        late = proxy.copy_late(extend)
    await binding.call(lock, "extend", 19)
    await binding.call(lock, "extend", 60)
    await arrive(binding, late)
    leases = {key: left for key, (_, left) in state(redis_client).items() if not key.endswith("timeout:2")}
    assert min(leases.values()) > 50_000
    await binding.release(lock)


async def test_extension_that_failed_shortens_no_later_one(binding, kind, proxy, redis_client, monkeypatch):
    """It never got a reply, so of the later commands only the one that settles it knows of it."""
    lock = kind("stock:42")
    await binding.acquire(lock)
    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.ownership.RELEASE_PATIENCE", 0.0)
        late = [proxy.copy_late(scripts.LOCK_EXTEND)]
        late += [proxy.cut_before(scripts.LOCK_EXTEND) for _ in range(3)]
        with pytest.raises(LockUnavailableError):
            await binding.call(lock, "extend", 4)
    await binding.until(is_settled)
    await binding.acquire(lock, lease_time=60)
    await arrive(binding, late[0])
    assert redis_client.pttl(KEY) > 50_000
    await binding.release(lock)
    await binding.release(lock)


async def test_extension_that_failed_does_not_shorten_the_one_after_it(binding, each, proxy, redis_client, monkeypatch):
    """The owner extends again before the background thread has settled the first extension."""
    lock, *_, script = each[0]("stock:42"), each[-1]
    await binding.acquire(lock)
    late = await fails_to_extend(binding, proxy, monkeypatch, script, partial(binding.call, lock, "extend", 4))
    await binding.call(lock, "extend", 60)
    await arrive(binding, late)
    assert redis_client.pttl(KEY) > 50_000
    await binding.release(lock)


@pytest.mark.parametrize("by", ["permit", "id"])
async def test_lease_of_a_permit_that_failed_to_change_does_not_shorten_the_next(binding, proxy, monkeypatch, by):
    licences = PermitExpirableSemaphore("licences")
    await binding.call(licences, "try_set_permits", 1)
    taken = await binding.acquire(licences, renewed=by == "permit")
    permit = taken if by == "permit" else taken.id
    change = partial(binding.call, licences, "update_lease_time", permit)
    late = await fails_to_extend(binding, proxy, monkeypatch, scripts.PERMIT_RENEW, partial(change, 4))
    await change(60)
    await arrive(binding, late)
    assert await binding.call(licences, "lease_time", permit) > 50
    await binding.call(licences, "release", permit)


async def fails_to_extend(binding, proxy, monkeypatch, script, extend):
    """An extension whose commands get no reply; returns the first of them, which the server executes late."""
    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.ownership.RELEASE_PATIENCE", 0.0)
        for module in "ownership", "expirable":  # the background thread is late
            patch.setattr(f"django_rlock.locks.{module}.clean_up", lambda *_: None)
        late, *cuts = proxy.copy_late(script), *[proxy.cut_before(script) for _ in range(3)]
        with pytest.raises(LockUnavailableError):
            await extend()
        for cut in cuts:
            proxy.withdraw(cut)
    return late


# --- what could be freed ---------------------------------------------------------------------------------------------


async def test_force_release_frees_no_later_holder(binding, each, proxy, redis_client):
    make = each[0]
    await binding.acquire(make("stock:42", owner="another"))
    late = proxy.copy_late(scripts.LOCK_FORCE_RELEASE)
    lock = make("stock:42")
    await binding.call(lock, "force_release")
    HOLDS.clear()
    await changes_nothing(binding, redis_client, late, lock)


async def test_force_release_whose_reply_is_lost_leaves_the_next_holder(binding, proxy, redis_client):
    """It hands the lock to the first waiter, and is sent again."""
    waiter = f"{'a' * 36}:1"
    redis_client.hset(KEY, "another", 1)
    redis_client.zadd(queue_key(KEY), {waiter: 1})
    redis_client.zadd(fair_keys(KEY)[2], {waiter[:36]: 9e15})
    lost = proxy.lose_reply(scripts.LOCK_FORCE_RELEASE)
    assert await binding.call(FairLock("stock:42"), "force_release")
    assert lost.served.is_set()
    assert redis_client.hkeys(KEY) == [waiter]


async def test_force_release_that_failed_frees_no_later_holder(binding, kind, proxy, redis_client, monkeypatch):
    redis_client.hset(KEY, "another", 1)
    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.forced.RELEASE_PATIENCE", 0.0)
        late = proxy.copy_late(scripts.LOCK_FORCE_RELEASE)
        for _ in range(3):
            proxy.cut_before(scripts.LOCK_FORCE_RELEASE)
        with pytest.raises(LockUnavailableError):
            await binding.call(kind("stock:42"), "force_release")
    redis_client.delete(KEY)
    await binding.until(is_settled)
    await changes_nothing(binding, redis_client, late, kind("stock:42"))
