"""Redisson's fenced lock, wire for wire: its token lets the protected resource refuse a late writer."""

from __future__ import annotations

from django_rlock import keys, scripts
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.identity import current_owner
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.plain import RLock


class TokenLock(BaseLock):
    """A lock whose holds have a fencing token."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token of the running thread's or task's hold; sends no command.

        Raises LockNotOwnedError when there is no hold; LockLostError when it was lost.
        """
        token = self._hold_of(self._named_owner or current_owner()).token
        if token is None:
            raise RuntimeError(f"The hold of lock {self.name!r} was taken by a kind of lock without tokens.")
        return token


class FencedLock(TokenLock, RLock):
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
    _joins = False

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        key, fence_ttl = self.key, self._settings.fence_ttl
        kept = 0 if fence_ttl is None else milliseconds(fence_ttl)
        all_keys = key, keys.token_key(key)
        shared = int(self.owner is not None)
        return self._call(scripts.FENCED_ACQUIRE, all_keys, wire_name, count, milliseconds(lease), kept, shared)
