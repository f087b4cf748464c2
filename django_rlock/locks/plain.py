"""Redisson's plain re-entrant lock, wire for wire."""

from __future__ import annotations

from django_rlock import keys, scripts
from django_rlock.drivers.calls import ScriptCall
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds


class RLock(BaseLock):
    """A re-entrant lock that a Java service may share through Redisson's ``getLock``.

    A release wakes one waiter of each waiting process; the first one to try gets the lock. Under contention FairLock is
    fairer and cheaper; use this kind if Java clients wait for the same lock::

        with RLock("stock:42", wait_time=3):
            ...

    State in Redis: the hash owner → holds at the lock's key, and the channel ``redisson_lock__channel:{key}``.
    """

    __slots__ = ()

    kind = "rlock"
    _joins = True

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        return self._call(scripts.RLOCK_ACQUIRE, (self.key,), wire_name, count, milliseconds(lease))

    def _release_call(self, wire_name: str, left: int, lease: float) -> ScriptCall:
        return self._call(scripts.RLOCK_RELEASE, keys.release_keys(self.key), wire_name, left, milliseconds(lease))

    def _leave_call(self, wire_name: str) -> ScriptCall:
        return self._release_call(wire_name, 0, 1)

    def _channel(self) -> str | None:
        return keys.redisson_channel(self.key)
