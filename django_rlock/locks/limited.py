"""A lock that a limited number of owners may hold at once, for ``permits=``."""

from __future__ import annotations

from typing import Any, Unpack

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import ScriptCall
from django_rlock.locks.base import BaseLock
from django_rlock.locks.counters import checked_number
from django_rlock.locks.kinds import Candidate, call_for
from django_rlock.locks.options import LockOptions, milliseconds
from django_rlock.locks.readwrite import Reading

EACH_RELEASE = 1
"""Tells a reader's release that each owner that leaves makes room for another one."""


class Limited(Reading):
    """The readers of a read-write lock, limited to the number that the asking lock permits."""

    other = ""

    def begin(self, candidate: Candidate, now: float) -> None:
        """There is no other side."""

    def acquire(
        self, lock: Any, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        all_keys = keys.readwrite_keys(lock.key)[:2]
        args = asker, count, milliseconds(lease), lock.permits
        return call_for(lock, scripts.LIMITED_ACQUIRE, all_keys, *args)

    def release(self, lock: Any, owner_id: str, left: int, lease: float) -> ScriptCall:
        key, holds, _, channel = keys.readwrite_keys(lock.key)
        args = owner_id, left, milliseconds(lease), EACH_RELEASE
        return call_for(lock, scripts.READ_RELEASE, (key, holds, channel), *args)

    def token(self, lock: Any, asker: str) -> None:
        return None  # each release wakes one waiter of each process

    def check_keep(self, lock: Any, seconds: float) -> None:
        raise ValueError(f"Lock {lock.name!r} with permits= cannot be kept after its release: its holders differ.")


class LimitedLock(BaseLock):
    """A re-entrant lock that up to ``permits`` owners hold at once::

        with rlock("printers", permits=3):
            ...

    ``distributed_lock(..., permits=3)`` and ``lock_permits = 3`` of a ``LockedTask`` take it. Each caller passes the
    number, which is stored nowhere: a changed number applies from the next acquire, without ``set_permits()``. Holds
    are renewed, so the permits of dead processes come back when their leases end. A release wakes one waiter of each
    process; waiters are served in no order.

    State in Redis: that of a ``ReadWriteLock`` whose readers are the holders. So a ``write_lock`` of the same name
    waits for all of them, and keeps all of them out. Semaphores have another state: they must have another name.
    """

    __slots__ = ("permits",)

    kind = "limited"
    _kind = Limited()

    def __init__(self, name: str, *, permits: int = 1, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.permits = checked_number("permits", permits, 1)
        if self.at_least is not None:
            self._kind.check_keep(self, self.at_least)
