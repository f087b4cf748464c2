"""Several locks that one script takes or frees, and an owner's holds of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar

from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import OK
from django_rlock._transport.calls import Driver, ManyKeys, ScriptCall, Template
from django_rlock._transport.identity import Owner
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockUnavailableError, RLockError
from django_rlock.locks import release
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import FENCED, PLAIN, TOGETHER, AbstractLock, Group, group_of
from django_rlock.locks.options import RELEASE_PATIENCE, milliseconds
from django_rlock.locks.places import PLACES
from django_rlock.locks.records import Hold, Key, key_of
from django_rlock.locks.statistics import count_together, reports_release
from django_rlock.locks.watchdog import undo_late_copies
from django_rlock.settings import settings_of

T = TypeVar("T")

MOST_TOGETHER = {PLAIN: 1000, FENCED: 500, **dict.fromkeys(TOGETHER[2:], 200)}
"""How many locks of each sort one script takes or frees at most. It blocks the server meanwhile, for about a
millisecond."""


class LockGroup:
    """Locks of one alias and place. Its keys are packed once, so a lock that is taken often keeps its group.

    ``in_order`` are the locks as its scripts number them. ``divided`` are its parts by slot, if its server turned out
    to divide its keys into slots. Raises ValueError for locks of several aliases, because one script runs on one
    server.
    """

    __slots__ = (
        "_counted",
        "_fenced",
        "_freeing",
        "_keys",
        "_sides",
        "_taking",
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
        aliases = sorted({lock.using for lock in self.locks})
        if len(aliases) > 1:
            raise ValueError(
                f"One script cannot take locks of several aliases ({', '.join(aliases)}); use a MultiLock."
            )
        (self.using,) = aliases
        place = PLACES.value[self.using]
        self.members = [(place, lock.name, lock._kind.scope) for lock in self.locks]
        self.settings = settings_of(self.using)
        self.name = ", ".join([lock.name for lock in self.locks])
        self.divided: list[LockGroup] = []
        self._counted: set[Group] | None = None
        self._keys: tuple[object, list[Key]] = (None, [])
        self._taking: Template | None = None
        self._freeing: Template | None = None
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
        """The keys of the owner's holds. Those of the last owner are kept: it may release, and take the locks again."""
        serial, keys = self._keys
        if serial != owner.serial:
            serial = owner.serial
            keys = [(*member, serial) for member in self.members]
            self._keys = serial, keys
        return keys

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
        rest, template = tuple(args), self._taking
        if template is None or template.rest != rest:
            self._taking = template = Template(scripts.MULTI_ACQUIRE, rest, self._to_take)
        return ScriptCall(self.name, template, self._to_take[0], owner_id)

    def tokens_in(self, reply: Sequence[Any]) -> dict[AbstractLock, int]:
        """The tokens in a reply to ``acquire_call``."""
        return dict(zip(self._fenced, reply[2], strict=True)) if self._fenced else {}

    def missing_in(self, reply: Sequence[Any]) -> set[AbstractLock]:
        """The locks that the owner did not hold, by a reply to ``release_call``."""
        return set() if reply[1] == OK else self.at(reply[1])

    def release_call(self, owner_id: str) -> ScriptCall:
        """Frees the locks that the owner holds; returns OK, or the positions of the others, counted from 1."""
        if self._freeing is None:
            rest: tuple[int | str, ...] = (
                milliseconds(self.settings.claim_time),
                *[lock._kind.joins for lock in self._sides],
            )
            self._freeing = Template(scripts.MULTI_RELEASE, rest, self._to_free)
        return ScriptCall(self.name, self._freeing, self._to_free[0], owner_id)


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


def sliced(group: Sequence[T], locks: Sequence[AbstractLock]) -> list[Sequence[T]]:
    """Split a group, which belongs to these locks one by one, into parts that are small enough for one script."""
    if len(group) <= min(MOST_TOGETHER.values()):
        return [group]
    ends, whole = [0], max(MOST_TOGETHER.values())
    left = whole
    for number, lock in enumerate(locks):
        share = whole // MOST_TOGETHER.get(lock._kind.joins, whole)
        if share > left:
            ends.append(number)
            left = whole
        left -= share
    return [group[start:end] for start, end in itertools.pairwise([*ends, len(group)])]


Piece = LockGroup | AbstractLock


class Grouping:
    """Locks, divided by the scripts that take them: groups, and single locks."""

    __slots__ = ("_aliases", "_settings", "pieces")

    def __init__(self, driver: Driver, locks: Iterable[AbstractLock]) -> None:
        together: dict[object, list[AbstractLock]] = {}
        place_of = places(driver)
        for lock in locks:
            together.setdefault(place_of(lock) if lock._kind.joins else id(lock), []).append(lock)
        slices = [part for each in together.values() for part in sliced(each, each)]
        self.pieces: list[Piece] = [LockGroup(each) if len(each) > 1 else each[0] for each in slices]
        self._aliases = list({lock.using for lock in locks})
        self._settings = list(map(settings_of, self._aliases))

    def keys_of(self, owner: Owner) -> list[Key]:
        """The keys of the owner's holds."""
        first = self.pieces[0]
        if len(self.pieces) == 1 and isinstance(first, LockGroup):
            return first.keys_of(owner)
        keys = [each.keys_of(owner) if isinstance(each, LockGroup) else [key_of(each, owner)] for each in self.pieces]
        return list(itertools.chain.from_iterable(keys))

    @property
    def holds_good(self) -> bool:
        """Whether the settings have not changed since it was made."""
        return all(map(is_, map(settings_of, self._aliases), self._settings))


# --- together ---------------------------------------------------------------------------------------------------------

# The holds of one owner on several locks, released by as few scripts as possible.


# Reads attributes by a call into C: a hundred members have few lines of Python.
_DEADLINE = attrgetter("deadline")
_LATE_LEASE = attrgetter("late_lease")
_LOST = attrgetter("lost")
_STATE = attrgetter("owner_id", "count", "lost", "lost_below", "kept_until")
_ENDS = 1, None, 0, 0.0
"""The state, after the owner id, of a hold whose release frees the lock, and reports no loss."""


class Taken(NamedTuple):
    """Holds of one owner id that one script frees: one for each lock of the group, in the same order."""

    group: LockGroup
    holds: Sequence[Hold]


async def release_all(
    driver: Driver, owner: Owner, locks: Sequence[AbstractLock], begun: set[object], pieces: Sequence[Piece] = ()
) -> list[RLockError]:
    """Release one hold of each lock; returns the errors. After an interruption the background releases the rest.

    ``begun`` collects the locks whose release has started; the caller need not release them. ``pieces`` are the locks
    as scripts take them, if that is known.
    """
    failures: list[RLockError] = []
    rest: Sequence[Taken | AbstractLock] = locks
    try:
        rest = _pieces_held(driver, owner, locks, pieces)
        for piece in rest:
            try:
                if isinstance(piece, Taken):
                    failures += await _release(driver.at(piece.group.using), piece)
                else:
                    await release.release(piece, driver.at(piece.using), owner, 0, begun)
            except RLockError as failure:
                begun.add(_name_of(piece))
                failures.append(failure)
    except BaseException:
        for piece in rest:
            if _name_of(piece) not in begun:
                begun.add(_name_of(piece))
                _release_later(piece, owner)
        raise
    return failures


def _name_of(piece: Taken | AbstractLock) -> object:
    return piece.group if isinstance(piece, Taken) else piece


def _release_later(piece: Taken | AbstractLock, owner: Owner) -> None:
    for hold in piece.holds if isinstance(piece, Taken) else HOLDS.of_lock(piece, owner):
        if hold in HOLDS:  # a group that is being freed handles interruptions itself
            release.release_later(hold)


def _pieces_held(
    driver: Driver, owner: Owner, locks: Sequence[AbstractLock], pieces: Sequence[Piece]
) -> Sequence[Taken | AbstractLock]:
    """The parts that one script each releases."""
    if owner.is_named:
        return locks  # others share the name, so these are released one by one
    now = driver.now()
    # Usually nothing has happened to the locks since they were taken, and their keys are packed already.
    taken = [each for piece in pieces if (each := _as_taken(piece, owner, now))]
    if taken and len(taken) == len(pieces):
        return taken
    place_of = places(driver)
    together: dict[object, list[tuple[Hold | None, AbstractLock]]] = {}
    for lock in locks:
        hold = HOLDS.get(lock, owner)
        # One script frees what one owner id holds on one server: what was taken by one attempt.
        joins = hold is not None and lock._kind.joins and _ends(hold, now)
        place = (*place_of(lock), hold.owner_id) if hold is not None and joins else id(lock)
        together.setdefault(place, []).append((hold, lock))
    pieces_held: list[Taken | AbstractLock] = []
    for part in [part for found in together.values() for part in sliced(found, [lock for _, lock in found])]:
        its = [lock for _, lock in part]
        holds = [hold for hold, _ in part if hold is not None]
        pieces_held += [Taken(LockGroup(its), holds)] if len(holds) > 1 else its
    return pieces_held


def _as_taken(piece: Piece, owner: Owner, now: float) -> Taken | AbstractLock | None:
    """What one script releases of a piece; None if it cannot release a group as one attempt took it."""
    if not isinstance(piece, LockGroup):
        return piece
    holds = HOLDS.under_keys(piece.keys_of(owner))
    if piece.divided or len(holds) < len(piece.locks) or now >= min(map(_DEADLINE, holds)):
        return None
    return Taken(piece, holds) if set(map(_STATE, holds)) == {(holds[0].owner_id, *_ENDS)} else None


def _ends(hold: Hold, now: float) -> bool:
    """Whether its release frees the lock, and reports no loss."""
    return now < hold.deadline and _STATE(hold)[1:] == _ENDS


def lost_of(holds: Sequence[Hold], now: float) -> list[Hold]:
    """The holds among these that are lost."""
    if holds and now < min(map(_DEADLINE, holds)) and not any(map(_LOST, holds)):
        return []
    return [hold for hold in holds if hold.is_lost(now)]


def pieces_of(groups: Iterable[LockGroup]) -> list[Piece]:
    return [group if len(group.locks) > 1 else group.locks[0] for group in groups]


async def _release(driver: Driver, taken: Taken) -> list[RLockError]:
    group, holds = taken
    call = group.release_call(holds[0].owner_id)
    deadline = min(map(_DEADLINE, holds))
    try:
        HOLDS.remove_all(holds)  # before the command, so that no renewal starts
        missing = await _send_release(driver, taken, call, deadline)
    except BaseException as error:
        HOLDS.remove_all(holds)  # an interruption may have left some of them
        clean_up(group.using, call, max(map(_DEADLINE, holds)))
        for hold in holds:
            undo_late_copies(hold, hold.deadline)
        if isinstance(error, LockUnavailableError):
            raise release.release_failed(group.locks[0], error, deadline - driver.now()) from error
        raise
    now = driver.now()
    # A hundred members that end as usual are counted by one step; anything to report concerns a member alone.
    unusual = missing or call.sends > 1 or any(map(_LATE_LEASE, holds))
    if not unusual and not reports_release(group.locks[0], now - holds[0].since):
        count_together(holds, group.counted, now)
        return []
    failures: list[RLockError] = []
    for lock, hold in zip(group.locks, holds, strict=True):
        hold.count = 0
        try:
            release.note_released(hold.lock, hold, call, lock not in missing, driver)
        except RLockError as failure:
            failures.append(failure)
    return failures


async def _send_release(driver: Driver, taken: Taken, call: ScriptCall, deadline: float) -> set[AbstractLock]:
    """Return the locks that were gone."""
    group, holds = taken
    until = min(deadline, driver.now() + RELEASE_PATIENCE)
    try:
        return group.missing_in(await driver.run(call, until))
    except LockUnavailableError:
        if not group.divide(driver):
            raise
    call.sends, gone = 0, set[AbstractLock]()  # its server has executed nothing of the whole
    for part in group.divided:
        its = part.release_call(holds[0].owner_id)
        gone |= part.missing_in(await driver.run(its, until))
        call.sends = max(call.sends, its.sends)
    return gone
