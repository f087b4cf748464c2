"""A hold that is taken away from its thread or task, to be released elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django_rlock.drivers.cleaning import clean_up
from django_rlock.drivers.identity import NamedOwner
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold, Key, key_of
from django_rlock.locks.watchdog import watch

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock


class Detached:
    """A hold that no longer belongs to the thread or task that took it. Whoever keeps this object may release it, in
    any thread or task.

    When the object is dropped, the background releases what is still held. Since the object is there before the hold
    changes, an interruption leaves nothing that is renewed for ever.
    """

    _hold: Hold | None = None
    _keys: tuple[Key, ...] = ()

    def __init__(self, hold: Hold) -> None:
        lock: Any = hold.lock
        self._handle: BaseLock = lock._under_name(hold.wire_name)
        self._owner = NamedOwner(hold.wire_name)
        self._keys = hold.key, key_of(self._handle, self._owner)
        self._hold = hold
        # The next acquire of this thread must not look like a re-entry of the hold, nor be undone with it.
        hold.owner.renew_name()
        hold.owner = self._owner
        hold.scoped = 0  # no block encloses it any more
        hold.ear = None  # it refers to the hold by its old key
        HOLDS.move(hold, self._keys[1])
        watch(hold)

    def release(self) -> None:
        """Release the hold; raises as ``release`` of a lock does."""
        self._handle.release()

    def drop(self) -> None:
        """Release in the background what is still held. It does not wait, so it may be called anywhere."""
        hold = self._hold
        if hold is None or hold.owner is not self._owner:
            return  # it was never detached
        is_held = hold in HOLDS
        for key in self._keys:  # both, if it was interrupted in between
            HOLDS.drop(key, hold)
        if is_held:
            hold.renewed = False
            clean_up(hold.lock.using, hold.leave_call(), hold.deadline)

    def __del__(self) -> None:
        if sys.is_finalizing():  # locks that are renewed were freed by then, and no thread can be started
            return
        try:
            self.drop()
        except BaseException:  # from a signal handler
            self.drop()
            raise
