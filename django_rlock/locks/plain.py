"""Redisson's plain re-entrant lock, wire for wire."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django_rlock import keys, scripts
from django_rlock.drivers.calls import Prepared, ScriptCall
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.kinds import Kind, L, Named
from django_rlock.settings import settings_of


@lru_cache(maxsize=keys.MOST_KEPT)
def _acquiring(key: str, count: int, lease: float) -> Prepared:
    return Prepared(scripts.RLOCK_ACQUIRE, (key,), (count, milliseconds(lease)))


@lru_cache(maxsize=keys.MOST_KEPT)
def _releasing(key: str, left: int, lease: float) -> Prepared:
    return Prepared(scripts.RLOCK_RELEASE, keys.release_keys(key), (left, milliseconds(lease)))


class Plain(Kind[L]):
    """No queue: a release wakes one waiter of each process, and the first one to try gets the lock."""

    joins = True

    def acquire(
        self, lock: L, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        key = settings_of(lock.using).key_prefix + lock.name
        return ScriptCall(lock.name, _acquiring(key, count, lease), asker)

    def release(self, lock: L, owner_id: str, left: int, lease: float) -> ScriptCall:
        key = settings_of(lock.using).key_prefix + lock.name
        return ScriptCall(lock.name, _releasing(key, left, lease), owner_id)

    def leave(self, lock: L, asker: str) -> ScriptCall:
        return self.release(lock, asker, 0, 1)

    def channel(self, lock: L) -> str | None:
        return keys.redisson_channel(lock.key)


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
    _kind: Kind[Any] = Plain[Named]()
