"""Redisson's plain re-entrant lock, wire for wire."""

from __future__ import annotations

from django_rlock import keys, scripts
from django_rlock.drivers.base import ScriptCall
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds


class RLock(BaseLock):
    """A re-entrant lock that a Java service may share through Redisson's ``getLock``.

    A release wakes one waiter of every waiting process; whoever asks first gets it. Under contention FairLock is
    fairer and cheaper; take this kind where Java clients wait for the same lock::

        with RLock("stock:42", wait_time=3):
            ...

    State in Redis: the hash owner → holds at the lock's key, and the channel ``redisson_lock__channel:{key}``.
    """

    __slots__ = ()

    kind = "rlock"
    joins = True

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        return self._call(scripts.RLOCK_ACQUIRE, (self.key,), owner, count, milliseconds(lease))

    def release_call(self, owner: str, left: int, lease: float) -> ScriptCall:
        key = self.key
        return self._call(scripts.RLOCK_RELEASE, (key, keys.redisson_channel(key)), owner, left, milliseconds(lease))

    def leave_call(self, owner: str) -> ScriptCall:
        return self.release_call(owner, 0, 1)

    def wake_up(self, owner: str) -> tuple[str, str | None] | None:
        return keys.redisson_channel(self.key), None
