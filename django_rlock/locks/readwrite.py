"""Redisson's read-write lock, wire for wire: many readers, or one writer."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

from django_rlock import keys, scripts
from django_rlock.drivers.base import EVERYBODY, Driver, ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockNotOwnedError, LockUpgradeError, RLockError
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.holds import HOLDS, Hold
from django_rlock.settings import BEAT_SHARE

Preference = Literal["writer"] | None


class ReadWriteLock:
    """Many readers, or one writer; taken through ``read_lock`` and ``write_lock``::

        prices = ReadWriteLock("prices", wait_time=3)
        with prices.read_lock:
            ...
        with prices.write_lock:
            ...

    Options are those of all locks, for both sides, and ``prefer``: with "writer" waiting writers keep new readers out;
    with None, as in Redisson, a stream of readers that overlap keeps writers out. Under "writer" a stream of writers
    keeps readers out, and a reader must not wait for a thread or task that has yet to take the read lock: a writer may
    stand between the two.

    Both sides are re-entrant, and each needs as many releases as it was taken. A writer may also take the read lock,
    and keep it when it gives the write lock back; a reader who asks for the write lock would wait for itself, and gets
    LockUpgradeError at once. Each reader's share ends with its own lease. A writer's ends with the longest lease of its
    own write and read holds, since the server keeps one for all of them.

    State in Redis: the hash mode → "read" or "write", reader → holds, writer:write → holds at the lock's key; for each
    hold of a reader the key ``{key}:<owner>:rwlock_timeout:<n>``, which has its lease; the channel
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

    other: ClassVar[str]

    def __init__(self, name: str, *, prefer: Preference = None, owner: str | None = None, **options: Any) -> None:
        if prefer not in (None, "writer"):
            raise ValueError(f'prefer must be "writer" or None, not {prefer!r}.')
        super().__init__(name, owner=owner, **options)
        if owner is not None and owner.endswith(keys.WRITER):
            raise ValueError(f"The owner of a read-write lock must not end in {keys.WRITER!r}, as {owner!r} does.")
        self.prefer = prefer

    def leave_call(self, owner: str) -> ScriptCall:
        return self.release_call(owner, 0, 1)

    def not_owned(self, owner: Owner | str) -> LockNotOwnedError:
        held_side = None if self._held_beside(owner) is None else self.other
        return LockNotOwnedError(self.name, self._wire_name(owner), self.scope, held_side)

    def _held_beside(self, owner: Owner | str) -> Hold | None:
        """The owner's hold of the other side."""
        return HOLDS.get(self, owner, self.other)


class ReadLock(_Side):
    """The side of a ReadWriteLock that many may hold at once."""

    __slots__ = ("writer",)

    kind = scope = "read"
    other = "write"

    def __init__(self, name: str, *, prefer: Preference = None, owner: str | None = None, **options: Any) -> None:
        super().__init__(name, prefer=prefer, owner=owner, **options)
        self.writer = ""

    async def _take(
        self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None, scoped: int = 0
    ) -> Attempt | None:
        write = self._held_beside(owner)
        lock = self
        if write is not None and not write.is_lost(driver.now()):
            # Its owner may have got a new wire name since.
            lock = copy.copy(self)
            lock.writer = write.owner
        failed = await super(ReadLock, lock)._take(driver, owner, wait, lease, scoped)
        if failed is not None:
            failed.lock = self
        return failed

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        key, holds, writers, _ = keys.readwrite_keys(self.key)
        yields = int(self.prefer == "writer")
        return self._call(
            scripts.READ_ACQUIRE, (key, holds, writers), owner, count, milliseconds(lease), yields, self.writer
        )

    def release_call(self, owner: str, left: int, lease: float) -> ScriptCall:
        key, holds, _, channel = keys.readwrite_keys(self.key)
        return self._call(scripts.READ_RELEASE, (key, holds, channel), owner, left, milliseconds(lease))

    def wake_up(self, owner: str) -> tuple[str, str | None]:
        # Where one may read all may; and a message that is meant for one writer must not be used up by a reader.
        return keys.readwrite_channel(self.key), EVERYBODY

    def renew_call(self, owner: str, lease: float) -> ScriptCall:
        return self._call(scripts.READ_RENEW, keys.readwrite_keys(self.key)[:2], owner, milliseconds(lease), 1)

    def extend_call(self, owner: str, lease: float) -> ScriptCall:
        return self._call(scripts.READ_RENEW, keys.readwrite_keys(self.key)[:2], owner, milliseconds(lease), 0)

    def state_call(self, owner: str) -> ScriptCall:
        """As Redisson's, it counts as locked while somebody reads, under a write lock of his own too."""
        return self._call(scripts.READ_STATE, keys.readwrite_keys(self.key)[:2], owner)


class WriteLock(_Side):
    """The side of a ReadWriteLock that excludes all others."""

    __slots__ = ()

    kind = scope = "write"
    other = "read"

    async def _take(
        self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None, scoped: int = 0
    ) -> Attempt | None:
        now = driver.now()
        read, write = self._held_beside(owner), HOLDS.get(self, owner)
        # The server asks by wire name, and this owner may read under an earlier one.
        if read is not None and not read.is_lost(now) and (write is None or write.is_lost(now)):
            raise LockUpgradeError(self.name, read.owner)
        return await super()._take(driver, owner, wait, lease, scoped)

    def refusal(self, reply: list[Any]) -> RLockError:
        return LockUpgradeError(self.name, self.owner)

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        alive = milliseconds(self.settings.waiter_alive_time) if waiting and self.prefer == "writer" else 0
        return self._call(
            scripts.WRITE_ACQUIRE, keys.readwrite_keys(self.key), owner, count, milliseconds(lease), alive
        )

    def release_call(self, owner: str, left: int, lease: float) -> ScriptCall:
        return self._call(scripts.WRITE_RELEASE, keys.readwrite_keys(self.key), owner, left, milliseconds(lease))

    def wake_up(self, owner: str) -> tuple[str, str | None]:
        return keys.readwrite_channel(self.key), None

    def pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        # A reader that leaves may uncover an earlier end than the waiter was told of: the beat finds it.
        beat = self.settings.waiter_alive_time * BEAT_SHARE
        pause, _ = super().pauses(left_ms, tries)
        return pause, min(beat, left_ms / 1000 + 0.005) if left_ms >= 0 else beat

    def beat_call(self, owner: str) -> ScriptCall:
        key, _, writers, _ = keys.readwrite_keys(self.key)
        alive, first = milliseconds(self.settings.waiter_alive_time), int(self.prefer == "writer")
        return self._call(scripts.WRITE_BEAT, (key, writers), owner, alive, first)

    def renew_call(self, owner: str, lease: float) -> ScriptCall:
        return self._call(scripts.WRITE_RENEW, keys.readwrite_keys(self.key)[:2], owner, milliseconds(lease), 1)

    def extend_call(self, owner: str, lease: float) -> ScriptCall:
        return self._call(scripts.WRITE_RENEW, keys.readwrite_keys(self.key)[:2], owner, milliseconds(lease), 0)

    def state_call(self, owner: str) -> ScriptCall:
        return self._call(scripts.WRITE_STATE, (self.key,), owner)

    def field(self, owner: str) -> str:
        return owner if owner.endswith(keys.WRITER) else owner + keys.WRITER
