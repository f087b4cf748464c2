"""The holds and waits of this process: tables that the watchdog and the reports read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django_rlock._core.clock import monotonic
from django_rlock._core.process import on_fork
from django_rlock._core.threads import snapshot
from django_rlock._transport.identity import Owner
from django_rlock.exceptions import LockNotOwnedError
from django_rlock.locks.records import Hold, Key, Spot, Wait, Work, key_of, spot_of

if TYPE_CHECKING:
    from django_rlock.locks.kinds import AbstractLock, Named


class Before(NamedTuple):
    """The hold of an owner before an attempt or a block: its record, its count, and its number of blocks."""

    record: Hold | None = None
    depth: int = 0
    blocks: int = 0

    def is_exceeded(self, hold: Hold, depth: int) -> bool:
        """Whether the lock is held more often now."""
        if depth > self.depth:
            return True
        # A hold that was lost before may be forgotten during a long wait; then the new hold is not nested.
        former = self.record
        return former is not None and former.lost is not None and hold is not former and hold.lost is None


NOTHING = Before()

NEAR = 1023
"""Names and keys are divided into this number of parts plus one, a power of two, to find what belongs to one of them
without looking through the rest."""


class Holds:
    """Holds by place, name, scope and owner.

    Each entry is written by its owner only, and dict operations are atomic.

    A question about one lock, one owner or one request does not look through the whole table. A hold is also noted with
    its owner (``Owner.holds``), with the request or task for which it was taken (``Work.holds``), and beside the holds
    of few other names (``_near``). Only the table decides: a note without an entry is passed over. A hold is noted
    with its owner before its entry is made, so an owner without notes holds nothing, also for a signal handler that
    comes in between. Other notes are made after that, and all are forgotten after the entry is removed. If an
    interruption comes in between, the code that handles it removes the hold.
    """

    def __init__(self) -> None:
        self.table: dict[Key, Hold] = {}
        """Read by others only to see whether anything is held, and to look a key up without a call."""
        # A dict for each name would have to be removed when it becomes empty, while another thread may add to it.
        self._near: tuple[dict[Hold, None], ...] = tuple({} for _ in range(NEAR + 1))

    def get(self, lock: Named, owner: Owner, scope: str | None = None) -> Hold | None:
        """The owner's hold of this lock, or of the same name in another scope."""
        return self.table.get(key_of(lock, owner, scope))

    def owned(self, lock: Named, owner: Owner) -> Hold:
        """The owner's hold. Raises LockLostError when it was lost, LockNotOwnedError when there is none."""
        hold = self.get(lock, owner)
        if hold is None:
            raise not_owned(lock, owner)
        if hold.is_lost(monotonic()):
            raise hold.lost_error()
        return hold

    def at(self, key: Key) -> Hold | None:
        """The hold with this key."""
        return self.table.get(key)

    def under_keys(self, keys: Iterable[Key]) -> list[Hold]:
        """The holds with these keys, where they exist."""
        return list(filter(None, map(self.table.get, keys)))

    def before(self, keys: Sequence[Key], depth: Callable[[Key], tuple[int, int]]) -> Mapping[Key, Before]:
        """The holds with these keys, where they exist; ``depth`` returns how often and by how many blocks a lock is
        held."""
        return {} if self.has_none(keys) else {key: Before(self.table.get(key), *depth(key)) for key in keys}

    def depth(self, key: Key) -> tuple[int, int]:
        """How often the lock with this key is held, counting holds that were lost and not released yet, and by how many
        blocks."""
        hold = self.table.get(key)
        return (0, 0) if hold is None else (hold.count + hold.lost_below, hold.scoped)

    def has_none(self, keys: Sequence[Key]) -> bool:
        """Whether there is no hold with any of these keys."""
        return self.table.keys().isdisjoint(keys)

    def put(self, hold: Hold) -> None:
        hold.owner.holds[hold] = None
        self.table[hold.key] = hold
        # As _note(), without a call.
        if hold.context is not None:
            hold.context.holds[hold] = None
        self._near[hash(hold.lock.name) & NEAR][hold] = None

    def put_all(self, keys: Iterable[Key], holds: Sequence[Hold]) -> None:
        """Put all or none, which one owner has taken now: the table is changed by one call into C."""
        first, noted, near = holds[0], dict.fromkeys(holds), self._near
        first.owner.holds.update(noted)
        self.table.update(zip(keys, holds, strict=True))
        if first.context is not None:
            first.context.holds.update(noted)
        for hold in holds:
            near[hash(hold.lock.name) & NEAR][hold] = None

    def put_back(self, hold: Hold) -> None:
        """Put a hold that was in the table before: its owner must not miss that it is there again."""
        self._note(hold)
        self.table[hold.key] = hold

    def _note(self, hold: Hold) -> None:
        hold.owner.holds[hold] = None
        if hold.context is not None:
            hold.context.holds[hold] = None
        self._near[hash(hold.lock.name) & NEAR][hold] = None

    def remove(self, hold: Hold) -> None:
        """Remove a hold, for its owner."""
        if self.table.get(hold.key) is hold:
            self.table.pop(hold.key, None)
        hold.owner.holds.pop(hold, None)
        if hold.context is not None:
            hold.context.holds.pop(hold, None)
        self._near[hash(hold.lock.name) & NEAR].pop(hold, None)

    def remove_all(self, holds: Iterable[Hold]) -> None:
        """Remove holds, for their owner."""
        table, near = self.table, self._near
        for hold in holds:  # as remove(), without calls
            if table.get(hold.key) is hold:
                table.pop(hold.key, None)
            hold.owner.holds.pop(hold, None)
            if hold.context is not None:
                hold.context.holds.pop(hold, None)
            near[hash(hold.lock.name) & NEAR].pop(hold, None)

    def remove_beside_owner(self, hold: Hold) -> None:
        """Remove a hold, in another thread than its owner's."""
        self.remove(hold)
        if hold in self:
            self._note(hold)  # its owner has put it back meanwhile

    def move(self, hold: Hold, key: Key, former_owner: Owner) -> None:
        """Give a hold, which has another owner now, another key. If this is interrupted, the table may have it under
        both."""
        # Rather under both keys than under neither: a hold without an entry would not be renewed, nor released.
        former = hold.key
        hold.owner.holds[hold] = None
        self.table[key] = hold
        hold.key = key
        self.table.pop(former, None)
        former_owner.holds.pop(hold, None)

    def remove_at(self, key: Key, hold: Hold) -> None:
        """Remove the entry with this key if it is this hold's."""
        if self.at(key) is hold:
            self.table.pop(key, None)
        if hold not in self:
            self.remove(hold)

    def uncover_lost(self, hold: Hold) -> None:
        """Bring back the lost levels under a hold that has ended: their releases must still raise."""
        if hold.count == 0 and hold.lost_below:
            hold.count, hold.lost_below = hold.lost_below, 0
            hold.lost = "its lease ended"
            self.put_back(hold)

    def restore(self, key: Key, hold: Hold | None) -> None:
        """Restore the entry as it was before an attempt that failed."""
        failed = self.table.get(key)
        if hold is not None:
            self.put_back(hold)
        if failed is not None and failed is not hold:
            self.remove(failed)

    def __contains__(self, hold: Hold) -> bool:
        return self.table.get(hold.key) is hold

    def snapshot(self) -> list[Hold]:
        return snapshot(self.table.values())

    def locks(self) -> list[Any]:
        """The locks that are held and not known to be lost, each once for each owner here."""
        return [hold.lock for hold in self.snapshot() if not hold.lost]

    def has(self, name: str, owner_id: str) -> bool:
        """Whether a lock of this name is held under an owner id, at any alias."""
        near = snapshot(self._near[hash(name) & NEAR])
        return any([hold.owner_id == owner_id and hold.lock.name == name and hold in self for hold in near])  # noqa: C419

    def of(self, owner: Owner) -> list[Hold]:
        """The holds of one thread or task."""
        return [hold for hold in snapshot(owner.holds) if hold in self and hold.owner is owner] if owner.holds else []

    def under(self, about: Work) -> list[Hold]:
        """The holds that were taken under a context."""
        return [hold for hold in snapshot(about.holds) if hold in self] if about.holds else []

    def named(self, spot: Spot) -> list[Hold]:
        """All holds of one lock."""
        near = snapshot(self._near[hash(spot[1]) & NEAR])
        return [hold for hold in near if hold.key[:2] == spot and hold in self]

    def of_lock(self, lock: AbstractLock, owner: Owner) -> list[Hold]:
        """One owner's holds of a lock; for a MultiLock, of each of its locks."""
        return [hold for part in lock.parts if (hold := self.get(part, owner)) is not None]

    def held_against(self, lock: Named) -> list[Hold]:
        """This process's holds under a lock's name; of readers, only the holds for which ``lock`` has to wait."""
        scopes = ("", "write") if lock._kind.scope == "read" else ("", "read", "write")
        return [hold for hold in self.named(spot_of(lock)) if hold.key[2] in scopes]

    def left_by(self, lock: Named) -> str | None:
        """The reports' name of a thread or task that has ended without releasing the lock."""
        scope = lock._kind.scope
        left = [hold for hold in self.named(spot_of(lock)) if hold.key[2] == scope and hold.owner.ended]
        return left[0].caller_name if left else None

    def __bool__(self) -> bool:
        """Whether anything is held."""
        return bool(self.table)

    def clear(self) -> None:
        self.table.clear()
        for near in self._near:
            near.clear()


def not_owned(lock: Named, owner: Owner) -> LockNotOwnedError:
    """The error for an owner that does not hold the lock."""
    kind = lock._kind
    held_side = kind.other if kind.other and HOLDS.get(lock, owner, kind.other) is not None else None
    return LockNotOwnedError(lock.name, owner_id_of(lock, owner), kind.scope or None, held_side, HOLDS.left_by(lock))


def owner_id_of(lock: Named, owner: Owner) -> str:
    """The owner id under which an owner holds the lock, or would take it."""
    hold = HOLDS.get(lock, owner)
    if hold is not None:
        return hold.owner_id
    return owner.owner_id


class Waits:
    """Waits of this process, in the order in which they began."""

    hurry: Callable[[Named], object] = staticmethod(lambda _lock: None)
    """Called with a lock that may have become free earlier than its waiters expect; the package ``locks`` sets it."""

    def __init__(self) -> None:
        self._table: dict[int, Wait] = {}
        self._near: tuple[dict[int, Wait], ...] = tuple({} for _ in range(NEAR + 1))
        self.lookups: dict[tuple[str, str, str], Any] = {}
        """The look-ups of holders for callers that gave up; see ``acquire``."""

    def add(self, wait: Wait) -> None:
        self._table[id(wait)] = wait
        self._near[hash(wait.key) & NEAR][id(wait)] = wait

    def remove(self, wait: Wait) -> None:
        wait.end()
        self._forget(wait)

    def snapshot(self) -> list[Wait]:
        """The waits that are not over; waits that were interrupted before they could leave are dropped."""
        return [wait for wait in snapshot(self._table.values()) if not self._forgets(wait)]

    def has(self, key: Key) -> bool:
        """Whether a wait with this key is not over."""
        near = snapshot(self._near[hash(key) & NEAR].values())
        return any([wait.key == key and not wait.over for wait in near])  # noqa: C419

    def _forgets(self, wait: Wait) -> bool:
        if wait.over:
            self._forget(wait)
        return wait.over

    def _forget(self, wait: Wait) -> None:
        self._near[hash(wait.key) & NEAR].pop(id(wait), None)
        self._table.pop(id(wait), None)  # last: an interruption between the two leaves it to snapshot()

    def __bool__(self) -> bool:
        """Whether anyone may be waiting."""
        return bool(self._table)

    def clear(self) -> None:
        self._table.clear()
        for near in self._near:
            near.clear()
        self.lookups.clear()


class Newcomers:
    """Is notified of holds and waits that a background thread sees for the first time, or whose lease has changed."""

    notify: Callable[[Hold | Wait], object] = staticmethod(lambda _: None)
    counted: Callable[[bool], object] = staticmethod(lambda _: None)
    """Called when ``statistics`` has something new, with whether that is an event, to be reported soon."""


class Inspector:
    """The console's functions for locks: describe a lock, name its holder in one line, and a known owner of it; list an
    alias's locks whose names match a pattern."""

    describe: Callable[[Any], Any] = staticmethod(lambda _lock: None)
    holder: Callable[[Named], str | None] = staticmethod(lambda _lock: None)
    owner: Callable[[Named, str], str | None] = staticmethod(lambda _lock, _owner: None)
    matching: Callable[[str, str], Iterable[Any]] = staticmethod(lambda _using, _pattern: ())


HOLDS = Holds()
WAITS = Waits()
NEWCOMERS = Newcomers()
INSPECTOR = Inspector()


def _after_fork() -> None:
    HOLDS.clear()
    WAITS.clear()


on_fork("holds", _after_fork)
