"""Redisson's fenced lock, wire for wire: its token lets the protected resource refuse a late writer."""

from __future__ import annotations

from django_rlock import keys, scripts
from django_rlock.drivers.calls import ScriptCall
from django_rlock.exceptions import LockNotOwnedError
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.kinds import call_for
from django_rlock.locks.plain import Plain, RLock
from django_rlock.settings import settings_of


def _token(self: BaseLock) -> int:
    """The fencing token of the running thread's or task's hold; sends no command.

    Raises LockNotOwnedError when there is no hold; LockLostError when it was lost.
    """
    try:
        token = self._hold_of(self._present_owner()).token
    except LockNotOwnedError as error:
        raise LockNotOwnedError(self.name, error.owner, asked_for="fencing token") from None
    if token is None:
        raise RuntimeError(f"The hold of lock {self.name!r} was taken by a kind of lock without tokens.")
    return token


fencing_token = property(_token)
"""``lock.token`` of the kinds that have one."""


class Fenced(Plain["FencedLock"]):
    """Plain, and each new hold draws a token."""

    joins = False

    def acquire(
        self, lock: FencedLock, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        key, fence_ttl = lock.key, settings_of(lock.using).fence_ttl
        kept = 0 if fence_ttl is None else milliseconds(fence_ttl)
        shared = int(lock.owner is not None)
        all_keys = key, keys.token_key(key)
        return call_for(lock, scripts.FENCED_ACQUIRE, all_keys, asker, count, milliseconds(lease), kept, shared)


class FencedLock(RLock):
    """An RLock with a fencing token: a number that rises with every new owner, and stays the same on re-entry.

    A holder that was paused past its lease does not know that another owner has the lock. The resource knows, if each
    write carries the token and a token lower than the highest one seen is refused (see ``fenced`` for the ORM)::

        with FencedLock("stock:42") as lock:
            fenced(Stock.objects.filter(pk=42), lock.token).update(count=F("count") - 1)

    The token is the previous one plus one, or the server's time in microseconds if that is higher. So it rises even
    after the server has lost its data, unless its clock is set back by more than the outage took. The counter expires
    FENCE_TTL after its last use. Java clients only count up, so with them FENCE_TTL must be None: they would start at 1
    again. Redisson's ``getFencedLock``; the plain kinds of the same name exclude it, but draw no token.
    """

    __slots__ = ()

    kind = "fenced"
    _kind = Fenced()
    token = fencing_token
