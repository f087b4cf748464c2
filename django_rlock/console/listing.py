"""The list of locks: searched, filtered and sorted, in pages, as a browser gets it, and as Prometheus does."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import md5
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Page, Paginator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_rlock.console.deadlocks import mark
from django_rlock.console.reading import listed_aliases, server_names
from django_rlock.console.rows import Reported, Row
from django_rlock.console.survey import Survey
from django_rlock.locks.infos import Deadlock, LockInfo, LockState, ProcessInfo

# --- search, filters, order -------------------------------------------------------------------------------------------

Listed = Reported | LockInfo
PAGE_SIZE = 50
AGES = 10, 60, 600, 3600
"""The choices of the filter "held longer than", in seconds."""
MAX_PREFIXES = 30
_DEFAULT_ORDER = "-held_for"


class Column(NamedTuple):
    """A column: its name in the URL, its heading, and its sort key."""

    name: str
    label: Any
    value: Callable[[Listed], Any]


COLUMNS = (
    Column("lock", _("lock"), attrgetter("name")),
    Column("kind", _("kind"), attrgetter("kind")),
    Column("holder", _("holder"), attrgetter("process")),
    Column("doing", _("activity"), attrgetter("doing")),
    Column("holds", _("hold count"), attrgetter("count")),
    Column("held_for", _("held for"), lambda lock: -1 if lock.held_for is None else lock.held_for),
    Column(
        "time_left",
        _("time left"),
        lambda lock: math.inf if lock.remaining_lease is None else lock.remaining_lease,
    ),
    Column("waiting", _("waiting"), attrgetter("waiting")),
    Column("state", _("state"), lambda lock: LockState.values.index(lock.state)),
)


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of a filter; "" stands for all."""

    value: str
    label: Any
    selected: bool
    count: int


class Heading(NamedTuple):
    """A column's heading: its link, and the current order of the list by this column ("", ascending, descending)."""

    column: Column
    url: str
    order: str


class Listing:
    """A page of ``locks``, chosen by the query parameters ``q``, ``state``, ``using``, ``kind``, ``host``, ``prefix``,
    ``older`` (seconds), ``holder`` and ``process`` (shortened ids), ``waiting`` (any value: locks that are waited for),
    ``o`` (order) and ``p`` (page).

    Invalid parameters are ignored.
    """

    def __init__(self, locks: Sequence[Listed], params: Mapping[str, str]) -> None:
        self.total = len(locks)
        self._locks = locks
        self._params = {name: params[name] for name in params if params[name]}
        self.order = self._params.get("o", "")
        self.query = self._params.get("q", "").strip()
        order = self.order or _DEFAULT_ORDER
        self._descending = order.startswith("-")
        self._column = next((column for column in COLUMNS if column.name == order.lstrip("-")), COLUMNS[0])

    @cached_property
    def matching(self) -> list[Listed]:
        """All locks that match, in no order."""
        found = list(self._locks)
        for name, matches in _FILTERS.items():
            if wanted := self._params.get(name):
                found = [lock for lock in found if matches(lock, wanted)]
        if self.query:
            # Line feeds between the texts keep a search from matching across two of them.
            words = self.query.casefold()
            found = [lock for lock in found if words in "\n".join(lock.words).casefold()]
        return found

    @cached_property
    def page(self) -> Page[Listed]:
        """The page, sorted; locks with equal sort keys are sorted by name."""
        page = Paginator(self.matching, PAGE_SIZE).get_page(self._params.get("p"))
        page.object_list = self._first(page.end_index())[page.start_index() - 1 :] if self.matching else []
        return page

    def _first(self, count: int) -> list[Listed]:
        """The first ``count`` locks in the order of the list. Only these, and locks with equal sort keys, are compared
        by name."""
        values = [self._column.value(lock) for lock in self.matching]
        best = nlargest(count, values) if self._descending else nsmallest(count, values)
        last = best[-1]
        found = [
            lock
            for lock, value in zip(self.matching, values, strict=True)
            if (value >= last if self._descending else value <= last)
        ]
        # Sorting keeps the order of equal keys: locks with equal values stay sorted by name, even in descending order.
        found.sort(key=attrgetter("name", "using"))
        found.sort(key=self._column.value, reverse=self._descending)
        return found[:count]

    @property
    def pages(self) -> list[tuple[int | str, str]]:
        """Page numbers with their URLs; an ellipsis has none."""
        numbers = self.page.paginator.get_elided_page_range(self.page.number)
        return [(n, self.url(p=n) if isinstance(n, int) and n != self.page.number else "") for n in numbers]

    @property
    def previous_url(self) -> str:
        """The URL of the previous page; "" on the first page."""
        return self.url(p=self.page.number - 1) if self.page.has_previous() else ""

    @property
    def next_url(self) -> str:
        return self.url(p=self.page.number + 1) if self.page.has_next() else ""

    @property
    def hidden(self) -> dict[str, str]:
        """The parameters that the search form keeps in hidden fields."""
        return {name: self._params[name] for name in ("o", "holder", "process", "waiting") if name in self._params}

    @property
    def headings(self) -> list[Heading]:
        headings = [Heading(column, self.url(o=column.name), "") for column in COLUMNS]
        order = "descending" if self._descending else "ascending"
        reverse = self._column.name if self._descending else f"-{self._column.name}"
        headings[COLUMNS.index(self._column)] = Heading(self._column, self.url(o=reverse), order)
        return headings

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self._params.keys() & _FILTERS)

    @cached_property
    def states(self) -> list[Option]:
        counts = Counter(map(attrgetter("state"), self._locks))
        return self._options("state", dict(LockState.choices), counts)

    @cached_property
    def aliases(self) -> list[Option]:
        counts = Counter(map(attrgetter("using"), self._locks))
        return self._options("using", {alias: alias for alias in sorted(counts)}, counts)

    @cached_property
    def kinds(self) -> list[Option]:
        counts = Counter(map(attrgetter("kind"), self._locks))
        return self._options("kind", {kind: kind for kind in sorted(counts) if kind}, counts)

    @cached_property
    def hosts(self) -> list[Option]:
        counts = Counter(map(attrgetter("host"), self._locks))
        return self._options("host", {host: host for host in sorted(filter(None, counts))}, counts)

    @cached_property
    def prefixes(self) -> list[Option]:
        """The most frequent prefixes of names, up to the first colon."""
        counts = Counter(lock.name[: lock.name.find(":") + 1] for lock in self._locks)
        del counts[""]
        chosen = self._params.get("prefix", "")
        shown = sorted({prefix for prefix, _ in counts.most_common(MAX_PREFIXES)} | ({chosen} if chosen else set()))
        return self._options("prefix", {prefix: prefix for prefix in shown}, counts)

    @cached_property
    def ages(self) -> list[Option]:
        held = sorted(lock.held_for or 0.0 for lock in self._locks)
        # For each age, the locks that are held for longer.
        counts = {str(age): len(held) - bisect_right(held, age) for age in AGES}
        return self._options("older", {str(age): age for age in AGES}, counts)

    def url(self, **changes: object) -> str:
        """The query string of this list with some parameters changed; "" removes one."""
        params = {name: value for name, value in self._params.items() if name != "p"} | changes
        return "?" + urlencode({name: value for name, value in params.items() if value != ""})

    def _options(self, name: str, labels: Mapping[str, Any], counts: Mapping[Any, int]) -> list[Option]:
        chosen = self._params.get(name, "")
        everything = Option("", gettext("All"), not chosen, self.total)
        return [everything, *(Option(v, label, v == chosen, counts.get(v, 0)) for v, label in labels.items())]


def _is_older(lock: Listed, seconds: str) -> bool:
    try:
        return (lock.held_for or 0.0) > float(seconds)
    except ValueError:
        return True


_FILTERS: dict[str, Callable[[Listed, str], bool]] = {
    "state": lambda lock, wanted: lock.state == wanted,
    "using": lambda lock, wanted: lock.using == wanted,
    "kind": lambda lock, wanted: lock.kind == wanted,
    "host": lambda lock, wanted: wanted in lock.hosts,
    "holder": lambda lock, wanted: lock.is_held_by(wanted),
    "process": lambda lock, wanted: lock.involves(wanted),
    "prefix": lambda lock, wanted: lock.name.startswith(wanted),
    "older": _is_older,
    "waiting": lambda lock, _wanted: lock.waiting > 0,
}


# --- the page, with the current state of its locks --------------------------------------------------------------------

# A page of the list of locks: all locks as reported, and the current state of the locks on the page.

_UNREPORTED = {LockState.NO_EXPIRY.value, LockState.UNKNOWN.value, LockState.QUEUED.value}
"""States that reports do not contain, so a filter by them reads all locks; locks that only have queued messages are
found by a scan."""
_LEASE_STEP = 5.0
"""The change of a lease's end, in seconds, from which the page counts as changed."""
_MAX_SILENT = 50
"""The largest number of locks of silent holders to read, in addition to the locks of the page."""
_MAX_READINGS = 4
"""How often a page is read at most: when locks of the page turn out to be free, other locks move up."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary for operators. ``oldest_wait`` is in seconds, None if no owner waits; ``oldest_since`` is the time when
    it began. ``aliases`` are the aliases of the list, each with its servers."""

    held: int
    waiting: int
    silent: int
    deadlocks: int
    processes: int
    oldest_wait: float | None
    oldest_since: float | None
    aliases: Sequence[tuple[str, str]]


class Overview:
    """The page that the query parameters describe; see ``Listing``. With ``scan`` it reads every key of the server.

    Without ``scan``, only the locks of this page and of silent holders are read; the others count as reported.
    ``is_refresh`` says that an open page refreshes itself: see ``read_states``.
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
        # Reading all locks may take seconds, so the usual page counts the other locks as reported.
        found = self._survey.read_all(scan=scans) if self._reads_all else self._survey.reported
        self._listed: list[Listed] = mark(found, self.deadlocks)
        self._params = params
        self._read: dict[tuple[str, str], LockInfo | None] = {}

    @property
    def listed(self) -> list[Listed]:
        """All locks: those of the page with their current state, others as reported."""
        _ = self.listing  # reading the page replaces its locks in the list
        return self._listed

    @property
    def locks(self) -> list[LockInfo]:
        """The current state of the page's locks that are held or hot."""
        page = self.listing.page.object_list
        if self._reads_all:
            return cast("list[LockInfo]", list(page))
        return [lock for listed in page if (lock := self._read.get(_identity(listed)))]

    @cached_property
    def listing(self) -> Listing:
        """The page. Its locks and the locks of silent holders are read and count with their current state, because a
        report outlives the locks that it names."""
        listing = Listing(self._listed, self._params)
        silent = LockState.SILENT  # an enumeration's attribute takes longer than the comparison
        shown = [lock for lock in self._listed if lock.state == silent][:_MAX_SILENT]
        for _round in range(0 if self._reads_all else _MAX_READINGS):
            shown += listing.page.object_list  # including locks that moved up
            unread = {identity: lock for lock in shown if (identity := _identity(lock)) not in self._read}
            if not unread or self._read_all_of(unread):
                break
            listing = Listing(self._listed, self._params)
        return listing

    def _read_all_of(self, reported: Mapping[tuple[str, str], Listed]) -> bool:
        """Read these locks; returns whether all have the state that was reported."""
        found = mark(self._survey.shown([(lock.using, lock.name) for lock in reported.values()]), self.deadlocks)
        self._read |= dict.fromkeys(reported) | {_identity(lock): lock for lock in found}
        # By the objects: most locks of a long list are not read, and need not be identified.
        read = {id(listed): self._read[identity] for identity, listed in reported.items()}
        self._listed = [lock for listed in self._listed if (lock := read.get(id(listed), listed))]
        return all(
            (lock := self._read[identity]) and lock.state == listed.state for identity, listed in reported.items()
        )

    @property
    def processes(self) -> list[ProcessInfo]:
        return self._survey.processes

    @property
    def problems(self) -> Iterator[tuple[str, Exception]]:
        """The aliases that could not be read, with their errors; the alias is "" if RLOCK as a whole is wrong."""
        if self._improper:
            yield "", ImproperlyConfigured(self._improper)
        yield from self._survey.errors.items()

    @property
    def fingerprint(self) -> str:
        """A digest that changes with the list, but not with the passing of time."""
        circles = [[edge.key for edge in deadlock.edges] for deadlock in self.deadlocks]
        summary = replace(self.summary, oldest_wait=None)  # it grows with time; the browser counts it
        matching = len(self.listing.matching), self.listing.total
        shown = [_lasting(lock) for lock in self.locks], circles, summary, matching
        return md5(repr(shown).encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def waited_for_longest(self) -> Listed | None:
        """The lock for which an owner has waited for the longest time; None if no owner waits."""
        waited_for = [lock for lock in self.listed if lock.waiting and lock.longest_wait]
        return max(waited_for, key=attrgetter("longest_wait"), default=None)

    @cached_property
    def summary(self) -> Summary:
        listed = self.listed
        waited_for = [lock for lock in listed if lock.waiting]
        longest = self.waited_for_longest
        waited, since = (longest and longest.longest_wait) or (None, None)
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


def _identity(lock: Listed) -> tuple[str, str]:
    """The alias and key of a lock, which identify it."""
    return lock.using, lock.key


def _lasting(lock: LockInfo) -> tuple[object, ...]:
    """The displayed values of a lock that change only with an event; a renewal is such an event."""
    about = lock.using, lock.key, lock.kind, lock.state.value, lock.count, lock.waiting, Row(lock).keeps_waiting
    hot = lock.rate_text, [party.actor for party in lock.recent]
    queued = [message.value for message in lock.queued]
    return *about, hot, queued, lock.holder.owner, lock.holder.since, lock.until and round(lock.until / _LEASE_STEP)


# --- for Prometheus ---------------------------------------------------------------------------------------------------

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(overview: Overview) -> str:
    """All gauges of an overview of all locks, by alias."""
    return "".join(line + "\n" for line in _lines(overview))


def _lines(overview: Overview) -> Iterator[str]:
    states: Counter[tuple[str, str]] = Counter()
    waiting: Counter[str] = Counter()
    longest: dict[str, float] = defaultdict(float)
    for lock in overview.listed:
        states[lock.using, lock.state] += 1
        waiting[lock.using] += lock.waiting
        if lock.waiting and lock.longest_wait:
            longest[lock.using] = max(longest[lock.using], lock.longest_wait[0])
    aliases = [alias for alias, _ in overview.summary.aliases]
    # Zeros are included: a series that vanishes keeps its last value in dashboards.
    by_state = [
        ({"alias": alias, "state": state}, states[alias, state]) for alias in aliases for state in LockState.values
    ]
    yield from _gauge("rlock_locks", "locks by their most urgent state", by_state)
    yield from _gauge("rlock_waiters", "owners that wait", (({"alias": each}, waiting[each]) for each in aliases))
    about = "the longest current wait"
    yield from _gauge("rlock_longest_wait_seconds", about, (({"alias": each}, longest[each]) for each in aliases))
    yield from _gauge("rlock_deadlocks", "circles of owners that wait for each other", [({}, len(overview.deadlocks))])
    yield from _gauge("rlock_processes", "processes that hold locks or wait", [({}, len(overview.processes))])
    unread = [({"alias": using}, 1.0) for using, _ in overview.problems]
    yield from _gauge("rlock_unread", "1 for an alias that could not be read", unread)


def _gauge(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        escaped = {label: text.translate(_LABEL_ESCAPES) for label, text in labels.items()}
        shown = ",".join(f'{label}="{text}"' for label, text in escaped.items())
        yield f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:g}"
