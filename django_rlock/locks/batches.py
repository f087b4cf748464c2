"""Locks that one script takes together, because they share a server (in a cluster: a slot), and the hold of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import cache
from typing import Any, Self, TypeVar

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import Driver, ManyKeys, ScriptCall, prepare
from django_rlock._transport.identity import Owner
from django_rlock.locks.kinds import FENCED, PLAIN, TOGETHER, AbstractLock, Group, group_of
from django_rlock.locks.options import milliseconds
from django_rlock.locks.records import Hold, Key, Line, context, key_of
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
        # First the state keys of all locks, then the queues of all, and so on.
        by_lock = [keys.fair_release_keys(prefix + lock.name) for lock in single]
        states, queues, alive, channels, waiting, deadlines = zip(*by_lock, strict=True) if by_lock else [()] * 6
        tokens = tuple([keys.token_key(prefix + lock.name) for lock in self._fenced])
        by_side = [keys.readwrite_keys(prefix + lock.name) for lock in self._sides]
        sides = tuple(itertools.chain(*zip(*by_side, strict=True)))
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
        if self._fenced or self._sides:
            fence_ttl = self.settings.fence_ttl
            args += len(self._fenced), 0 if fence_ttl is None else milliseconds(fence_ttl)
            args += [word for lock in self._sides for word in (lock._kind.joins, lock._kind.condition(lock))]
        return ScriptCall(self.name, prepare(scripts.MULTI_ACQUIRE, self._to_take, tuple(args)), owner_id)

    def tokens_in(self, reply: Sequence[Any]) -> dict[AbstractLock, int]:
        """The tokens in a reply to ``acquire_call``."""
        return dict(zip(self._fenced, reply[2], strict=True)) if self._fenced else {}

    def release_call(self, owner_id: str) -> ScriptCall:
        """Frees the locks that the owner holds; returns the positions of the others, counted from 1."""
        args: list[int | str] = [milliseconds(self.settings.claim_time), *[lock._kind.joins for lock in self._sides]]
        return ScriptCall(self.name, prepare(scripts.MULTI_RELEASE, self._to_free, tuple(args)), owner_id)


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


class BatchHold:
    """Locks that one script took for an owner: one record for all, until one of them is needed on its own.

    Then each becomes a ``Hold`` of its own, permanently, with the times of this record. Any thread may cause that.
    Attributes are those of ``Hold``; ``keys`` are the table's keys for it, and ``tokens`` the fencing tokens. Kinds
    with a clock drift are not grouped.
    """

    __slots__ = (
        "_split",
        "context",
        "deadline",
        "ended",
        "group",
        "keys",
        "late_lease",
        "lease",
        "line",
        "owner",
        "owner_id",
        "renewed",
        "scoped",
        "since",
        "tokens",
        "variables",
    )

    ended: float
    tokens: Mapping[AbstractLock, int]

    def __init__(self, group: LockGroup, owner: Owner, owner_id: str, now: float, lease: float) -> None:
        self.group = group
        self.owner = owner
        self.owner_id = owner_id
        self.keys: Sequence[Key] = group.keys_of(owner)
        self.context = context.get()
        self.variables = copy_context()
        self.since = now
        self.lease = lease
        self.deadline = now + lease
        self.late_lease = 0.0
        self.line: Line | None = None
        self.renewed = False
        self.scoped = 0
        self.tokens = {}
        self._split: dict[str, dict[Key, Hold]] = {}

    @classmethod
    def joined(cls, group: LockGroup, holds: Sequence[Hold]) -> Self:
        """Join holds of a group's locks, which have the same owner id, into one record again."""
        first = holds[0]
        held = cls(group, first.owner, first.owner_id, min(hold.since for hold in holds), first.lease)
        held.deadline = min(hold.deadline for hold in holds)
        held.late_lease = max(hold.late_lease for hold in holds)
        held._split["members"] = members = {hold.key: hold for hold in holds}
        held.keys = tuple(members)
        return held

    @property
    def members(self) -> dict[Key, Hold]:
        """Its holds, one for each lock."""
        # If two threads get here at once, both get the members that one of them made.
        return self._split.get("members") or self._split.setdefault("members", self._make_members())

    @property
    def is_whole(self) -> bool:
        """Whether none of its locks has been needed on its own."""
        return not self._split

    @property
    def renewing(self) -> bool:
        """Whether a renewal of one of its locks is under way."""
        return not self.is_whole and any(hold.renewing for hold in self.members.values())

    def renew_at(self) -> float:
        """When the watchdog should renew it: after a third of its lease."""
        return self.deadline - self.lease * 2 / 3

    def is_lost(self, now: float) -> bool:
        """Whether it has outlived its lease; other losses are recorded in its members."""
        return now >= self.deadline

    def _make_members(self) -> dict[Key, Hold]:
        return {hold.key: hold for hold in map(self._make_member, self.group.locks)}

    def _make_member(self, lock: AbstractLock) -> Hold:
        hold = Hold(key_of(lock, self.owner), lock, self.owner, self.owner_id, self.since, self.tokens.get(lock))
        hold.context, hold.variables = self.context, self.variables
        hold.lease_from(self.since, self.lease, self.renewed)
        hold.scoped = self.scoped
        hold.late_lease = self.late_lease
        hold.line = self.line
        return hold
