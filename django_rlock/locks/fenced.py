"""Redisson's fenced lock, wire for wire: a lock with a token by which the protected resource refuses a late writer."""

from __future__ import annotations

from django_rlock import keys, scripts
from django_rlock.drivers.base import ScriptCall
from django_rlock.drivers.identity import current_owner
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.plain import RLock


class TokenLock(BaseLock):
    """A lock whose holds have a fencing token."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token of the running thread's or task's hold; asks nobody.

        LockNotOwnedError when there is no hold; LockLostError when it was lost.
        """
        token = self._hold_of(self.owner or current_owner()).token
        if token is None:
            raise RuntimeError(f"The hold of lock {self.name!r} was taken through a kind of lock that has no tokens.")
        return token


class FencedLock(TokenLock, RLock):
    """An RLock with a fencing token: a number that rises with every new owner, and stays the same on re-entry.

    A holder that was paused past its lease does not know that another one is inside. The resource does, if each write
    brings the token and the resource refuses one that is lower than what it has seen (see ``fenced`` for the ORM)::

        with FencedLock("stock:42") as lock:
            fenced(Stock.objects.filter(pk=42), lock.token).update(count=F("count") - 1)

    The token is the last one plus one, or the server's time in microseconds if that is higher. So it rises even after
    the server has lost its data, as long as its clock is not set back by more than the outage took. The last one is
    forgotten FENCE_TTL after its last use. Java clients, which count from there, need a FENCE_TTL of None: theirs would
    start at 1 again. Redisson's ``getFencedLock``; the plain kinds of the same name exclude it, but draw no token.
    """

    __slots__ = ()

    kind = "fenced"
    joins = False

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        key, fence_ttl = self.key, self.settings.fence_ttl
        kept = 0 if fence_ttl is None else milliseconds(fence_ttl)
        all_keys = key, keys.token_key(key)
        return self._call(scripts.FENCED_ACQUIRE, all_keys, owner, count, milliseconds(lease), kept)
