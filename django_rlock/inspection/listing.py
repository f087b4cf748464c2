"""The list of locks as people ask for it: searched, filtered, sorted, in pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.utils.functional import cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_rlock.inspection.infos import LockInfo, LockState

PAGE_SIZE = 50
_DEFAULT_ORDER = "-held_for"


class Column(NamedTuple):
    """A column: its name in the URL, its heading, and what it is sorted by."""

    name: str
    label: Any
    value: Callable[[LockInfo], Any]


COLUMNS = (
    Column("lock", _("lock"), lambda lock: lock.name),
    Column("kind", _("kind"), lambda lock: lock.kind),
    Column("holder", _("holder"), lambda lock: (lock.holder.host or "", lock.holder.pid or 0)),
    Column("doing", _("doing"), lambda lock: lock.holder.doing),
    Column("holds", _("holds"), lambda lock: lock.count),
    Column("held_for", _("held for"), lambda lock: -1 if lock.held_for is None else lock.held_for),
    Column(
        "time_left",
        _("time left"),
        lambda lock: math.inf if lock.remaining_lease is None else lock.remaining_lease,
    ),
    Column("waiting", _("waiting"), lambda lock: lock.waiting),
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
    """A page of ``locks`` as the query parameters ``q``, ``state``, ``using``, ``kind``, ``o``, ``p`` ask for
    it.

    A parameter that makes no sense is ignored.
    """

    def __init__(self, locks: Sequence[LockInfo], params: Mapping[str, str]) -> None:
        self.total = len(locks)
        self._locks = locks
        self._params = {name: params[name] for name in params if params[name]}
        self.order = self._params.get("o", "")
        self.query = self._params.get("q", "").strip()
        order = self.order or _DEFAULT_ORDER
        self._descending = order.startswith("-")
        self._column = next((column for column in COLUMNS if column.name == order.lstrip("-")), COLUMNS[0])

    @cached_property
    def matching(self) -> list[LockInfo]:
        """All that match, sorted; equals by name."""
        found = sorted(filter(self._matches, self._locks), key=lambda lock: (lock.name, lock.using))
        return sorted(found, key=self._column.value, reverse=self._descending)

    @cached_property
    def page(self) -> Page[LockInfo]:
        return Paginator(self.matching, PAGE_SIZE).get_page(self._params.get("p"))

    @property
    def pages(self) -> list[tuple[int | str, str]]:
        """Page numbers with their URLs; an ellipsis has none."""
        numbers = self.page.paginator.get_elided_page_range(self.page.number)
        return [(n, self.url(p=n) if isinstance(n, int) and n != self.page.number else "") for n in numbers]

    @property
    def headings(self) -> list[Heading]:
        return [self._heading(column) for column in COLUMNS]

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self._params.keys() & {"state", "using", "kind"})

    @property
    def states(self) -> list[Option]:
        counts = Counter(lock.state.value for lock in self._locks)
        return self._options("state", dict(LockState.choices), counts)

    @property
    def aliases(self) -> list[Option]:
        counts = Counter(lock.using for lock in self._locks)
        return self._options("using", {alias: alias for alias in sorted(counts)}, counts)

    @property
    def kinds(self) -> list[Option]:
        counts = Counter(lock.kind for lock in self._locks)
        return self._options("kind", {kind: kind for kind in sorted(counts) if kind}, counts)

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

    def _options(self, name: str, labels: Mapping[str, Any], counts: Mapping[str, int]) -> list[Option]:
        chosen = self._params.get(name, "")
        everything = Option("", gettext("All"), not chosen, self.total)
        return [everything, *(Option(v, label, v == chosen, counts.get(v, 0)) for v, label in labels.items())]

    def _matches(self, lock: LockInfo) -> bool:
        chosen = self._params.get
        return (
            lock.state == chosen("state", lock.state)
            and lock.using == chosen("using", lock.using)
            and lock.kind == chosen("kind", lock.kind)
            and self.query.casefold() in _searched(lock)
        )


def _searched(lock: LockInfo) -> str:
    parties = [*lock.holders, *lock.waiters]
    words = [lock.name, lock.kind]
    for party in parties:
        words += [party.host or "", str(party.pid or ""), party.place, party.owner, *party.context.values()]
    return "\n".join(words).casefold()
