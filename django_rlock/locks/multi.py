"""The MultiLock and its engine: all of its members or none, by as few scripts as possible."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from copy import copy
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Never

from django_rlock._core.callbacks import log
from django_rlock._redis.scripts import ABSENT, ENDLESS, OK, QUEUED
from django_rlock._transport.calls import Driver, ScriptCall
from django_rlock._transport.identity import Owner
from django_rlock.exceptions import LockLostError, LockNotOwnedError, LockUnavailableError, RLockError
from django_rlock.locks import acquire, forced, ownership
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.attempt import Attempt, lack_of_replicas
from django_rlock.locks.base import BaseLock
from django_rlock.locks.groups import Grouping, LockGroup, Piece, lost_of, pieces_of, release_all
from django_rlock.locks.holds import HOLDS, NOTHING
from django_rlock.locks.kinds import AbstractLock, Engine, Kind, Named
from django_rlock.locks.mutex import a_call, refuse_nested
from django_rlock.locks.options import UNSET, Duration, unknown_option
from django_rlock.locks.places import PLACES, first_alias
from django_rlock.locks.records import CodeLine, Hold, Key, calling_line
from django_rlock.locks.release import release_later
from django_rlock.locks.statistics import report_taken
from django_rlock.locks.watchdog import watch_group

if TYPE_CHECKING:
    from django_rlock.locks.infos import LockInfo

logger = logging.getLogger("django_rlock.locks")

KEEP_FOR = 2.0
"""How long a MultiLock keeps some members while it waits for others, in seconds; it doubles with each retry."""


class AllOrNone:
    """One attempt at some locks; ``keys`` are the owner's keys of their holds, and ``until`` is when its time is up
    (None: never).

    ``taken`` are the locks that its owner already holds. ``lent`` are the holds among them that are renewed only until
    the owner has all locks. ``_begun`` are the locks whose release has begun, and ``_left`` is the number of locks
    whose block is no longer counted. ``_owner_ids`` are the owner ids under which the locks are taken, by place: one
    script frees what one owner id holds on a server, and two places that are one server must not look like a re-entry.
    """

    def __init__(self, driver: Driver, request: AcquireRequest, keys: list[Key]) -> None:
        self.driver = driver
        self.request = request
        self.owner = request.owner
        self._owner_ids: dict[str, str] = {}
        self.until = request.until
        self.taken: list[AbstractLock] = []
        self.lent: list[Hold] = []
        self._begun: set[object] = set()
        self._left = 0
        self._keys = keys
        self._before = HOLDS.before(self._keys, HOLDS.depth)

    async def run(self, parts: Sequence[AbstractLock], pieces: Iterable[Piece]) -> bool:
        """Take the ``parts``, which scripts take as ``pieces``; returns False when the time is up."""
        keep_for = KEEP_FOR
        taken = await self._all_or_none(self._take_at_once, pieces)
        while not taken and self._may_wait():
            # Nothing is held during this wait. The awaited member is kept while the others are tried.
            (awaited,) = [part for part in parts if part is self.request.failed.lock]
            self._owner_ids.clear()  # late commands of the former round must not touch this one
            if await self._take_alone(awaited, self.request.lease, self._time_left()):
                others = [part for part in parts if part is not awaited]
                taken = await self._all_or_none(self._take_at_once, Grouping(self.driver, others).pieces)
            if not taken and self._may_wait():
                self._owner_ids.clear()
                taken = await self._all_or_none(self._take_in_order, parts, keep_for)
                keep_for *= 2  # it may have been too short for a queue
        return taken

    def _owner_id(self, using: str) -> str:
        place = PLACES.value[using]
        return self._owner_ids.get(place) or self._owner_ids.setdefault(place, self.owner.new_id())

    def _may_wait(self) -> bool:
        return not self.request.once and (self.until is None or self.driver.now() < self.until)

    # --- ways to take them -------------------------------------------------------------------------------------------

    async def _take_at_once(self, pieces: Iterable[Piece]) -> bool:
        """Take the locks in addition to those taken before; returns False if any lock is not free."""
        for piece in self._takeable(pieces):
            if not await (self._take_together(piece) if isinstance(piece, LockGroup) else self._take_each([piece])):
                return False
        return True

    def _takeable(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The locks, in parts that one script each may take."""
        return [part for piece in pieces for part in self._parts_of(piece)]

    def _parts_of(self, piece: Piece) -> Sequence[Piece]:
        if not isinstance(piece, LockGroup):
            return [piece]
        if piece.divided:
            return self._takeable(pieces_of(piece.divided))
        if self.owner.is_named:
            return piece.locks  # others share the name and may hold some: take one by one
        if HOLDS.has_none(piece.keys_of(self.owner) + piece.other_sides_of(self.owner)):
            return [piece]
        # Whether the owner may enter a lock that it holds already, or whose other side it holds, and with which count,
        # depends on its hold.
        held = dict.fromkeys([lock for lock in piece.locks if self._has_side_of(lock)])
        rest = [lock for lock in piece.locks if lock not in held]
        return [*held, *([LockGroup(rest)] if len(rest) > 1 else rest)]

    def _has_side_of(self, lock: AbstractLock) -> bool:
        scopes = {lock._kind.scope, lock._kind.other or lock._kind.scope}
        # What a signal handler raises in a generator that any() closes would be dropped.
        return any([HOLDS.get(lock, self.owner, scope) for scope in scopes])  # noqa: C419

    async def _take_in_order(self, locks: Sequence[AbstractLock], keep_for: float) -> bool:
        """Take the locks in the given order, waiting for each. Returns False if they are not all taken within
        ``keep_for`` seconds after the first new one."""
        # All attempts wait in the same order while they hold locks, so no two of them can wait for each other.
        keep_until = math.inf
        for lock in locks:
            is_new = HOLDS.get(lock, self.owner) is None
            # It is unknown how long the other locks take, so a new hold is renewed until all are taken.
            lease = None if is_new else self.request.lease
            if not await self._take_alone(lock, lease, self._time_left(keep_until)):
                return False
            if is_new and (hold := HOLDS.get(lock, self.owner)):
                self.lent.append(hold)
                keep_until = min(keep_until, self.driver.now() + keep_for)
        now = self.driver.now()
        return not any((hold := HOLDS.get(lock, self.owner)) is None or hold.is_lost(now) for lock in self.taken)

    def _time_left(self, keep_until: float = math.inf) -> float | None:
        """How long it may still wait, in seconds."""
        until = keep_until if self.until is None else min(keep_until, self.until)
        return None if until == math.inf else max(until - self.driver.now(), 0.0)

    # --- scripts -----------------------------------------------------------------------------------------------------

    async def _take_each(self, locks: Iterable[AbstractLock]) -> bool:
        for lock in locks:
            if not await self._take_alone(lock, self.request.lease, self._time_left(), once=True):
                return False
        return True

    async def _take_alone(
        self, lock: AbstractLock, lease: float | None, wait: float | None, once: bool = False
    ) -> bool:
        scoped, owner_id = self.request.scoped, self._owner_id(lock.using)
        driver = self.driver.at(lock.using)
        request = AcquireRequest(self.owner, driver.now(), wait, lease, scoped, once, owner_id=owner_id)
        taken = await acquire.take_serialized(lock, driver, request)
        if taken:
            self.taken.append(lock)
        else:
            self.request.failed = request.failed
        return taken

    async def _take_together(self, group: LockGroup) -> bool:
        driver, first = self.driver.at(group.using), group.locks[0]
        owner_id, lease = self._owner_id(group.using), self.request.lease_under(group.settings)
        group.settings.check_kind(first.kind)
        call = group.acquire_call(owner_id, lease)
        holds: list[Hold] = []
        try:
            reply = await driver.run(call, self.until, lambda: group.release_call(owner_id))
            now = driver.now()
            # Counted from before the command was sent: see rule 7 of docs/design/architecture.md.
            if reply[1] == OK and now < call.sent_at + lease:
                holds = self._holds_in(group, owner_id, call, lease, reply, calling_line())
                self._note_taken(group, holds)
                return True
        except BaseException as error:
            HOLDS.remove_all(holds)
            # A server that became a node of a cluster refuses keys of several slots, and executes nothing.
            if isinstance(error, LockUnavailableError) and group.divide(driver):
                return await self._take_at_once([group])
            acquire.abandon(first, driver, group.release_call(owner_id), lease)
            if lack_of_replicas(error) is None or not self._may_wait():
                raise
            self._note_failed(first)  # which is then awaited alone, until replicas confirm it
            return False
        if call.sends > 1 or reply[1] == OK:
            acquire.abandon(first, driver, group.release_call(owner_id), lease)
            self._owner_ids.clear()
        # The fair lock's own script grants a free lock to its first waiter; this one must not overtake the queue.
        if reply[1] == QUEUED:
            return await self._take_each(group.locks)
        if reply[1] == OK:  # too late
            failed = self._note_failed(first)
            failed.sent_at, failed.granted_at = call.sent_at, now
        else:
            self._note_failed(*group.at([reply[2]])).left_ms = reply[1]
        return False

    def _holds_in(
        self, group: LockGroup, owner_id: str, call: ScriptCall, lease: float, reply: Sequence[Any], line: CodeLine
    ) -> list[Hold]:
        """The holds of a group that was just taken."""
        keys, tokens = group.keys_of(self.owner), map(group.tokens_in(reply).get, group.locks)
        whose = self.owner, owner_id, call.sent_at
        terms = lease, self.request.lease is None, self.request.scoped, line
        # By position: names would take nearly twice as long for each hold.
        holds = list(map(Hold, keys, group.locks, *map(repeat, whose), tokens, *map(repeat, terms)))
        if call.sends > 1:  # a copy that arrives after the end of the holds would take the locks
            for hold in holds:
                hold.late_lease = lease
        return holds

    def _note_taken(self, group: LockGroup, holds: Sequence[Hold]) -> None:
        keys = group.keys_of(self.owner)
        HOLDS.put_all(keys, holds)
        watch_group(keys, holds[0])
        report_taken(group.locks, holds[0].owner_id)
        self.taken += group.locks

    # --- all, or none ------------------------------------------------------------------------------------------------

    async def _all_or_none(self, take: Callable[..., Coroutine[Any, Any, bool]], *args: object) -> bool:
        """Take the locks, or release all that were taken."""
        self.lent = []
        if await take(*args):
            # The first locks were taken while the last one was waited for, so a fixed lease of theirs is older.
            if self.request.lease is not None:
                await self._level_leases(self.request.lease)
            lost = lost_of(HOLDS.under_keys(self._keys), self.driver.now())
            for hold in lost:
                if self._before.get(hold.key, NOTHING).record is not None:  # its owner held it before
                    raise hold.lost_error()
                self._note_failed(hold.lock)
            if not lost:
                return True
        await self._undo()
        return False

    def _holds(self) -> list[Hold]:
        """The holds of the locks that were taken."""
        return [hold for lock in self.taken if (hold := HOLDS.get(lock, self.owner)) is not None]

    def _note_failed(self, lock: Named) -> Attempt:
        lease = self.request.lease_under(lock._settings)
        self.request.failed = Attempt(lock, self.driver, self.owner, self._owner_id(lock.using), lease, self.until)
        return self.request.failed

    async def _level_leases(self, lease: float) -> None:
        """Extend the leases of locks taken early to that of the last one; the watchdog takes care of renewed ones."""
        holds = [hold for hold in self._holds() if not hold.renewed or hold in self.lent]
        latest = max((hold.deadline for hold in holds), default=0.0)
        for hold in holds:
            if hold in self.lent or hold.deadline < min(latest, self.driver.now() + lease):
                with suppress(LockLostError):  # which is noticed next
                    await ownership.extend_hold(hold.lock, self.driver.at(hold.lock.using), hold, lease)

    async def _undo(self) -> None:
        """Release what was taken, and wait until that is done."""
        self._uncount_blocks()
        for failure in await release_all(self.driver, self.owner, self.taken, self._begun):
            log(logger, logging.WARNING, "While releasing one of several locks: %s", failure)
        self.taken, self._begun, self._left = [], set(), 0

    def _uncount_blocks(self) -> None:
        """Stop counting the blocks of the locks that were taken; after an interruption, continue with the rest."""
        for hold in self._holds()[self._left :]:
            # Python looks for signals after calls and as a loop starts over: not between these two statements.
            hold.scoped -= self.request.scoped
            self._left += 1

    async def undo_after(self, error: BaseException) -> None:
        """Release what was taken: in the background, since the attempt failed or was interrupted."""
        if self.owner.is_named and isinstance(error, RLockError):
            await self._undo()  # not possible in the background: see _release_later
        elif self.owner.is_named:
            # Others may have taken the same locks under the name meanwhile.
            self._uncount_blocks()
            for lock in self.taken:
                if lock not in self._begun and (hold := HOLDS.get(lock, self.owner)):
                    release_later(hold)
        else:
            # An interruption may come between a grant and its note, but the table tells whose count has risen since.
            for key in self._keys:
                held, former = HOLDS.at(key), self._before.get(key, NOTHING)
                if held is not None and former.is_exceeded(held, HOLDS.depth(key)[0]):
                    held.scoped = former.blocks
                    release_later(held)


# --- the flows -------------------------------------------------------------------------------------------------------


class MultiEngine:
    """The flows of a MultiLock. Those of its members are in ``acquire``, ``release``, ``ownership`` and ``forced``."""

    @staticmethod
    async def take(lock: MultiLock, driver: Driver, request: AcquireRequest) -> bool:
        grouping = _grouping(lock, driver)
        attempt = AllOrNone(driver, request, grouping.keys_of(request.owner))
        try:
            return await attempt.run(lock.parts, grouping.pieces)
        except BaseException as error:
            await attempt.undo_after(error)
            raise

    @staticmethod
    @a_call
    async def release(lock: MultiLock, driver: Driver, owner: Owner, blocks: int = 0) -> None:
        if blocks:
            MultiEngine.uncount_block(lock, owner)
        before = owner.is_calling and refuse_nested(lock)
        # Another process may hold the members under a name, so only the servers know.
        grouping = _grouping(lock, driver)
        if not owner.is_named and HOLDS.has_none(grouping.keys_of(owner)):
            left_by = next(filter(None, map(HOLDS.left_by, lock.parts)), None)
            raise LockNotOwnedError(lock.name, owner=owner.owner_id, left_by=left_by)
        try:
            owner.is_calling = True
            failures = await release_all(driver, owner, lock.parts, set(), grouping.pieces)
        finally:
            owner.is_calling = before
        if failures:
            # That the work was not protected matters more than that Redis was unreachable.
            raise next((each for each in failures if isinstance(each, LockLostError)), failures[0])

    @staticmethod
    def uncount_block(lock: MultiLock, owner: Owner) -> None:
        for hold in HOLDS.of_lock(lock, owner):
            hold.scoped -= 1

    @staticmethod
    async def extend(lock: MultiLock, driver: Driver, owner: Owner, lease_time: Duration) -> None:
        for part in lock.parts:
            await ownership.extend(part, driver.at(part.using), owner, lease_time)

    @staticmethod
    async def free_by_force(lock: MultiLock, driver: Driver, caller: Owner, owner: str | None, reason: str) -> bool:
        freed = [await forced.free_by_force(part, driver.at(part.using), caller, owner, reason) for part in lock.parts]
        return any(freed)

    @staticmethod
    async def ask_state(lock: MultiLock, driver: Driver, owner: Owner) -> tuple[int, int]:
        states = [await ownership.ask_state(part, driver.at(part.using), owner) for part in lock.parts]
        lefts = {left for _, left in states} - {ABSENT}
        # The MultiLock is held only as long as each of its members is.
        ending = lefts - {ENDLESS}
        left = min(ending) if ending else min(lefts, default=ABSENT)
        return min(count for count, _ in states), left

    @staticmethod
    async def ask_holders(lock: MultiLock, driver: Driver) -> list[str]:
        return [owner for part in lock.parts for owner in await ownership.ask_holders(part, driver.at(part.using))]


def _grouping(lock: MultiLock, driver: Driver) -> Grouping:
    known = lock._grouping
    if known is None or not known.holds_good:
        known = lock._grouping = Grouping(driver, lock.parts)
    return known


# --- the public class -------------------------------------------------------------------------------------------------


class MultiLock(BaseLock):
    """Several locks, of any kinds and aliases, that are taken together or not at all::

        with MultiLock(FairLock("account:1"), FairLock("account:2"), wait_time=3):
            ...

    ``rlock("account:1", "account:2")`` also makes a MultiLock. The order of the arguments does not matter, two
    MultiLocks cannot deadlock, and members that are often held do not starve it. A member named twice counts once.
    Members that share a server (in a cluster: a slot) are taken by one script and released by one script, whatever
    their kinds.

    Each member is a separate hold, which is renewed, re-entered and lost separately. The MultiLock counts as lost when
    one member is; its release still releases the others. With a lease time, all leases end no earlier than if they had
    begun when the last member was taken. ``wait_time``, ``lease_time``, ``owner``, ``at_least`` and ``until_commit``
    are those of the MultiLock; the members' own are ignored. ``max_hold_time`` replaces the members' own if given.
    """

    __slots__ = ("_grouping", "_parts", "_resolved")

    kind = "multi"
    _kind = Kind()  # it sends no calls itself
    _engine: ClassVar[Engine] = MultiEngine()

    def __init__(
        self,
        *locks: BaseLock,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        owner: str | None = None,
        max_hold_time: Duration | None = None,
        at_least: Duration | None = None,
        until_commit: bool | str | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option(type(self).__name__, unknown)
        self._parts = _sorted_parts(locks)
        self._grouping: Grouping | None = None
        self._resolved: tuple[object, tuple[BaseLock, ...]] | None = None
        first = self._parts[0]
        super().__init__(
            first.name,
            wait_time=wait_time,
            lease_time=lease_time,
            using=first.using,
            owner=owner,
            max_hold_time=max_hold_time,
            at_least=at_least,
            until_commit=until_commit,
        )
        if self.max_hold_time is not None:
            self._parts = tuple(map(copy, self._parts))  # the caller's own objects stay as they are
            for part in self._parts:
                part.max_hold_time = self.max_hold_time
        self.name = ", ".join(part.name for part in self._parts)

    def __getstate__(self) -> tuple[dict[str, object] | None, dict[str, object]]:
        # Without the settings of this process, which may contain passwords.
        state: Any = super().__getstate__()
        return state[0], {**state[1], "_grouping": None, "_resolved": None}

    @property
    def parts(self) -> tuple[BaseLock, ...]:
        parts = self._parts
        if parts[0].using == parts[-1].using:  # they are sorted by it
            return parts
        # Two aliases may share their locks: that depends on the settings, which may not be there when this is made.
        resolved, places = self._resolved, PLACES.value
        if resolved is None or resolved[0] is not places:
            # The order is that of the first aliases: processes with other addresses must not wait for each other.
            unique = {(first_alias(part.using), part.name, part._kind.scope): part for part in reversed(parts)}
            resolved = self._resolved = places, tuple(unique[place] for place in _in_order(unique))
        return resolved[1]

    def info(self) -> LockInfo | None:
        """The info of the first member that is held; None when all are free."""
        return next((info for part in self._parts if (info := part.info())), None)

    async def ainfo(self) -> LockInfo | None:
        """As ``info``, in asyncio."""
        for part in self._parts:
            if info := await part.ainfo():
                return info
        return None


def _in_order(places: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    # The write side of a read-write lock comes before its read side, because a reader may not acquire the write lock.
    return sorted(places, key=lambda place: (*place[:2], place[2] != "write"))


def _sorted_parts(locks: Iterable[Any]) -> tuple[BaseLock, ...]:
    parts: dict[tuple[str, str, str], BaseLock] = {}
    for lock in locks:
        if not isinstance(lock, BaseLock):
            raise TypeError(f"A MultiLock consists of locks, not of {lock!r}; rlock('a', 'b') makes one from names.")
        for part in lock.parts:
            parts.setdefault((part.using, part.name, part._kind.scope), part)
    if not parts:
        raise ValueError("A MultiLock needs at least one lock.")
    return tuple(parts[place] for place in _in_order(parts))
