"""Redisson's locks without a queue, wire for wire: the plain lock, the spin lock and the fenced lock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Unpack

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import ScriptCall, Template
from django_rlock.locks.base import BaseLock
from django_rlock.locks.kinds import FENCED, JAVA_POLL, PLAIN, Kind, L, Named, call_for
from django_rlock.locks.options import LockOptions, milliseconds
from django_rlock.locks.ownership import fencing_token
from django_rlock.settings import HEARTBEAT_SHARE, settings_of

# --- plain ------------------------------------------------------------------------------------------------------------

# Redisson's plain re-entrant lock, wire for wire.


@lru_cache(maxsize=keys.MOST_KEPT)
def _acquiring(count: int, lease: float) -> Template:
    return Template(scripts.RLOCK_ACQUIRE, (count, milliseconds(lease)))


@lru_cache(maxsize=keys.MOST_KEPT)
def _releasing(left: int, lease: float) -> Template:
    return Template(scripts.RLOCK_RELEASE, (left, milliseconds(lease)))


class Plain(Kind[L]):
    """No queue: a release wakes one waiter of each process, and the first one to try gets the lock.

    While a Java client holds it, heartbeats keep an entry of our waiters in the queue of Redisson's fair lock, whose
    release notifies nobody else, and check whether the lock is free, because Redisson's spin lock notifies nobody.
    """

    joins = PLAIN
    heartbeats_together = 100
    java_poll = JAVA_POLL

    def acquire(
        self, lock: L, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        options = settings_of(lock.using)
        if not waiting:
            return ScriptCall(lock.name, _acquiring(count, lease), options.key_prefix + lock.name, asker)
        # Only a waiter looks for a Java holder, and enters the queue of Redisson's fair lock.
        return call_for(lock, scripts.RLOCK_WAIT, asker, 1, milliseconds(lease))

    def release(self, lock: L, owner_id: str, left: int, lease: float) -> ScriptCall:
        key = settings_of(lock.using).key_prefix + lock.name
        return ScriptCall(lock.name, _releasing(left, lease), key, owner_id)

    def leave(self, lock: L, asker: str) -> ScriptCall:
        return self.release(lock, asker, 0, 1)

    def channel(self, lock: L) -> str | None:
        return keys.redisson_channel(lock.key)

    def pauses(self, lock: L, left_ms: int, tries: int) -> tuple[float, float]:
        # Another client may free it without a message, such as Redisson's fair and spin locks by force, or DEL: the
        # heartbeat notices that.
        pause, _ = super().pauses(lock, left_ms, tries)
        return pause, settings_of(lock.using).waiter_alive_time * HEARTBEAT_SHARE

    def outside_channels(self, lock: L) -> tuple[str, ...]:
        return (keys.java_queue_channel(lock.key),)

    def heartbeat(self, waiting: Sequence[tuple[L, str]], pause: float) -> ScriptCall:
        all_keys = keys.by_sort([keys.java_queue_keys(lock.key) for lock, _ in waiting])
        return call_for(waiting[0][0], scripts.JAVA_HEARTBEAT, "", all_keys=all_keys)


class RLock(BaseLock):
    """A re-entrant lock that a Java service may share through Redisson's ``getLock``.

    A release wakes one waiter of each waiting process; the first one to try gets the lock. Under contention FairLock is
    fairer and cheaper; use this kind if Java clients wait for the same lock::

        with RLock("stock:42", wait_time=3):
            ...
    """

    __slots__ = ()

    kind = "rlock"
    _kind: Kind[Any] = Plain[Named]()


# --- spin -------------------------------------------------------------------------------------------------------------

# Redisson's spin lock: waiters poll with growing pauses, and need no listening connection.

Backoff = Callable[[int], float]
"""Returns how long to sleep after a number of tries, in seconds."""
SHORTEST_PAUSE = 0.0001
"""The pause used for a backoff of 0, in seconds."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Pauses in seconds that grow by ``multiplier`` up to ``maximum``, with some jitter below that."""

    initial: float = 0.001
    maximum: float = 0.128
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.initial <= self.maximum < math.inf and 1 <= self.multiplier <= 1000):
            raise ValueError("A backoff needs 0 < initial <= maximum, in seconds, and a multiplier of 1 to 1000.")

    def __call__(self, tries: int) -> float:
        grown = self.initial * self.multiplier ** min(tries - 1, 64)
        jitter = random.uniform(0, 0.001 * (tries - 1))  # noqa: S311 - it keeps waiters from polling in step
        return min(self.maximum, grown + jitter)


@dataclass(frozen=True, slots=True)
class ConstantBackoff:
    """The same pause after each try, in seconds."""

    delay: float = 0.064

    def __post_init__(self) -> None:
        if not 0 < self.delay < math.inf:
            raise ValueError("A backoff needs a delay above 0, in seconds.")

    def __call__(self, tries: int) -> float:
        return self.delay


class Spin(Plain["SpinLock"]):
    """Nothing wakes a waiter: it asks again, after pauses that the lock's ``backoff`` chooses."""

    hears_forced = False

    def acquire(
        self, lock: SpinLock, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        return super().acquire(lock, asker, count, lease)  # its process sends no heartbeats

    def channel(self, lock: SpinLock) -> None:
        return None

    def pauses(self, lock: SpinLock, left_ms: int, tries: int) -> tuple[float, float]:
        return max(lock.backoff(tries), SHORTEST_PAUSE), math.inf


class SpinLock(RLock):
    """An RLock whose waiters poll, for servers and proxies without pub/sub, and for waits of a few milliseconds.

    ``backoff`` returns how long to sleep after a number of tries, in seconds::

        with SpinLock("stock:42", backoff=ConstantBackoff(0.01)):
            ...
    """

    __slots__ = ("backoff",)

    kind = "spin"
    _kind = Spin()

    def __init__(self, name: str, *, backoff: Backoff = ExponentialBackoff(), **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        if not callable(backoff):
            raise TypeError(f"backoff must be a function of the number of tries, not {backoff!r}.")
        self.backoff = backoff


# --- fenced -----------------------------------------------------------------------------------------------------------

# Redisson's fenced lock, wire for wire: its token lets the protected resource refuse a late writer.


class Fenced(Plain["FencedLock"]):
    """Plain, and each new hold draws a token."""

    joins = FENCED

    def acquire(
        self, lock: FencedLock, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        fence_ttl = settings_of(lock.using).fence_ttl
        kept = 0 if fence_ttl is None else milliseconds(fence_ttl)
        # Other processes may hold it under a name: then a first acquire here re-enters, and keeps the token.
        shared = int(lock.owner is not None)
        args = asker, count, milliseconds(lease), kept, shared
        if not waiting:
            return call_for(lock, scripts.FENCED_ACQUIRE, *args)
        return call_for(lock, scripts.FENCED_WAIT, *args)


class FencedLock(RLock):
    """An RLock with a fencing token: a number that rises with every new owner, and stays the same on re-entry. A
    resource can refuse a write with a token lower than the highest one seen (see ``fenced`` for the ORM)::

        with FencedLock("stock:42") as lock:
            fenced(Stock.objects.filter(pk=42), lock.token).update(count=F("count") - 1)

    The token is the previous one plus one, or the server's time in microseconds if that is higher. So it rises even
    after the server has lost its data, unless its clock is set back by more than the outage took. The counter expires
    FENCE_TTL after its last use; if Java clients share it, FENCE_TTL must be None. The plain kinds of the same name
    exclude it, but draw no token.
    """

    __slots__ = ()

    kind = "fenced"
    _kind = Fenced()
    token = fencing_token
