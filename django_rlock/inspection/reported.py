"""Locks as reported: a list counts, sorts and filters thousands of them by a few values, and shows fifty."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from django_rlock.inspection.infos import Deadlock, LockInfo, LockState, doing
from django_rlock.inspection.parsing import Entry, Report

if TYPE_CHECKING:
    from django_rlock.inspection.building import Builder

Entries = Sequence[Entry]
_HELD, _HOT, _SILENT, _UNKNOWN = LockState.HELD, LockState.HOT, LockState.SILENT, LockState.UNKNOWN


class ByLock:
    """Reported holds or waits, by lock and owner. Most locks have one, and it gets no mapping of its own."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._last = {entry.key: entry for entry in entries}
        self._several: dict[str, dict[str, Entry]] = {}
        if len(self._last) == len(entries):
            return
        for entry in entries:
            if entry is not self._last[entry.key]:
                self._several.setdefault(entry.key, {})[entry.owner] = entry
        for key, others in self._several.items():
            others[self._last[key].owner] = self._last[key]

    @property
    def keys(self) -> Set[str]:
        return self._last.keys()

    def single(self) -> dict[str, Entry]:
        """The locks that have one, by key."""
        if not self._several:
            return self._last
        return {key: entry for key, entry in self._last.items() if key not in self._several}

    def of(self, key: str) -> Entries:
        """Those of one lock."""
        if key in self._several:
            return [*self._several[key].values()]
        return (self._last[key],) if key in self._last else ()

    def by_owner(self, key: str) -> Mapping[str, Entry]:
        return {entry.owner: entry for entry in self.of(key)}


class Reported:
    """A lock as reported, in the place of its LockInfo: what lists need of all locks is at hand; every other attribute
    is that of ``info``, which is made when it is asked for.

    ``entry`` is the longest hold, and the only one where ``holds`` is None; where there is none, the longest wait; None
    for a hot lock without either.
    ``report`` is that of the holder's process. ``silent`` says that the process of some holder is.
    """

    __slots__ = (
        "_builder", "_holds", "_info", "entry", "held_for", "is_held", "key", "state", "waiting", "waits",
    )  # fmt: skip

    def __init__(
        self,
        builder: Builder,
        key: str,
        entry: Entry | None,
        holds: Entries | None = None,
        waits: Entries = (),
        silent: bool = False,
    ) -> None:
        self._builder = builder
        self._info: LockInfo | None = None
        self.key = key
        self.entry = entry
        self.waits = waits
        self.waiting = len(waits)
        self._holds = holds
        self.is_held = holds is None or bool(holds)
        self.held_for: float | None = None
        if entry and self.is_held:
            self.state = _SILENT if silent else _HELD
            if entry.since is not None:
                self.held_for = age if (age := builder.now - entry.since) > 0.0 else 0.0
        else:
            self.state = _HOT if builder.is_hot(key) else _UNKNOWN

    @property
    def info(self) -> LockInfo:
        if self._info is None:
            self._info = self._builder.whole(self.key)
        return self._info

    def __getattr__(self, name: str) -> Any:
        return getattr(self.info, name)

    @property
    def using(self) -> str:
        return self._builder.using

    @property
    def name(self) -> str:
        return self.key.removeprefix(self._builder.prefix)

    @property
    def report(self) -> Report | None:
        return self._builder.reports[self.entry.client] if self.entry and self.is_held else None

    @property
    def kind(self) -> str:
        return self.entry.kind if self.entry else ""

    @property
    def host(self) -> str | None:
        return self.report.host if self.report else None

    @property
    def process(self) -> tuple[str, int]:
        return (self.report.host, self.report.pid or 0) if self.report else ("", 0)

    @property
    def doing(self) -> str:
        return doing(self.entry.context, self.report.role) if self.entry and self.report else ""

    @property
    def count(self) -> int:
        return sum(entry.holds for entry in self.holds)

    @property
    def remaining_lease(self) -> float:
        return max(map(self._builder.left, self.holds), default=0.0)

    @property
    def holds(self) -> Entries:
        if self._holds is None:
            return (self.entry,) if self.entry else ()
        return self._holds

    @property
    def longest_wait(self) -> tuple[float, float] | None:
        entry = longest(self.waits)
        if entry is None or entry.since is None:
            return None
        return self._builder.age(entry) or 0.0, entry.since

    @property
    def hosts(self) -> set[str]:
        return {self._builder.reports[entry.client].host for entry in self.holds}

    @property
    def holding_actors(self) -> set[str]:
        return {entry.actor for entry in self.holds}

    @property
    def waiting_actors(self) -> set[str]:
        return {entry.actor for entry in self.waits}

    def is_held_by(self, actor: str) -> bool:
        beginning = actor[:8]  # tells most apart, at less cost
        return any(
            entry.short_actor == actor
            for entry in self.holds
            if entry.client.startswith(beginning) or entry.owner.startswith(beginning)
        )

    def involves(self, client: str) -> bool:
        return any(entry.client[:8] == client for entry in (*self.holds, *self.waits))

    @property
    def words(self) -> Iterator[str]:
        yield from (self.name, self.kind)
        for entry in (*self.holds, *self.waits):
            report = self._builder.reports[entry.client]
            yield from (report.host, str(report.pid or ""), entry.place, entry.owner, *entry.context.values())

    def in_deadlock(self, circle: Deadlock) -> LockInfo:
        return self.info.in_deadlock(circle)


def longest(entries: Entries) -> Entry | None:
    """The one that began first; None of none."""
    return entries[0] if len(entries) == 1 else min(entries, key=_since, default=None)


def _since(entry: Entry) -> float:
    return math.inf if entry.since is None else entry.since
