"""A page of the list of locks: all locks as reported, and the current state of the locks on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import md5
from operator import attrgetter
from typing import cast

from django.core.exceptions import ImproperlyConfigured

from django_rlock.inspection import listed_aliases
from django_rlock.inspection.infos import Deadlock, LockInfo, LockState, ProcessInfo
from django_rlock.inspection.listing import Listed, Listing
from django_rlock.inspection.rows import Row
from django_rlock.inspection.sources import server_names
from django_rlock.inspection.survey import Survey
from django_rlock.inspection.waiting import mark

_UNREPORTED = {LockState.NO_EXPIRY.value, LockState.UNKNOWN.value, LockState.QUEUED.value}
"""States that reports do not know, so a filter by them reads all locks; those that are only queued for by a scan."""
_LEASE_STEP = 5.0
"""By how many seconds the end of a lease must change for the page to count as changed."""
_MAX_SILENT = 50
"""How many locks of silent holders are read at most, beside those of the page."""
_MAX_READINGS = 4
"""How often a page is read at most, where locks of it turn out to be free and others move up."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary for operators. ``oldest_wait`` is in seconds, None when nobody waits; ``oldest_since`` is the time at
    which it began. ``aliases`` are the aliases that are shown, each with its servers."""

    held: int
    waiting: int
    silent: int
    deadlocks: int
    processes: int
    oldest_wait: float | None
    oldest_since: float | None
    aliases: Sequence[tuple[str, str]]


class Overview:
    """The page that the query parameters describe; see ``Listing``. With ``scan`` it looks at every key of the server.

    Without ``scan``, only the locks of this page and of silent holders are read; the others count as reported.
    ``is_refresh`` says that the page was open already: see ``recent``.
    """

    def __init__(self, params: Mapping[str, str], is_refresh: bool = False) -> None:
        self.scan = bool(params.get("scan"))
        self._reads_all = self.scan or params.get("state") in _UNREPORTED
        scans = self.scan or params.get("state") == LockState.QUEUED
        try:
            self._survey, self._improper = Survey(listed_aliases(), is_refresh=is_refresh), ""
        except ImproperlyConfigured as error:
            self._survey, self._improper = Survey([]), str(error)
        self.deadlocks: tuple[Deadlock, ...] = self._survey.deadlocks()
        found = self._survey.read_all(scan=scans) if self._reads_all else self._survey.reported
        self._listed: list[Listed] = mark(found, self.deadlocks)
        self._params = params
        self._read: dict[tuple[str, str], LockInfo | None] = {}

    @property
    def listed(self) -> list[Listed]:
        """All locks, those of the page as they are, others as reported."""
        _ = self.listing
        return self._listed

    @property
    def locks(self) -> list[LockInfo]:
        """The current state of those locks of the page that are held, or hot."""
        page = self.listing.page.object_list
        if self._reads_all:
            return cast("list[LockInfo]", list(page))
        return [lock for listed in page if (lock := self._read.get(_place(listed)))]

    @cached_property
    def listing(self) -> Listing:
        """The page. Its locks and those of silent holders are read, and count as they are: a report outlives the locks
        that it names."""
        listing = Listing(self._listed, self._params)
        shown = [lock for lock in self._listed if lock.state == LockState.SILENT][:_MAX_SILENT]
        for _ in range(0 if self._reads_all else _MAX_READINGS):
            shown += listing.page.object_list  # including locks that moved up into the place of others
            unread = {place: lock for lock in shown if (place := _place(lock)) not in self._read}
            if not unread or self._read_all_of(unread):
                break
            listing = Listing(self._listed, self._params)
        return listing

    def _read_all_of(self, reported: Mapping[tuple[str, str], Listed]) -> bool:
        """Read these locks; returns whether each has the state that its report gave it."""
        found = mark(self._survey.shown([(lock.using, lock.name) for lock in reported.values()]), self.deadlocks)
        self._read |= dict.fromkeys(reported) | {_place(lock): lock for lock in found}
        self._listed = [lock for listed in self._listed if (lock := self._read.get(_place(listed), listed))]
        return all((lock := self._read[place]) and lock.state == listed.state for place, listed in reported.items())

    @property
    def processes(self) -> list[ProcessInfo]:
        return self._survey.processes

    @property
    def problems(self) -> Iterator[tuple[str, Exception]]:
        """The aliases that could not be read, and why; "" where RLOCK as a whole is wrong."""
        if self._improper:
            yield "", ImproperlyConfigured(self._improper)
        yield from self._survey.errors.items()

    @property
    def fingerprint(self) -> str:
        """A digest that stays the same while nothing but time changes."""
        circles = [[edge.key for edge in deadlock.edges] for deadlock in self.deadlocks]
        summary = replace(self.summary, oldest_wait=None)
        matching = len(self.listing.matching), self.listing.total
        shown = [_lasting(lock) for lock in self.locks], circles, summary, matching
        return md5(repr(shown).encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def summary(self) -> Summary:
        listed = self.listed
        waited_for = [lock for lock in listed if lock.waiting]
        waited, since = max(filter(None, map(attrgetter("longest_wait"), waited_for)), default=(None, None))
        return Summary(
            held=sum(map(attrgetter("is_held"), listed)),
            waiting=sum(map(attrgetter("waiting"), waited_for)),
            silent=list(map(attrgetter("state"), listed)).count(LockState.SILENT),
            deadlocks=len(self.deadlocks),
            processes=len(self.processes),
            oldest_wait=waited,
            oldest_since=since,
            aliases=[(alias, ", ".join(server_names(alias))) for alias in self._survey.aliases],
        )


def _place(lock: Listed) -> tuple[str, str]:
    """What tells a lock from all others."""
    return lock.using, lock.key


def _lasting(lock: LockInfo) -> tuple[object, ...]:
    """What is shown of a lock and stays the same while nothing happens to it; a renewal does."""
    about = lock.using, lock.key, lock.kind, lock.state.value, lock.count, lock.waiting, Row(lock).keeps_waiting
    hot = lock.rate_text, [party.actor for party in lock.recent]
    queued = [message.value for message in lock.queued]
    return *about, hot, queued, lock.holder.owner, lock.holder.since, lock.until and round(lock.until / _LEASE_STEP)
