"""The list of locks for people: searched, filtered, sorted, in pages."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.utils.functional import cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_rlock.inspection.infos import LockInfo, LockState, duration_text
from django_rlock.inspection.reported import Reported

Listed = Reported | LockInfo
PAGE_SIZE = 50
AGES = 10, 60, 600, 3600
"""What the filter "held for more than" offers, in seconds."""
MAX_PREFIXES = 30
_DEFAULT_ORDER = "-held_for"


class Column(NamedTuple):
    """A column: its name in the URL, its heading, and what it is sorted by."""

    name: str
    label: Any
    value: Callable[[Listed], Any]


COLUMNS = (
    Column("lock", _("lock"), attrgetter("name")),
    Column("kind", _("kind"), attrgetter("kind")),
    Column("holder", _("holder"), attrgetter("process")),
    Column("doing", _("doing"), attrgetter("doing")),
    Column("holds", _("holds"), attrgetter("count")),
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
    """A column's head: where a click on it leads, and how the list is sorted by it now ("", ascending, …)."""

    column: Column
    url: str
    order: str


class Listing:
    """A page of ``locks`` as the query parameters ``q``, ``state``, ``using``, ``kind``, ``host``, ``prefix``,
    ``older`` (seconds), ``holder`` and ``process`` (short ids), ``o`` and ``p`` ask for it.

    A parameter that makes no sense is ignored.
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
        """All that match, in no order."""
        return list(self._found())

    @cached_property
    def page(self) -> Page[Listed]:
        """A page of them, sorted; equals by name."""
        page = Paginator(self.matching, PAGE_SIZE).get_page(self._params.get("p"))
        page.object_list = self._first(page.end_index())[page.start_index() - 1 :] if self.matching else []
        return page

    def _first(self, count: int) -> list[Listed]:
        """The first so many in the order of the list. Only they, and their equals, are compared by name."""
        values = [self._column.value(lock) for lock in self.matching]
        best = nlargest(count, values) if self._descending else nsmallest(count, values)
        last = best[-1]
        found = [
            lock
            for lock, value in zip(self.matching, values, strict=True)
            if (value >= last if self._descending else value <= last)
        ]
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
        """The page before this one; "" on the first."""
        return self.url(p=self.page.number - 1) if self.page.has_previous() else ""

    @property
    def next_url(self) -> str:
        return self.url(p=self.page.number + 1) if self.page.has_next() else ""

    @property
    def hidden(self) -> dict[str, str]:
        """What the form for searching keeps without showing it."""
        return {name: self._params[name] for name in ("o", "holder", "process") if name in self._params}

    @property
    def headings(self) -> list[Heading]:
        return [self._heading(column) for column in COLUMNS]

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
        """What names begin with, up to their first colon; the most frequent ones."""
        counts = Counter(lock.name[: lock.name.find(":") + 1] for lock in self._locks)
        del counts[""]
        chosen = self._params.get("prefix", "")
        shown = sorted({prefix for prefix, _ in counts.most_common(MAX_PREFIXES)} | ({chosen} if chosen else set()))
        return self._options("prefix", {prefix: prefix for prefix in shown}, counts)

    @cached_property
    def ages(self) -> list[Option]:
        held = sorted(lock.held_for or 0.0 for lock in self._locks)
        counts = {str(age): len(held) - bisect_right(held, age) for age in AGES}
        return self._options("older", {str(age): duration_text(age) for age in AGES}, counts)

    def url(self, **changes: object) -> str:
        """The query string of this list with some parameters changed; "" removes one."""
        params = {name: value for name, value in self._params.items() if name != "p"} | changes
        return "?" + urlencode({name: value for name, value in params.items() if value != ""})

    def _heading(self, column: Column) -> Heading:
        if column is not self._column:
            return Heading(column, self.url(o=column.name), "")
        if self._descending:
            return Heading(column, self.url(o=column.name), "descending")
        return Heading(column, self.url(o=f"-{column.name}"), "ascending")

    def _options(self, name: str, labels: Mapping[str, Any], counts: Mapping[Any, int]) -> list[Option]:
        chosen = self._params.get(name, "")
        everything = Option("", gettext("All"), not chosen, self.total)
        return [everything, *(Option(v, label, v == chosen, counts.get(v, 0)) for v, label in labels.items())]

    def _found(self) -> Iterable[Listed]:
        """The locks that pass all filters that are set."""
        found: Iterable[Listed] = self._locks
        for name, matches in _FILTERS.items():
            if wanted := self._params.get(name):
                found = [lock for lock in found if matches(lock, wanted)]
        if self.query:
            words = self.query.casefold()
            found = [lock for lock in found if words in "\n".join(lock.words).casefold()]
        return found


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
}
