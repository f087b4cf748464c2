"""A hold that is taken away from its thread or task, to be released elsewhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django_rlock.drivers.cleaning import clean_up
from django_rlock.drivers.identity import NamedOwner, current_owner
from django_rlock.exits import disarm, guard
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold, Key, key_of
from django_rlock.locks.watchdog import watch

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock


class Detached:
    """A hold that no longer belongs to the thread or task that took it. Whoever keeps this object may release it, in
    any thread or task.

    When the object is dropped, the background releases what is still held. Since the object is there before the hold
    changes, an interruption leaves nothing that is renewed forever.
    """

    def __init__(self, hold: Hold) -> None:
        lock: Any = hold.lock
        self._handle: BaseLock = lock._under_name(hold.wire_name)
        owner = NamedOwner(hold.wire_name)
        keys = hold.key, key_of(self._handle, owner)
        self._drop = partial(_drop, hold, owner, keys)
        self._guard = guard(self, self._drop)
        # The next acquire of this thread must not look like a re-entry of the hold, nor be undone with it.
        hold.owner.renew_name()
        hold.owner = owner
        hold.scoped = 0  # no block encloses it any more
        hold.ear = None  # it refers to the hold by its old key
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
        clean_up(hold.lock.using, hold.leave_call(), hold.deadline)
    for key in keys:  # last, since it may be interrupted before; both, if ``move`` was interrupted
        HOLDS.drop(key, hold)


def leave_for(lock: BaseLock, seconds: float) -> bool:
    """Keep the running thread's hold in Redis for a number of seconds from now, without an owner in this process.

    Returns False, and changes nothing, if the thread holds the lock more than once, because an outer hold still needs
    it. Raises LockNotOwnedError when the thread does not hold it; LockLostError when the hold was lost;
    LockUnavailableError when Redis is unreachable: then the hold ends with its current lease.
    """
    hold = lock._hold_of(current_owner())
    if hold.count > 1:
        return False
    try:
        lock.extend(seconds)
    finally:
        HOLDS.remove(hold)
        hold.owner.renew_name()  # the next acquire of this thread must not look like a re-entry
    return True
