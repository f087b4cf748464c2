"""Several locks that one script takes or frees, and an owner's holds of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import Driver, ManyKeys, ScriptCall, Template
from django_rlock._transport.identity import Owner
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockUnavailableError, RLockError
from django_rlock.locks import release
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import FENCED, PLAIN, TOGETHER, AbstractLock, Group, group_of
from django_rlock.locks.options import RELEASE_PATIENCE, milliseconds
from django_rlock.locks.records import BatchHold, Hold, Key, key_of
from django_rlock.locks.statistics import count_group, reports_release
from django_rlock.locks.watchdog import free_behind
from django_rlock.settings import settings_of

T = TypeVar("T")

MOST_TOGETHER = 1000
"""How many locks one script takes or frees at most; it blocks the server meanwhile."""


class LockGroup:
    """Locks of one alias and place. Its keys are packed once, so a lock that is taken often keeps its group.

    ``in_order`` are the locks as its scripts number them. ``divided`` are its parts by slot, if its server turned out
    to divide its keys into slots. Raises ValueError for locks of several aliases, because one script runs on one
    server.
    """

    __slots__ = (
        "_counted",
        "_fenced",
        "_sides",
        "_to_free",
        "_to_take",
        "divided",
        "in_order",
        "locks",
        "members",
        "name",
        "settings",
        "using",
    )

    def __init__(self, locks: Iterable[AbstractLock]) -> None:
        self.locks = tuple(locks)
        self.members = [(lock.using, lock.name, lock._kind.scope) for lock in self.locks]
        aliases = sorted({using for using, *_ in self.members})
        if len(aliases) > 1:
            raise ValueError(
                f"One script cannot take locks of several aliases ({', '.join(aliases)}); use a MultiLock."
            )
        (self.using,) = aliases
        self.settings = settings_of(self.using)
        self.name = ", ".join([lock.name for lock in self.locks])
        self.divided: list[LockGroup] = []
        self._counted: set[Group] | None = None
        self._pack_keys(self.settings.key_prefix)

    def _pack_keys(self, prefix: str) -> None:
        by_sort: dict[str, list[AbstractLock]] = {sort: [] for sort in TOGETHER}
        for lock in self.locks:
            by_sort[lock._kind.joins].append(lock)
        self._fenced = by_sort[FENCED]
        single = self._fenced + by_sort[PLAIN]
        self._sides = [lock for sort in TOGETHER[2:] for lock in by_sort[sort]]
        self.in_order = *single, *self._sides
        by_lock = [keys.fair_release_keys(prefix + lock.name) for lock in single]
        states, queues, alive, channels, waiting, deadlines = zip(*by_lock, strict=True) if by_lock else [()] * 6
        tokens = tuple([keys.token_key(prefix + lock.name) for lock in self._fenced])
        sides = keys.by_sort([keys.readwrite_keys(prefix + lock.name) for lock in self._sides])
        to_take = ManyKeys(states + queues)
        self._to_take = to_take.followed_by(tokens + sides[: 3 * len(self._sides)])
        self._to_free = to_take.followed_by(waiting + alive + channels + deadlines + sides)

    def divide(self, driver: Driver) -> list[LockGroup]:
        """The group's parts by slot, after its server refused it; empty if they are all in one slot."""
        if not self.divided:
            parts: dict[object, list[AbstractLock]] = {}
            place_of = places(driver)
            for lock in self.locks:
                parts.setdefault(place_of(lock), []).append(lock)
            self.divided = [LockGroup(each) for each in parts.values()] if len(parts) > 1 else []
        return self.divided

    @property
    def counted(self) -> set[Group]:
        """The groups of statistics in which these locks are counted."""
        if self._counted is None:
            self._counted = {group_of(lock) for lock in self.locks}
        return self._counted

    def keys_of(self, owner: Owner) -> list[Key]:
        """The keys of the owner's holds."""
        serial = owner.serial
        return [(using, name, scope, serial) for using, name, scope in self.members]

    def other_sides_of(self, owner: Owner) -> list[Key]:
        """The keys of the owner's holds of the other sides of its locks, on which it depends whether it may take
        them."""
        return [key_of(lock, owner, lock._kind.other) for lock in self._sides if lock._kind.other]

    def at(self, positions: Iterable[int]) -> set[AbstractLock]:
        """The locks in these positions, as a script counts them."""
        return {self.in_order[position - 1] for position in positions}

    def acquire_call(self, owner_id: str, lease: float) -> ScriptCall:
        """Takes all or none. Returns OK, and the tokens; or after how many ms to try again and the position of a taken
        lock; or QUEUED: take them one by one."""
        args: list[int | str] = [milliseconds(lease)]
        # Without such members the call is as short as one for plain locks, and the script skips their parts.
        if self._fenced or self._sides:
            fence_ttl = self.settings.fence_ttl
            args += len(self._fenced), 0 if fence_ttl is None else milliseconds(fence_ttl)
            args += [word for lock in self._sides for word in (lock._kind.joins, lock._kind.condition(lock))]
        return self._call(scripts.MULTI_ACQUIRE, self._to_take, owner_id, args)

    def tokens_in(self, reply: Sequence[Any]) -> dict[AbstractLock, int]:
        """The tokens in a reply to ``acquire_call``."""
        return dict(zip(self._fenced, reply[2], strict=True)) if self._fenced else {}

    def release_call(self, owner_id: str) -> ScriptCall:
        """Frees the locks that the owner holds; returns the positions of the others, counted from 1."""
        args: list[int | str] = [milliseconds(self.settings.claim_time), *[lock._kind.joins for lock in self._sides]]
        return self._call(scripts.MULTI_RELEASE, self._to_free, owner_id, args)

    def _call(self, script: scripts.Script, all_keys: ManyKeys, owner_id: str, args: list[int | str]) -> ScriptCall:
        return ScriptCall(self.name, Template(script, all_keys, tuple(args)), all_keys[0], owner_id)


def places(driver: Driver) -> Callable[[AbstractLock], tuple[str, object]]:
    """Returns a function from a lock to its alias and place. Values that depend only on the alias are looked up
    once."""

    @cache
    def alias(using: str) -> tuple[Callable[[str], object], str]:
        return driver.at(using).location, settings_of(using).key_prefix

    def place_of(lock: AbstractLock) -> tuple[str, object]:
        find, prefix = alias(lock.using)
        return lock.using, find(prefix + lock.name)

    return place_of


def sliced(group: Sequence[T]) -> list[Sequence[T]]:
    """Split a group into parts that are small enough for one script."""
    return [group[start : start + MOST_TOGETHER] for start in range(0, len(group), MOST_TOGETHER)]


Piece = LockGroup | AbstractLock


class Grouping:
    """Locks, divided by the scripts that take them: groups, and single locks."""

    __slots__ = ("_settings", "pieces")

    def __init__(self, driver: Driver, locks: Iterable[AbstractLock]) -> None:
        together: dict[object, list[AbstractLock]] = {}
        place_of = places(driver)
        for lock in locks:
            together.setdefault(place_of(lock) if lock._kind.joins else id(lock), []).append(lock)
        slices = itertools.chain.from_iterable(map(sliced, together.values()))
        self.pieces: list[Piece] = [LockGroup(each) if len(each) > 1 else each[0] for each in slices]
        self._settings = [settings_of(using) for using in {lock.using for lock in locks}]

    @property
    def holds_good(self) -> bool:
        """Whether the settings have not changed since it was made."""
        return all(settings_of(each.alias) is each for each in self._settings)


# --- together ---------------------------------------------------------------------------------------------------------

# The holds of one owner on several locks: as few records as possible, released by as few scripts as possible.

Held = Hold | BatchHold


def held_of(locks: Sequence[AbstractLock], owner: Owner) -> list[Held]:
    """An owner's holds of these locks: one record for those taken together, else one for each."""
    whole = _whole(locks, owner)
    return [whole] if whole else list(dict.fromkeys(filter(None, _records(locks, owner))))


def singles(held: Held) -> Sequence[Hold]:
    """The holds in a record, one for each lock."""
    return [*held.members.values()] if isinstance(held, BatchHold) else [held]


def _whole(locks: Sequence[AbstractLock], owner: Owner) -> BatchHold | None:
    """The usual case: one record for all of them."""
    # One look-up instead of one for each lock: all keys of a record are in the table, or none of them.
    first = HOLDS.record(locks[0], owner) if locks else None
    if isinstance(first, BatchHold) and first.is_whole and first.group.locks == tuple(locks):
        return first
    return None


def _records(locks: Sequence[AbstractLock], owner: Owner) -> list[Held | None]:
    return HOLDS.records([key_of(lock, owner) for lock in locks])


async def release_all(
    driver: Driver, owner: Owner, locks: Sequence[AbstractLock], begun: set[object]
) -> list[RLockError]:
    """Release one hold of each lock; returns the errors. After an interruption the background releases the rest.

    ``begun`` collects the locks whose release has started; the caller need not release them.
    """
    failures: list[RLockError] = []
    rest: Sequence[BatchHold | AbstractLock] = locks
    try:
        rest = _pieces_held(driver, owner, locks)
        for piece in rest:
            try:
                await _release_piece(driver, owner, piece, failures, begun)
            except RLockError as failure:
                begun.add(piece)
                failures.append(failure)
    except BaseException:
        for piece in rest:
            if piece not in begun:
                begun.add(piece)
                _release_later(piece, owner)
        raise
    return failures


async def _release_piece(
    driver: Driver, owner: Owner, piece: BatchHold | AbstractLock, failures: list[RLockError], begun: set[object]
) -> None:
    if isinstance(piece, BatchHold):
        failures += await _free(driver.at(piece.group.using), piece)
    else:
        await release.release(piece, driver.at(piece.using), owner, 0, begun)


def _release_later(piece: BatchHold | AbstractLock, owner: Owner) -> None:
    held = piece if isinstance(piece, BatchHold) else HOLDS.get(piece, owner)
    for hold in singles(held) if held else ():
        if hold in HOLDS:  # a group that is being freed handles interruptions itself
            release.release_later(hold)


def _pieces_held(driver: Driver, owner: Owner, locks: Sequence[AbstractLock]) -> list[BatchHold | AbstractLock]:
    """The parts that one script each releases."""
    if owner.is_named:
        return list(locks)  # others share the name, so these are released one by one
    now, place_of = driver.now(), places(driver)
    whole = _whole(locks, owner)
    if whole and not whole.is_lost(now):
        return [whole]
    pieces: dict[object, dict[Held | None, AbstractLock]] = {}
    for lock, held in zip(locks, _records(locks, owner), strict=True):
        # One script frees what one owner id holds on one server: what was taken by one attempt.
        together = held is not None and lock._kind.joins and _ends(held, now)
        place = (*place_of(lock), held.owner_id) if held is not None and together else id(lock)
        pieces.setdefault(place, {})[held] = lock
    return [piece for found in pieces.values() for piece in _joined(found)]


def _ends(held: Held, now: float) -> bool:
    """Whether its release frees the lock, and reports no loss."""
    nested = isinstance(held, Hold) and (held.count > 1 or held.lost_below or held.kept_until)
    return not nested and not held.is_lost(now)


def _joined(found: dict[Held | None, AbstractLock]) -> Iterable[BatchHold | AbstractLock]:
    """Join holds in one place and under one owner id into as few groups as possible."""
    if len(found) == 1:
        ((held, lock),) = found.items()
        return [held if isinstance(held, BatchHold) else lock]
    members = [each for held, lock in found.items() for each in _members(held, lock)]
    slices = [zip(*part, strict=True) for part in sliced(members)]
    return [BatchHold.joined(LockGroup(locks), holds) for holds, locks in slices]


def pieces_of(groups: Iterable[LockGroup]) -> list[Piece]:
    return [group if len(group.locks) > 1 else group.locks[0] for group in groups]


def _members(held: Held | None, lock: AbstractLock) -> list[tuple[Hold, AbstractLock]]:
    if isinstance(held, BatchHold):
        return list(zip(held.members.values(), held.group.locks, strict=True))
    return [] if held is None else [(held, lock)]


async def _free(driver: Driver, held: BatchHold) -> list[RLockError]:
    group = held.group
    call = group.release_call(held.owner_id)
    try:
        HOLDS.remove_group(held)  # before the command, so that no renewal starts
        missing = await _send_release(driver, held, call)
    except BaseException as error:
        HOLDS.remove_group(held)  # the keys that an interruption left, too
        holds = held.members.values()
        clean_up(group.using, call, max(hold.deadline for hold in holds))
        for hold in holds:
            free_behind(hold, hold.deadline)
        if isinstance(error, LockUnavailableError):
            raise release.release_failed(group.locks[0], error, held.deadline - driver.now()) from error
        raise
    return _note_freed(held, call, missing, driver.now())


async def _send_release(driver: Driver, held: BatchHold, call: ScriptCall) -> set[AbstractLock]:
    """Return the locks that were gone."""
    group: LockGroup = held.group
    until = min(held.deadline, driver.now() + RELEASE_PATIENCE)
    try:
        return group.at((await driver.run(call, until))[1])
    except LockUnavailableError:
        if not group.divide(driver):
            raise
    call.sends, gone = 0, set[AbstractLock]()  # its server has executed nothing of the whole
    for part in group.divided:
        its = part.release_call(held.owner_id)
        gone |= part.at((await driver.run(its, until))[1])
        call.sends = max(call.sends, its.sends)
    return gone


def _note_freed(held: BatchHold, call: ScriptCall, missing: set[AbstractLock], now: float) -> list[RLockError]:
    # A hundred members that end as usual are counted by one step; anything to report concerns a member alone.
    unusual = missing or call.sends > 1 or held.late_lease
    if not unusual and not reports_release(held.group.locks[0], now - held.since):
        count_group(held, now)
        return []
    failures: list[RLockError] = []
    for lock, hold in zip(held.group.locks, held.members.values(), strict=True):
        hold.count = 0
        try:
            release.note_released(hold.lock, hold, call, lock not in missing, now)
        except RLockError as failure:
            failures.append(failure)
    return failures
