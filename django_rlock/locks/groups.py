"""Locks that one script can take or free together, because they share a server (in a cluster: a slot)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeVar

from django_rlock import keys, scripts
from django_rlock.drivers.base import Driver
from django_rlock.drivers.calls import ManyKeys, ScriptCall, prepare
from django_rlock.drivers.identity import Owner
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.records import Key
from django_rlock.locks.statistics import Group, group_of
from django_rlock.settings import settings_of

T = TypeVar("T")

MOST_TOGETHER = 1000
"""How many locks one script takes or frees at most; the server does nothing else meanwhile."""


class LockGroup:
    """Locks of one alias and place. Its keys are packed once, so a lock that is taken often keeps its group.

    ``divided`` are its parts by slot, if its server turned out to divide its keys into slots. Raises ValueError for
    locks of several aliases, because one script runs on one server.
    """

    __slots__ = ("_counted", "_to_free", "_to_take", "divided", "locks", "name", "places", "settings", "using")

    def __init__(self, locks: Iterable[BaseLock]) -> None:
        self.locks = tuple(locks)
        self.places = [(lock.using, lock.name, lock._kind.scope) for lock in self.locks]
        aliases = sorted({using for using, *_ in self.places})
        if len(aliases) > 1:
            raise ValueError(
                f"One script cannot take locks of several aliases ({', '.join(aliases)}); use a MultiLock."
            )
        (self.using,) = aliases
        self.settings = settings_of(self.using)
        self.name = ", ".join([lock.name for lock in self.locks])
        self.divided: list[LockGroup] = []
        self._counted: set[Group] | None = None
        prefix = self.settings.key_prefix
        # First the state keys of all locks, then the queues of all, and so on.
        by_lock = [keys.fair_release_keys(prefix + lock.name) for lock in self.locks]
        states, queues, alive, channels, waiting, deadlines = zip(*by_lock, strict=True)
        self._to_take = ManyKeys(states + queues)
        self._to_free = self._to_take.followed_by(waiting + alive + channels + deadlines)

    def divide(self, driver: Driver) -> list[LockGroup]:
        """Its parts by place, after its server refused it; none if they are all in one place."""
        if not self.divided:
            parts: dict[object, list[BaseLock]] = {}
            place_of = places(driver)
            for lock in self.locks:
                parts.setdefault(place_of(lock), []).append(lock)
            self.divided = [LockGroup(each) for each in parts.values()] if len(parts) > 1 else []
        return self.divided

    @property
    def counted(self) -> set[Group]:
        """With which groups of locks these are counted."""
        if self._counted is None:
            self._counted = {group_of(lock) for lock in self.locks}
        return self._counted

    def keys_of(self, owner: Owner) -> list[Key]:
        """The keys of the owner's holds."""
        serial = owner.serial
        return [(using, name, scope, serial) for using, name, scope in self.places]

    def acquire_call(self, owner_id: str, lease: float) -> ScriptCall:
        """Takes all or none. Returns OK; or the remaining lease in ms and the position of a taken lock; or QUEUED."""
        return ScriptCall(self.name, prepare(scripts.MULTI_ACQUIRE, self._to_take, (milliseconds(lease),)), owner_id)

    def release_call(self, owner_id: str) -> ScriptCall:
        """Frees the locks that the owner holds; returns the positions of the others, counted from 1."""
        claim = milliseconds(self.settings.claim_time)
        return ScriptCall(self.name, prepare(scripts.MULTI_RELEASE, self._to_free, (claim,)), owner_id)


Piece = LockGroup | BaseLock


class Grouping:
    """Locks, divided by the scripts that take them: groups, and single locks."""

    __slots__ = ("_settings", "pieces")

    def __init__(self, driver: Driver, locks: Iterable[BaseLock]) -> None:
        together: dict[object, list[BaseLock]] = {}
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


def places(driver: Driver) -> Callable[[BaseLock], tuple[str, object]]:
    """Returns a function from a lock to its alias and place. Values that depend on the alias alone are looked up
    once."""

    @cache
    def alias(using: str) -> tuple[Callable[[str], object], str]:
        return driver.at(using).place, settings_of(using).key_prefix

    def place_of(lock: BaseLock) -> tuple[str, object]:
        find, prefix = alias(lock.using)
        return lock.using, find(prefix + lock.name)

    return place_of


def sliced(group: Sequence[T]) -> list[Sequence[T]]:
    """Split a group into parts that are small enough for one script."""
    return [group[start : start + MOST_TOGETHER] for start in range(0, len(group), MOST_TOGETHER)]
