"""Locks that several owners may hold at once: the sides of a read-write lock, and the limited lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import EVERYBODY, ScriptCall
from django_rlock.exceptions import LockUpgradeError, RLockError
from django_rlock.locks import kinds
from django_rlock.locks.base import BaseLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.options import LockOptions, checked_number, milliseconds
from django_rlock.locks.records import Hold
from django_rlock.settings import HEARTBEAT_SHARE, settings_of

Preference = Literal["writer"] | None


class SideKind(kinds.Kind["_Side"]):
    """The common part of both sides of a read-write lock."""

    def channel(self, lock: _Side) -> str:
        return keys.readwrite_channel(lock.key)

    def leave(self, lock: _Side, asker: str) -> ScriptCall:
        return self.release(lock, asker, 0, 1)

    def check_keep(self, lock: _Side, seconds: float) -> None:
        raise ValueError(
            f"A read-write lock cannot be kept after its release, as {lock.name!r} by at_least or leave(): its two "
            f"sides have different owners. Take a FairLock of another name beside it."
        )

    def lease(self, lock: _Side, owner_id: str, lease: float, mode: int) -> ScriptCall:
        # Renewals of all sides are one script, so many at once are joined; the field tells writers from readers.
        state, field = keys.side_keys(lock.key), self.field(owner_id)
        if mode == kinds.RENEW:
            return kinds.call_for(lock, scripts.SIDE_RENEW, milliseconds(lease), field, all_keys=state)
        all_keys = *state, *kinds.settled_keys(lock, owner_id, mode), keys.readwrite_channel(lock.key)
        return kinds.call_for(lock, scripts.SIDE_EXTEND, field, milliseconds(lease), mode, all_keys=all_keys)

    def beside(self, candidate: kinds.Candidate, now: float) -> Hold | None:
        """The owner's hold of the other side, if there is one that is not lost."""
        hold = HOLDS.get(candidate.lock, candidate.owner, self.other)
        return None if hold is None or hold.is_lost(now) else hold


class Reading(SideKind):
    """Many owners at once. If one may read, all may."""

    scope = "read"
    other = "write"
    joins = kinds.READ

    def begin(self, candidate: kinds.Candidate, now: float) -> None:
        # The write lock has its own owner id.
        if write := self.beside(candidate, now):
            candidate.beside = write.owner_id

    def acquire(
        self, lock: _Side, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        args = asker, count, milliseconds(lease), self.condition(lock), beside
        return kinds.call_for(lock, scripts.READ_ACQUIRE, *args)

    def condition(self, lock: _Side) -> int:
        """For how long after a heartbeat waiting writers keep readers out at most, in ms; 0 overtakes them."""
        return milliseconds(settings_of(lock.using).waiter_alive_time) if lock.prefer == "writer" else 0

    def release(self, lock: _Side, owner_id: str, left: int, lease: float) -> ScriptCall:
        return kinds.call_for(lock, scripts.READ_RELEASE, owner_id, left, milliseconds(lease))

    def token(self, lock: _Side, asker: str) -> str | None:
        # A message meant for one writer must not be used up by a reader.
        return EVERYBODY

    def pauses(self, lock: _Side, left_ms: int, tries: int) -> tuple[float, float]:
        # Redisson's writer that becomes a reader sends no message: the heartbeat notices that.
        pause, _ = super().pauses(lock, left_ms, tries)
        return pause, settings_of(lock.using).waiter_alive_time * HEARTBEAT_SHARE

    def heartbeat(self, waiting: Sequence[tuple[_Side, str]], pause: float) -> ScriptCall:
        lock, _ = waiting[0]
        return kinds.call_for(lock, scripts.READ_HEARTBEAT, int(lock.prefer == "writer"))

    def state(self, lock: _Side, owner_id: str) -> ScriptCall:
        """As in Redisson, the lock counts as locked while an owner reads, even if the same owner has the write lock."""
        return kinds.call_for(lock, scripts.READ_STATE, owner_id)

    def lease_left(self, reply: list[Any]) -> int:
        left: int = reply[3]
        return left


class Writing(SideKind):
    """One owner, whose waiters may keep new readers out."""

    scope = "write"
    other = "read"
    joins = kinds.WRITE

    def begin(self, candidate: kinds.Candidate, now: float) -> None:
        # The server checks this by owner id, but this owner may read under an earlier one.
        read, write = self.beside(candidate, now), HOLDS.get(candidate.lock, candidate.owner)
        if read is not None and (write is None or write.is_lost(now)):
            raise LockUpgradeError(candidate.lock.name, read.owner_id)

    def refusal(self, lock: _Side, reply: list[Any]) -> RLockError:
        return LockUpgradeError(lock.name, lock.owner)

    def acquire(
        self, lock: _Side, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        alive = settings_of(lock.using).waiter_alive_time if waiting and lock.prefer == "writer" else 0
        alive_ms = milliseconds(alive) if alive else 0
        args = asker, count, milliseconds(lease), alive_ms
        return kinds.call_for(lock, scripts.WRITE_ACQUIRE, *args)

    def withdraw(self, lock: _Side, asker: str) -> ScriptCall:
        return kinds.call_for(lock, scripts.WRITE_WITHDRAW, asker, all_keys=keys.readwrite_keys(lock.key)[2:])

    def release(self, lock: _Side, owner_id: str, left: int, lease: float) -> ScriptCall:
        return kinds.call_for(lock, scripts.WRITE_RELEASE, owner_id, left, milliseconds(lease))

    def pauses(self, lock: _Side, left_ms: int, tries: int) -> tuple[float, float]:
        # When a reader leaves, the lock may become free earlier than the waiter knows: the heartbeat notices that.
        heartbeat = settings_of(lock.using).waiter_alive_time * HEARTBEAT_SHARE
        pause, _ = super().pauses(lock, left_ms, tries)
        return pause, min(heartbeat, left_ms / 1000 + 0.005) if left_ms >= 0 else heartbeat

    def heartbeat(self, waiting: Sequence[tuple[_Side, str]], pause: float) -> ScriptCall:
        lock, asker = waiting[0]
        alive = settings_of(lock.using).waiter_alive_time  # not for the pause: its heartbeats never come less often
        first = int(lock.prefer == "writer")
        return kinds.call_for(lock, scripts.WRITE_HEARTBEAT, asker, milliseconds(alive), first)

    def state(self, lock: _Side, owner_id: str) -> ScriptCall:
        return kinds.call_for(lock, scripts.WRITE_STATE, owner_id)

    def field(self, owner_id: str) -> str:
        return owner_id if owner_id.endswith(keys.WRITER) else owner_id + keys.WRITER


class ReadWriteLock:
    """Many readers, or one writer; taken through ``read_lock`` and ``write_lock``::

        prices = ReadWriteLock("prices", wait_time=3)
        with prices.read_lock:
            ...
        with prices.write_lock:
            ...

    Options are those of all locks, for both sides, and ``prefer``. With "writer", waiting writers keep new readers out.
    With None, as in Redisson, overlapping readers can keep writers out forever. With "writer", a continuous stream of
    writers keeps readers out; and a reader must not wait for a thread or task that has yet to take the read lock,
    because a writer may be queued between the two.

    Both sides are re-entrant, and each needs as many releases as acquires. A writer may also take the read lock, and
    keep it after it releases the write lock. A reader that acquires the write lock would wait for itself, so it gets
    LockUpgradeError at once. Each reader's hold ends with its own lease. A writer's hold ends with the longest lease of
    its own write and read holds, because the server keeps one lease for all of them.
    """

    __slots__ = ("__weakref__", "read_lock", "write_lock")

    def __init__(self, name: str, *, prefer: Preference = None, **options: Unpack[LockOptions]) -> None:
        self.read_lock = ReadLock(name, prefer=prefer, **options)
        self.write_lock = WriteLock(name, prefer=prefer, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.read_lock.name!r}, using={self.read_lock.using!r})"


class _Shared(BaseLock):
    """A lock with the state of a read-write lock."""

    __slots__ = ()

    def __init__(self, name: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        if self.owner is not None and self.owner.endswith(keys.WRITER):
            raise ValueError(
                f"The owner of a {self.kind} lock must not end in {keys.WRITER!r}, as {self.owner!r} does."
            )
        if self.at_least is not None:
            self._kind.check_keep(self, self.at_least)


class _Side(_Shared):
    """The common part of both sides of a read-write lock."""

    __slots__ = ("prefer",)

    def __init__(self, name: str, *, prefer: Preference = None, **options: Unpack[LockOptions]) -> None:
        if prefer not in (None, "writer"):
            raise ValueError(f'prefer must be "writer" or None, not {prefer!r}.')
        super().__init__(name, **options)
        self.prefer = prefer


class ReadLock(_Side):
    """The side of a ReadWriteLock that many owners may hold at once."""

    __slots__ = ()

    kind = "read"
    _kind = Reading()


class WriteLock(_Side):
    """The side of a ReadWriteLock that excludes all other owners."""

    __slots__ = ()

    kind = "write"
    _kind = Writing()


# --- a limited lock ---------------------------------------------------------------------------------------------------

EACH_RELEASE = 1
"""Tells a reader's release that each owner that leaves makes room for another one."""


class Limited(Reading):
    """The readers of a read-write lock, limited to the number that the asking lock permits."""

    other = ""
    joins = kinds.LIMITED
    pauses = kinds.Kind.pauses

    def begin(self, candidate: kinds.Candidate, now: float) -> None:
        """There is no other side."""

    def acquire(
        self, lock: Any, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        args = asker, count, milliseconds(lease), self.condition(lock)
        return kinds.call_for(lock, scripts.LIMITED_ACQUIRE, *args)

    def condition(self, lock: Any) -> int:
        """How many owners may hold it."""
        permits: int = lock.permits
        return permits

    def release(self, lock: Any, owner_id: str, left: int, lease: float) -> ScriptCall:
        args = owner_id, left, milliseconds(lease), EACH_RELEASE
        return kinds.call_for(lock, scripts.READ_RELEASE, *args)

    def token(self, lock: Any, asker: str) -> None:
        return None  # each release wakes one waiter of each process

    def check_keep(self, lock: Any, seconds: float) -> None:
        raise ValueError(f"Lock {lock.name!r} with permits= cannot be kept after its release: its holders differ.")


class LimitedLock(_Shared):
    """A re-entrant lock that up to ``permits`` owners hold at once::

        with rlock("printers", permits=3):
            ...

    Each caller passes the number, which is stored nowhere: a changed number applies from the next acquire. Holds are
    renewed, so the permits of dead processes come back when their leases end. A release wakes one waiter of each
    process; waiters are served in no order.

    Its state is that of a ``ReadWriteLock`` whose readers are the holders. So a ``write_lock`` of the same name waits
    for all of them, and keeps all of them out. Semaphores have another state: they must have another name.
    """

    __slots__ = ("permits",)

    kind = "limited"
    _kind = Limited()

    def __init__(self, name: str, *, permits: int = 1, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.permits = checked_number("permits", permits, 1)
