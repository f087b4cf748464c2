"""A lock between its acquire and its release: whether it is held, its extension, its transfer to other code."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, NoReturn

from django_rlock._core.clock import monotonic
from django_rlock._core.interruptions import disarm, guard
from django_rlock._core.threads import snapshot
from django_rlock._redis.scripts import ENDLESS
from django_rlock._transport.calls import REMEMBERED, Driver, ScriptCall
from django_rlock._transport.identity import NamedOwner, Owner, current_owner, may_block_loops, thread_owner
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockNotOwnedError
from django_rlock.locks.holds import HOLDS, NEWCOMERS, not_owned, owner_id_of
from django_rlock.locks.kinds import EXTEND, RENEW, SETTLE, AbstractLock, Named, SomeLock, holders_call
from django_rlock.locks.mutex import serialized
from django_rlock.locks.options import MILLISECOND, RELEASE_PATIENCE, Duration, duration
from django_rlock.locks.records import Hold, Key, Terms, key_of
from django_rlock.locks.release import check_keep
from django_rlock.locks.watchdog import check_sure, lose, refuse_lost, sure_of, watch

# --- ownership --------------------------------------------------------------------------------------------------------

# Whether locks are still held, by this process's records.


class HeldLock(AbstractLock):
    """A lock's holds according to this process's records."""

    __slots__ = ()

    do_not_call_in_templates = True

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise TypeError, with advice for ``@rlock("x")`` above a function."""
        raise TypeError(
            "A lock is not a decorator. Write @distributed_lock(...); or @rlock(...).atomic() for a database "
            "transaction inside the lock."
        )

    @property
    def lost(self) -> bool:
        """Whether the running thread's or task's hold was lost or has outlived its lease; sends no command.

        Only after a jump of a clock, Redis is queried; without a reply within a second, the hold counts as lost.
        """
        holds = HOLDS.of_lock(self, self._present_owner())
        return not sure_of(holds) or any(hold.is_lost(monotonic()) for hold in holds)

    @property
    def held(self) -> bool:
        """Whether the running thread or task holds the lock, or all locks of a MultiLock, by this process's record.

        Sends no command, so it does not see a loss that this process has not noticed yet. ``owned()`` asks Redis.
        """
        owner = self._present_owner()
        now = monotonic()
        return all((hold := HOLDS.get(part, owner)) is not None and not hold.is_lost(now) for part in self.parts)

    @property
    def suspect(self) -> bool:
        """Whether the last renewal failed; the hold lasts until its lease ends. Sends no command."""
        owner = self._present_owner()
        return any(hold.suspect for hold in HOLDS.of_lock(self, owner))

    def check(self) -> None:
        """Raise LockLostError when the hold was lost, LockNotOwnedError when there is none; asks as ``lost`` does."""
        owner = self._present_owner()
        check_sure(HOLDS.of_lock(self, owner))
        for part in self.parts:
            HOLDS.owned(part, owner)

    def _present_owner(self) -> Owner:
        """The owner whose hold ``lost`` and ``check()`` concern."""
        owner = self._named_owner or current_owner()
        if owner.task is not None and may_block_loops() and not HOLDS.of_lock(self, owner):
            return thread_owner()  # a blocking method may have taken it
        return owner


# --- the lease and the state ------------------------------------------------------------------------------------------


_extension_seconds = duration("lease_time", least=MILLISECOND)


@serialized
async def extend(lock: AbstractLock, driver: Driver, owner: Owner, lease_time: Duration) -> None:
    lease = _extension_seconds(lease_time)
    if lease is None:
        raise ValueError("extend() needs a lease_time in seconds.")
    lock._kind.check_lease(lock, lease)
    hold = HOLDS.get(lock, owner)
    if hold is not None:
        await extend_hold(lock, driver, hold, lease)
        return
    # Another process may have taken the hold of a named owner.
    call = lock._kind.lease(lock, owner.owner_id, lease, RENEW) if owner.is_named else None
    if call is None or not (await driver.run(call, driver.now() + RELEASE_PATIENCE))[1]:
        raise not_owned(lock, owner)


async def extend_hold(lock: Named, driver: Driver, hold: Hold, lease: float) -> None:
    refuse_lost(hold, driver.now())
    call = hold.lease_call(lease, RENEW if hold.owner.is_named else EXTEND)
    terms, started = hold.terms, driver.now()
    try:
        hold.renewed = False  # or the watchdog would shorten the new lease
        if hold.owner.is_named:
            reply = await driver.run(call, started + RELEASE_PATIENCE)
        else:
            reply = await run_extension(lock, driver, hold.owner_id, call, partial(hold.lease_call, lease, SETTLE))
        if reply[1] != 0:
            hold.lease_from(call.sent_at, lease, renewed=False)
            watch(hold)
    except BaseException:
        _doubt_extension(lock, hold, terms, started + hold.runs(lease))
        watch(hold)
        raise
    if reply[1] == 0:
        lose(hold, "it was gone when its lease was to be extended")
    refuse_lost(hold, driver.now())


UNSETTLED: dict[tuple[str, str, str], float] = {}
"""Extensions that the server may still execute: alias, key and owner id, and the monotonic time from which on it
executes no copy."""


async def run_extension(
    lock: Named, driver: Driver, owner_id: str, call: ScriptCall, settle: Callable[[], ScriptCall]
) -> list[Any]:
    """Send an extension and return its reply; neither an earlier one nor a copy of it may change a lease chosen later.

    ``settle`` makes the SETTLE call for this owner id.
    """
    now = driver.now()
    until, place = now + RELEASE_PATIENCE, (lock.using, lock.key, owner_id)
    # The nonces of a process rise, and SETTLE makes the server ignore all extensions with an earlier one (rule 15). The
    # background thread sends it after an extension that failed; but this owner may be earlier.
    if place in UNSETTLED:
        await driver.run(settle(), until)
    UNSETTLED[place] = now + REMEMBERED
    reply = await driver.run(call, until)
    if call.sends > 1:
        await driver.run(settle(), until)
    UNSETTLED.pop(place, None)
    if UNSETTLED:
        _forget_settled(now)
    return reply


def _forget_settled(now: float) -> None:
    for place, until in snapshot(UNSETTLED.items()):
        if until < now:
            UNSETTLED.pop(place, None)


def _doubt_extension(lock: Named, hold: Hold, terms: Terms, ends: float) -> None:
    """Handle an extension that may have been executed, or may be late. Under a name chosen by the caller it only
    prolongs the lease."""
    hold.restore(terms)
    if not hold.owner.is_named:
        # Whichever lease the server has, it certainly runs until the earlier of the two ends.
        hold.deadline = min(hold.deadline, ends)
        clean_up(lock.using, hold.lease_call(hold.lease, SETTLE), hold.deadline)


async def ask_state(lock: AbstractLock, driver: Driver, owner: Owner) -> tuple[int, int]:
    reply = await driver.run(lock._kind.state(lock, owner_id_of(lock, owner)), driver.now())
    count, left_ms = reply[1], reply[2]
    hold = HOLDS.get(lock, owner)
    if count and hold is not None:
        count = hold.count  # a late copy of a re-entry or an inner release may have rewritten the server's
        if hold.kind.drifts and left_ms != ENDLESS:
            left_ms = min(left_ms, int(1000 * max(hold.deadline - driver.now(), 0.0)))  # as ``lost`` counts
    return count, left_ms


async def ask_holders(lock: AbstractLock, driver: Driver) -> list[str]:
    reply = await driver.run(holders_call(lock), driver.now())
    ending = lock._kind.field("")
    return [field.decode(errors="backslashreplace").removesuffix(ending) for field in reply[1]]


# --- holds that are handed over ---------------------------------------------------------------------------------------

# Holds that outlast their thread or task: they are released elsewhere, or after some time.


class TransferredHold:
    """A hold that no longer belongs to the thread or task that took it. Code that has this object may release the hold,
    in any thread or task.

    When the object is dropped, the background thread releases a hold that is left. Because the object exists before the
    hold changes, an interruption leaves no hold that is renewed forever.
    """

    def __init__(self, hold: Hold) -> None:
        lock: Any = hold.lock
        self._handle: AbstractLock = lock._under_name(hold.owner_id)
        owner = NamedOwner(hold.owner_id)
        keys = hold.key, key_of(self._handle, owner)
        former = hold.owner
        self._release_rest = partial(_release_rest, hold, former, owner, keys)
        self._guard = guard(self, self._release_rest)
        hold.owner = owner
        hold.job, hold.scoped = None, 0  # neither a job nor a block ends it now
        hold.subscription = None  # it refers to the hold by its old key
        HOLDS.move(hold, keys[1], former)
        watch(hold)

    def release(self) -> None:
        """Release the hold; raises as ``release`` of a lock does."""
        self._handle.release()
        disarm(self._guard)

    def release_later(self) -> None:
        """Release the rest of the hold in the background. This does not wait, so any code may call it."""
        self._release_rest()
        disarm(self._guard)


def _release_rest(hold: Hold, former: Owner, owner: NamedOwner, keys: tuple[Key, Key]) -> None:
    if hold.owner is not owner:
        return  # it was never detached
    former.holds.pop(hold, None)  # ``move`` may have been interrupted
    if hold in HOLDS:
        hold.renewed, hold.ending = False, True
        clean_up(hold.lock.using, hold.keep_call() or hold.leave_call(), hold.deadline)
    for key in keys:  # last, since it may be interrupted before; both, if ``move`` was interrupted
        HOLDS.remove_at(key, hold)


def hand_over(lock: AbstractLock, owner: Owner) -> None:
    """Forget a named owner's hold, which other processes that use the name still have. Reports still name it."""
    holds = [HOLDS.owned(part, owner) for part in lock.parts]
    if any(hold.scoped > 0 for hold in holds):
        raise RuntimeError(f"The 'with' block of lock {lock.name!r} would release it; use acquire() to hand it over.")
    for hold in holds:
        hold.handed_over = True
        NEWCOMERS.notify(hold)
        HOLDS.remove(hold)


_kept_seconds = duration("seconds")


def kept_after_release(lock: SomeLock, owner: Owner, seconds: Duration) -> SomeLock:
    """The same lock, whose release by this owner keeps it taken for ``seconds`` from now."""
    kept = copy(lock)
    kept.at_least = _kept_seconds(seconds) or None
    if kept.at_least is not None:
        check_keep(lock, kept.at_least)
        for hold in HOLDS.of_lock(lock, owner):
            hold.keep_for(kept.at_least, monotonic())
    return kept


def _token(self: HeldLock) -> int:
    """The fencing token of the running thread's or task's hold; sends no command.

    Raises LockNotOwnedError when there is no hold; LockLostError when it was lost.
    """
    try:
        token: int | None = HOLDS.owned(self, self._present_owner()).token
    except LockNotOwnedError as error:
        raise LockNotOwnedError(self.name, error.owner, asked_for="fencing token") from None
    if token is None:
        raise RuntimeError(f"The hold of lock {self.name!r} was taken by a kind of lock without tokens.")
    return token


fencing_token = property(_token)
"""``lock.token`` of the kinds that have one."""
