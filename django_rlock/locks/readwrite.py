"""Redisson's read-write lock, wire for wire: many readers, or one writer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from django_rlock import keys, scripts
from django_rlock.drivers.base import EVERYBODY, Driver
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockNotOwnedError, LockUpgradeError, RLockError
from django_rlock.locks.attempt import Claim
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.holds import HOLDS, Hold
from django_rlock.locks.hooks import Waitable
from django_rlock.settings import BEAT_SHARE

Preference = Literal["writer"] | None


class ReadWriteLock:
    """Many readers, or one writer; taken through ``read_lock`` and ``write_lock``::

        prices = ReadWriteLock("prices", wait_time=3)
        with prices.read_lock:
            ...
        with prices.write_lock:
            ...

    Options are those of all locks, for both sides, and ``prefer``. With "writer", waiting writers keep new readers out.
    With None, as in Redisson, overlapping readers can keep writers out for ever. With "writer", a continuous stream of
    writers keeps readers out; and a reader must not wait for a thread or task that has yet to take the read lock,
    because a writer may be queued between the two.

    Both sides are re-entrant, and each needs as many releases as acquires. A writer may also take the read lock, and
    keep it after it releases the write lock. A reader that acquires the write lock would wait for itself, so it gets
    LockUpgradeError at once. Each reader's hold ends with its own lease. A writer's hold ends with the longest lease of
    its own write and read holds, because the server keeps one lease for all of them.

    State in Redis: the hash mode → "read" or "write", reader → holds, writer:write → holds at the lock's key; for each
    hold of a reader the key ``{key}:<owner>:rwlock_timeout:<n>``, which carries its lease; the channel
    ``redisson_rwlock:{key}``; with ``prefer`` the sorted set ``rlock_writers:{key}`` (waiting writer → epoch ms until
    which it counts as alive, see WAITER_ALIVE_TIME). Redisson's ``getReadWriteLock``, whose readers know no preference.
    """

    __slots__ = ("read_lock", "write_lock")

    def __init__(self, name: str, *, prefer: Preference = None, **options: Any) -> None:
        self.read_lock = ReadLock(name, prefer=prefer, **options)
        self.write_lock = WriteLock(name, prefer=prefer, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.read_lock.name!r}, using={self.read_lock.using!r})"


class _Side(BaseLock):
    """What both sides of a read-write lock share."""

    __slots__ = ("prefer",)

    _other: ClassVar[str]

    def __init__(self, name: str, *, prefer: Preference = None, owner: str | None = None, **options: Any) -> None:
        if prefer not in (None, "writer"):
            raise ValueError(f'prefer must be "writer" or None, not {prefer!r}.')
        super().__init__(name, owner=owner, **options)
        if owner is not None and owner.endswith(keys.WRITER):
            raise ValueError(f"The owner of a read-write lock must not end in {keys.WRITER!r}, as {owner!r} does.")
        self.prefer = prefer

    def _channel(self) -> str:
        return keys.readwrite_channel(self.key)

    def _leave_call(self, wire_name: str) -> ScriptCall:
        return self._release_call(wire_name, 0, 1)

    def _not_owned(self, owner: Owner) -> LockNotOwnedError:
        held_side = None if self._held_beside(owner) is None else self._other
        return LockNotOwnedError(self.name, self._wire_name(owner), self._scope, held_side, HOLDS.left_by(self))

    def _held_beside(self, owner: Owner) -> Hold | None:
        """The owner's hold of the other side, if there is one."""
        return HOLDS.get(self, owner, self._other)


class ReadLock(_Side):
    """The side of a ReadWriteLock that many owners may hold at once."""

    __slots__ = ("_writer",)

    kind = _scope = "read"
    _forces = (_scope,)
    _other = "write"

    def __init__(self, name: str, *, prefer: Preference = None, owner: str | None = None, **options: Any) -> None:
        super().__init__(name, prefer=prefer, owner=owner, **options)
        self._writer = ""

    async def _take(self, driver: Driver, claim: Claim) -> bool:
        write = self._held_beside(claim.owner)
        lock = self
        if write is not None and not write.is_lost(driver.now()):
            # The owner may have a new wire name since it took the write lock.
            lock = copy.copy(self)
            lock._writer = write.wire_name
        taken = await super(ReadLock, lock)._take(driver, claim)
        if not taken:
            claim.failed.lock = self
        return taken

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        key, holds, writers, _ = keys.readwrite_keys(self.key)
        yields = int(self.prefer == "writer")
        return self._call(
            scripts.READ_ACQUIRE, (key, holds, writers), wire_name, count, milliseconds(lease), yields, self._writer
        )

    def _release_call(self, wire_name: str, left: int, lease: float) -> ScriptCall:
        key, holds, _, channel = keys.readwrite_keys(self.key)
        return self._call(scripts.READ_RELEASE, (key, holds, channel), wire_name, left, milliseconds(lease))

    def _token(self, wire_name: str) -> str:
        # If one may read, all may. A message meant for one writer must not be used up by a reader.
        return EVERYBODY

    def _lease_call(self, wire_name: str, lease: float, mode: int) -> ScriptCall:
        all_keys = *keys.readwrite_keys(self.key)[:2], *self._order(wire_name, mode)
        return self._call(scripts.READ_RENEW, all_keys, wire_name, milliseconds(lease), mode)

    def _state_call(self, wire_name: str) -> ScriptCall:
        """As in Redisson, the lock counts as locked while an owner reads, even if the same owner has the write lock."""
        return self._call(scripts.READ_STATE, keys.readwrite_keys(self.key)[:2], wire_name)


class WriteLock(_Side):
    """The side of a ReadWriteLock that excludes all other owners."""

    __slots__ = ()

    kind = _scope = "write"
    _forces = (_scope,)
    _other = "read"

    async def _take(self, driver: Driver, claim: Claim) -> bool:
        now = driver.now()
        read, write = self._held_beside(claim.owner), HOLDS.get(self, claim.owner)
        # The server checks this by wire name, but this owner may read under an earlier one.
        if read is not None and not read.is_lost(now) and (write is None or write.is_lost(now)):
            raise LockUpgradeError(self.name, read.wire_name)
        return await super()._take(driver, claim)

    def _withdraw_call(self, wire_name: str) -> ScriptCall:
        return self._call(scripts.WRITE_WITHDRAW, keys.readwrite_keys(self.key)[2:], wire_name)

    def _refusal(self, reply: list[Any]) -> RLockError:
        return LockUpgradeError(self.name, self.owner)

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        alive = milliseconds(self._settings.waiter_alive_time) if waiting and self.prefer == "writer" else 0
        return self._call(
            scripts.WRITE_ACQUIRE, keys.readwrite_keys(self.key), wire_name, count, milliseconds(lease), alive
        )

    def _release_call(self, wire_name: str, left: int, lease: float) -> ScriptCall:
        return self._call(scripts.WRITE_RELEASE, keys.readwrite_keys(self.key), wire_name, left, milliseconds(lease))

    def _pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        # When a reader leaves, the lock may become free earlier than the waiter knows: the beat notices that.
        beat = self._settings.waiter_alive_time * BEAT_SHARE
        pause, _ = super()._pauses(left_ms, tries)
        return pause, min(beat, left_ms / 1000 + 0.005) if left_ms >= 0 else beat

    def _beat_call(self, waiting: Sequence[tuple[Waitable, str]], alive: float) -> ScriptCall:
        key, _, writers, _ = keys.readwrite_keys(self.key)
        owner, first = waiting[0][1], int(self.prefer == "writer")
        return self._call(scripts.WRITE_BEAT, (key, writers), owner, milliseconds(alive), first)

    def _lease_call(self, wire_name: str, lease: float, mode: int) -> ScriptCall:
        all_keys = *keys.readwrite_keys(self.key)[:2], *self._order(wire_name, mode)
        return self._call(scripts.WRITE_RENEW, all_keys, wire_name, milliseconds(lease), mode)

    def _state_call(self, wire_name: str) -> ScriptCall:
        return self._call(scripts.WRITE_STATE, (self.key,), wire_name)

    def _field(self, wire_name: str) -> str:
        return wire_name if wire_name.endswith(keys.WRITER) else wire_name + keys.WRITER
