"""A command that failed, and is executed after its sender has gone on, changes nothing.

``tests/flows`` lets copies of the commands that succeeded come late in every order, ``test_every_script`` of each one.
"""

from functools import partial

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockUnavailableError,
    PermitExpirableSemaphore,
    ReadLock,
    RLock,
    Semaphore,
    WriteLock,
)
from django_rlock._redis import scripts
from django_rlock.exceptions import RLockError
from django_rlock.locks import counters, forced, ownership
from django_rlock.locks.holds import HOLDS
from tests.background import renew_now, settle
from tests.bindings import BlockingBinding
from tests.faults.copies import arrive, is_settled, often
from tests.mutants import changed, owner_ids_used_again

__all__ = ["often"]

KEY = "rlock:stock:42"
LOCKS = pytest.mark.parametrize(
    ("make", "renew", "extend"),
    [(RLock, scripts.LOCK_RENEW, scripts.LOCK_EXTEND), (ReadLock, scripts.SIDE_RENEW, scripts.SIDE_EXTEND)],
    ids=["rlock", "read"],
)


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


@LOCKS
async def test_renewal_that_failed_changes_nothing_of_the_next_hold(binding, proxy, redis_client, make, renew, extend):
    late = proxy.copy_late(renew)
    await binding.acquire(make("stock:42"))
    renew_now()
    await binding.until(late.served.is_set)
    settle()
    await binding.release(make("stock:42"))
    await changes_nothing(binding, redis_client, late, make("stock:42", lease_time=15))


@LOCKS
@pytest.mark.parametrize("settled_by", ["the background thread", "the next extension"])
async def test_extension_that_failed_shortens_no_later_one(
    binding, proxy, redis_client, monkeypatch, make, renew, extend, settled_by
):
    """Its sender got no reply. A later extension, or the background thread, settles it."""
    lock, in_time = make("stock:42"), settled_by == "the background thread"
    await binding.acquire(lock)
    late = await fails(binding, proxy, monkeypatch, extend, partial(binding.call, lock, "extend", 4), in_time)
    if in_time:
        await binding.until(is_settled)
        await binding.acquire(lock, lease_time=60)
        await binding.release(lock)
    else:
        await binding.call(lock, "extend", 60)
    await arrive(binding, late)
    assert redis_client.pttl(KEY) > 50_000
    await binding.release(lock)


KINDS = {
    "fair": (FairLock, scripts.FAIR_ACQUIRE, scripts.FAIR_RELEASE, scripts.LOCK_EXTEND),
    "rlock": (RLock, scripts.RLOCK_ACQUIRE, scripts.RLOCK_RELEASE, scripts.LOCK_EXTEND),
    "fenced": (FencedLock, scripts.FENCED_ACQUIRE, scripts.RLOCK_RELEASE, scripts.LOCK_EXTEND),
    "read": (ReadLock, scripts.READ_ACQUIRE, scripts.READ_RELEASE, scripts.SIDE_EXTEND),
    "write": (WriteLock, scripts.WRITE_ACQUIRE, scripts.WRITE_RELEASE, scripts.SIDE_EXTEND),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("what", ["acquire", "enter", "inner release", "extend"])
async def test_lease_that_was_prolonged_since_stays(binding, proxy, redis_client, settings, name, what):
    """In the same hold. The flows find the same, but few of the orders in which it can be seen are in a sample."""
    claim = dict.fromkeys(("CLAIM_TIME", "WAITER_ALIVE_TIME", "WATCHDOG_TIMEOUT"), 100)
    settings.RLOCK = {"default": {**settings.RLOCK["default"], **claim}}  # a lease may be as short as a grant's
    make, acquire, release, extend = KINDS[name]
    lock = make("stock:42", lease_time=20)
    calls = {
        "acquire": (acquire, partial(binding.acquire, lock)),
        "enter": (acquire, partial(binding.acquire, lock)),
        "inner release": (release, partial(binding.release, lock)),
        "extend": (extend, partial(binding.call, lock, "extend", 19)),
    }
    for each, (script, call) in calls.items():
        if each == what:
            late = proxy.copy_late(script)
        await call()
    await binding.call(lock, "extend", 60)
    await arrive(binding, late)
    leases = {key: left for key, (_, left) in state(redis_client).items() if not key.endswith("timeout:2")}
    assert min(leases.values()) > 50_000
    await binding.release(lock)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("inner", ["acquire", "release"])
async def test_inner_call_after_the_last_release_takes_nothing(binding, proxy, redis_client, name, inner):
    make, acquire, release, _ = KINDS[name]
    lock = make("stock:42")
    await binding.acquire(lock)
    late = proxy.copy_late(acquire if inner == "acquire" else release)
    await binding.acquire(lock)
    await binding.release(lock)
    await binding.release(lock)
    await arrive(binding, late)
    assert not redis_client.exists(KEY)


@pytest.mark.parametrize("by", ["permit", "id"])
async def test_lease_of_a_permit_that_failed_to_change_does_not_shorten_the_next(binding, proxy, monkeypatch, by):
    licences = PermitExpirableSemaphore("licences")
    await binding.call(licences, "try_set_permits", 1)
    taken = await binding.acquire(licences, renewed=by == "permit")
    permit = taken if by == "permit" else taken.id
    change = partial(binding.call, licences, "update_lease_time", permit)
    late = await fails(binding, proxy, monkeypatch, scripts.PERMIT_RENEW, partial(change, 4), cleaned_up=False)
    await change(60)
    await arrive(binding, late)
    assert await binding.call(licences, "lease_time", permit) > 50
    await binding.call(licences, "release", permit)


async def test_force_release_that_failed_frees_no_later_holder(binding, kind, proxy, redis_client, monkeypatch):
    redis_client.hset(KEY, "another", 1)
    free = partial(binding.call, kind("stock:42"), "force_release")
    late = await fails(binding, proxy, monkeypatch, scripts.LOCK_FORCE_RELEASE, free)
    redis_client.delete(KEY)
    await binding.until(is_settled)
    await changes_nothing(binding, redis_client, late, kind("stock:42"))


@pytest.mark.parametrize(
    ("script", "method", "args"),
    [
        (scripts.SEMAPHORE_ADD, "add_permits", [5]),
        (scripts.SEMAPHORE_DRAIN, "drain_permits", []),
        (scripts.SEMAPHORE_DELETE, "delete", []),
    ],
)
async def test_change_of_a_semaphore_that_failed_is_not_made_later(
    binding, proxy, redis_client, monkeypatch, script, method, args
):
    """Its caller had a reply, and may have made another change."""
    redis_client.set("rlock:printers", 3)
    late = await fails(binding, proxy, monkeypatch, script, partial(binding.call, Semaphore("printers"), method, *args))
    await binding.until(is_settled)
    before = redis_client.get("rlock:printers")
    await arrive(binding, late)
    await binding.until(is_settled)
    assert redis_client.get("rlock:printers") == before


async def fails(binding, proxy, monkeypatch, script, call, cleaned_up=True):
    """A call whose commands get no reply; returns the first of them, which the server executes late."""
    with monkeypatch.context() as patch:
        for module in "ownership", "forced", "options":
            patch.setattr(f"django_rlock.locks.{module}.RELEASE_PATIENCE", 0.0)
        if not cleaned_up:  # the background thread is late
            for module in "ownership", "expirable":
                patch.setattr(f"django_rlock.locks.{module}.clean_up", lambda *_: None)
        late, *cuts = proxy.copy_late(script), *[proxy.cut_before(script) for _ in range(3)]
        with pytest.raises(LockUnavailableError):
            await call()
        for cut in cuts:
            proxy.withdraw(cut)
    return late


# --- without the protections -----------------------------------------------------------------------------------------


async def renewed_late(binding, proxy, redis_client, _patch):
    renewals = RLock, scripts.LOCK_RENEW, scripts.LOCK_EXTEND
    await test_renewal_that_failed_changes_nothing_of_the_next_hold(binding, proxy, redis_client, *renewals)


async def permit_changed_late(binding, proxy, _redis_client, patch):
    await test_lease_of_a_permit_that_failed_to_change_does_not_shorten_the_next(binding, proxy, patch, "id")


async def freed_late(binding, proxy, redis_client, patch):
    await test_force_release_that_failed_frees_no_later_holder(binding, RLock, proxy, redis_client, patch)


async def changed_late(binding, proxy, redis_client, patch):
    change = scripts.SEMAPHORE_ADD, "add_permits", [5]
    await test_change_of_a_semaphore_that_failed_is_not_made_later(binding, proxy, redis_client, patch, *change)


MUTANTS = {
    "an owner id is used again after its renewal was sent twice": (owner_ids_used_again, renewed_late),
    "a permit's lease that failed to change is not settled by the next change": (
        changed(ownership, "run_extension", "if place in UNSETTLED:", "if False:"), permit_changed_late,
    ),
    "a forced release that failed is not retired": (
        changed(forced, "_run_forced", "clean_up(lock.using, retire, driver.now() + REMEMBERED)", "pass"), freed_late,
    ),
    "a change that failed is not retired": (
        changed(counters.Counter, "_change_once", "retire(self, call)", "pass"), changed_late,
    ),
}  # fmt: skip
LONG = {"a forced release that failed is not retired"}
"""Mutants that a test notices after a long wait."""


@pytest.mark.parametrize(
    ("mutate", "finds"),
    [pytest.param(*mutant, id=name, marks=[pytest.mark.thorough] * (name in LONG)) for name, mutant in MUTANTS.items()],
)
def test_without_it_a_late_copy_is_noticed(monkeypatch, proxy, redis_client, mutate, finds):
    mutate(monkeypatch)
    binding = BlockingBinding()
    with pytest.raises((AssertionError, RLockError)) as found:
        binding.run(finds(binding, proxy, redis_client, monkeypatch))
    assert not isinstance(found.value, LockUnavailableError)
    HOLDS.clear()  # what the test that failed still held
