"""Holds that outlast their thread or task: to be released elsewhere, or by the end of a time."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from django_rlock.clock import monotonic
from django_rlock.drivers.cleaning import clean_up
from django_rlock.drivers.identity import NamedOwner, Owner
from django_rlock.exits import disarm, guard
from django_rlock.locks.durations import Duration, keep_seconds
from django_rlock.locks.engine import check_keep
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold, Key, key_of
from django_rlock.locks.watchdog import watch

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock


class TransferredHold:
    """A hold that no longer belongs to the thread or task that took it. Whoever keeps this object may release it, in
    any thread or task.

    When the object is dropped, the background releases what is still held. Since the object is there before the hold
    changes, an interruption leaves nothing that is renewed forever.
    """

    def __init__(self, hold: Hold) -> None:
        lock: Any = hold.lock
        self._handle: BaseLock = lock._under_name(hold.owner_id)
        owner = NamedOwner(hold.owner_id)
        keys = hold.key, key_of(self._handle, owner)
        self._drop = partial(_drop, hold, owner, keys)
        self._guard = guard(self, self._drop)
        # The next acquire of this thread must not look like a re-entry of the hold, nor be undone with it.
        hold.owner.renew_name()
        hold.owner = owner
        hold.scoped = 0  # no block encloses it any more
        hold.subscription = None  # it refers to the hold by its old key
        HOLDS.move(hold, keys[1])
        watch(hold)

    def release(self) -> None:
        """Release the hold; raises as ``release`` of a lock does."""
        self._handle.release()
        disarm(self._guard)

    def drop(self) -> None:
        """Release in the background what is still held. It does not wait, so it may be called anywhere."""
        self._drop()
        disarm(self._guard)


def _drop(hold: Hold, owner: NamedOwner, keys: tuple[Key, Key]) -> None:
    if hold.owner is not owner:
        return  # it was never detached
    if hold in HOLDS:
        hold.renewed, hold.ending = False, True
        clean_up(hold.lock.using, hold.keep_call() or hold.leave_call(), hold.deadline)
    for key in keys:  # last, since it may be interrupted before; both, if ``move`` was interrupted
        HOLDS.drop(key, hold)


def hand_over(lock: BaseLock, owner: Owner) -> None:
    """Forget a named owner's hold, which other processes that use the name still have."""
    holds = [part._hold_of(owner) for part in lock.parts]
    if any(hold.scoped > 0 for hold in holds):
        raise RuntimeError(f"The 'with' block of lock {lock.name!r} would release it; use acquire() to hand it over.")
    for hold in holds:
        HOLDS.remove(hold)


def kept_after_release(lock: BaseLock, owner: Owner, seconds: Duration) -> BaseLock:
    """The same lock, whose release by this owner keeps it taken for ``seconds`` from now."""
    kept = copy(lock)
    kept.at_least = keep_seconds(seconds)
    if kept.at_least is not None:
        check_keep(lock, kept.at_least)
        for hold in HOLDS.of_lock(lock, owner):
            hold.keep_for(kept.at_least, monotonic())
    return kept
