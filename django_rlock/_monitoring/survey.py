"""The locks of some aliases at one moment: the wait-for graph, a cache of recent readings, and the survey itself."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import translate
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from django_rlock._core.clock import monotonic
from django_rlock._core.process import Owned
from django_rlock._monitoring.building import SILENT_AFTER, Builder, Reported
from django_rlock._monitoring.documents import Report, parse_report
from django_rlock._monitoring.queued import queued_messages, with_queued
from django_rlock._monitoring.reading import MOST_AHEAD, Server, State, asking
from django_rlock._monitoring.reports import local_report
from django_rlock._redis.scripts import ENDLESS
from django_rlock._transport.identity import client_id
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.infos import Deadlock, Edge, LockInfo, ProcessInfo
from django_rlock.settings import get_settings

# --- waiting ----------------------------------------------------------------------------------------------------------

# The graph of owners that wait for other owners; its circles are deadlocks.

Listed = TypeVar("Listed", LockInfo, Reported | LockInfo)
Name = tuple[str, str]
"""Alias and name of a lock."""
MAX_SUSPECTS = 8
"""The number of suspected locks that a page reads again to confirm deadlocks: twice, with four commands each."""
_SOMEONE = ""
"""Stands for holders that no report names; they may wait for any lock."""


def edges(locks: Iterable[LockInfo]) -> list[Edge]:
    """The edges of the wait-for graph. A waiter that is not the first in the queue also waits for the lock's
    holders."""
    return [
        Edge(waiter=waiter, holder=holder, using=lock.using, name=lock.name)
        for lock in locks
        for waiter in lock.waiters
        for holder in lock.holders
        if waiter.actor != holder.actor
    ]


def find_deadlocks(
    locks: Sequence[Reported], read: Callable[[Sequence[Name]], list[LockInfo]], at_most: int = MAX_SUSPECTS
) -> tuple[Deadlock, ...]:
    """Find the deadlocks among ``locks``.

    ``read`` reads the current state of locks. A circle counts if two successive readings find it: while locks change
    hands, a single reading may combine states that never existed at the same time.
    """
    names = _suspects(locks)[:at_most]
    first = circles(edges(read(names))) if names else []
    if not first:
        return ()
    # Only a circle whose waits are all the same in both readings has existed as a whole.
    seen = {_links(circle) for circle in first}
    return tuple(circle for circle in circles(edges(read(names))) if _links(circle) in seen)


def mark(locks: Iterable[Listed], deadlocks: Iterable[Deadlock]) -> list[Listed | LockInfo]:
    """Return the same locks, with the deadlock of each lock that is part of one."""
    circle_of = {name: deadlock for deadlock in deadlocks for name in deadlock.locks}
    if not circle_of:
        return list(locks)
    found = ((lock, circle_of.get((lock.using, lock.name))) for lock in locks)
    return [lock.in_deadlock(circle) if circle else lock for lock, circle in found]


def circles(links: Iterable[Edge]) -> list[Deadlock]:
    """The circles in the graph; an owner is part of at most one of them."""
    by_waiter: dict[str, dict[str, Edge]] = defaultdict(dict)
    for edge in links:
        by_waiter[edge.waiter.actor][edge.holder.actor] = edge
    found = []
    while circle := _circle(by_waiter):
        # Begin at the smallest name, so that the result does not depend on the order of reading.
        along = [by_waiter[waiter][holder] for waiter, holder in pairwise(circle)]
        start = min(range(len(along)), key=lambda index: along[index].key)
        found.append(Deadlock((*along[start:], *along[:start])))
        for actor in circle[1:]:
            del by_waiter[actor]
    return found


def _circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """A list of owners, each of which waits for the next, and the last for the first; [] if no owners wait for each
    other in a circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def _suspects(locks: Sequence[Reported]) -> list[Name]:
    """The locks that may be part of a deadlock, beginning with those whose waiters and holders may both be part of a
    circle."""
    wanted = [lock for lock in locks if lock.waits]
    graph: dict[str, set[str]] = defaultdict(set)
    for lock in wanted:
        holders = lock.holding_actors or {_SOMEONE}
        for waiter in lock.waiting_actors:
            graph[waiter] |= holders - {waiter}
    if _SOMEONE in set().union(*graph.values()):
        graph[_SOMEONE] = {actor for lock in locks for actor in lock.holding_actors if actor in graph}
    knot = _knot(graph)
    found = []
    for lock in locks if _SOMEONE in knot else wanted:
        waited_for = not knot.isdisjoint(lock.waiting_actors)
        held = not knot.isdisjoint(lock.holding_actors)
        if waited_for or (held and _SOMEONE in knot):
            found.append((not (waited_for and held), not waited_for, lock.using, lock.name))
    return [(using, name) for *_, using, name in sorted(found)]


def _knot(graph: Mapping[str, set[str]]) -> set[str]:
    """The nodes on circles and between circles, which no topological order contains in either direction."""
    left = _unordered(graph)
    turned: dict[str, set[str]] = {node: set() for node in left}
    for node in left:
        for after in graph[node] & left:
            turned[after].add(node)
    return _unordered(turned)


def _unordered(graph: Mapping[str, set[str]]) -> set[str]:
    sorter = TopologicalSorter(graph)
    with suppress(CycleError):
        sorter.prepare()
    left = set(graph)
    while ready := sorter.get_ready():
        left.difference_update(ready)
        sorter.done(*ready)
    return left


def _links(circle: Deadlock) -> frozenset[tuple[str, str, str, str]]:
    return frozenset(edge.key for edge in circle.edges)


# --- recent -----------------------------------------------------------------------------------------------------------

# A cache of the locks that this process has just read: open pages refresh themselves, and share readings until a change
# is reported.

MAX_AGE = 5.0
"""How long the reading of a lock is reused, in seconds; less for short leases, see ``_lasts``."""
MAX_KEPT = 5000
"""The largest number of locks in the cache."""

ReportsByKey = Mapping[str, object]
"""The reported values of locks, by key; None for a lock that changes too fast to be cached."""


class _Seen(NamedTuple):
    """The state of a lock at a time of this process's clock, and its reported values."""

    state: State
    reported: object
    at: float


_seen: Owned[dict[tuple[str, str], _Seen]] = Owned("reports", dict)
"""The cache, by alias and key."""


def read_states(server: Server, using: str, reported: ReportsByKey, is_refresh: bool = False) -> dict[str, State]:
    """The states of the held locks among some locks. A refresh reads only locks that may have changed."""
    kept = _unchanged(server, using, reported) if is_refresh else {}
    asked_at = monotonic()
    found = server.read_states(sorted(reported.keys() - kept.keys()))
    if len(_seen.value) > MAX_KEPT:
        _seen.value.clear()
    for key in reported.keys() - kept.keys():
        if key in found:
            _seen.value[using, key] = _Seen(found[key], reported[key], asked_at)
        else:
            _seen.value.pop((using, key), None)
    return kept | found


def _unchanged(server: Server, using: str, reported: ReportsByKey) -> dict[str, State]:
    """The cached locks whose reported values are unchanged, if all of them and their queues still exist.

    One command counts the keys of all these locks. If it finds fewer or more keys, no lock counts as unchanged.
    """
    now = monotonic()
    found = {
        key: seen for key in reported if (seen := _seen.value.get((using, key))) and _counts(seen, reported[key], now)
    }
    if not found or server.count_present([*found]) != sum(seen.state.present for seen in found.values()):
        return {}
    return {key: _aged(seen.state, now - seen.at) for key, seen in found.items()}


def _counts(seen: _Seen, reported: object, now: float) -> bool:
    return reported is not None and reported == seen.reported and now - seen.at < _lasts(seen.state)


def _lasts(state: State) -> float:
    """How long a reading is reused. Leases are renewed after a third, and the displayed time left must not look as if a
    renewal had failed."""
    return MAX_AGE if state.pttl == ENDLESS else min(MAX_AGE, state.pttl / 6000)


def _aged(state: State, seconds: float) -> State:
    return state if state.pttl == ENDLESS else replace(state, pttl=max(state.pttl - round(1000 * seconds), 1))


# --- survey -----------------------------------------------------------------------------------------------------------

# The locks of some aliases at one moment: the reports about all of them, and the current state of some.

Problem = LockUnavailableError | ImproperlyConfigured
"""The error of an alias that could not be read."""


class AliasSurvey:
    """The locks of one alias. Raises LockUnavailableError or ImproperlyConfigured if they cannot be read. For a
    refresh, see ``read_states``."""

    def __init__(self, using: str, name: str, is_refresh: bool = False) -> None:
        self._using = using
        self._is_refresh = is_refresh
        self._prefix = get_settings(using).key_prefix
        with asking(name, using) as server:
            self.now, self.reports = server.read_all_reports(is_refresh)
        self._builder = Builder(using, self.now, [*self.reports, own_report(self.now)])

    @property
    def ahead(self) -> set[str]:
        """The processes whose last heartbeat is ahead of the server's clock, which has been set back since."""
        return {report.client for report in self.reports if report.heartbeat > self.now + MOST_AHEAD}

    @cached_property
    def reported(self) -> list[Reported]:
        """The locks as reported, which may be a second late; waiters that only a queue names are missing."""
        return self._builder.reported()

    def read(self, keys: Iterable[str]) -> list[LockInfo]:
        """Read the current state of some locks; returns the held locks."""
        wanted = sorted(keys)
        with asking(", ".join(wanted[:3]), self._using) as server:
            states = server.read_states(wanted)
        return self._with_queued(self._builder.infos(states), states)

    def named(self, names: Iterable[str]) -> list[LockInfo]:
        return self.read(self._prefix + name for name in names)

    def shown(self, names: Iterable[str]) -> list[LockInfo]:
        """Read the locks of a page; returns the held and the ``hot`` locks."""
        wanted = {self._prefix + name: self._builder.report_of(self._prefix + name) for name in names}
        with asking(", ".join([*wanted][:3]), self._using) as server:
            states = read_states(server, self._using, wanted, self._is_refresh)
        locks = self._builder.infos(states) + self._builder.hot(key for key in wanted if key not in states)
        return self._with_queued(locks, states)

    def read_all(self, pattern: str | None = None, scan: bool = False, with_hot: bool = False) -> list[LockInfo]:
        """Read all locks that reports name, or with ``scan`` all locks on the server; see ``find_locks``."""
        reported = self._builder.keys()
        wanted = self._matching(reported, pattern)
        locks = self.read(wanted)
        if with_hot:
            held = {lock.key for lock in locks}
            locks += self._builder.hot(key for key in wanted if key not in held)
        if scan:
            with asking(pattern or "*", self._using) as server:
                found = server.read_states(self._matching(server.scan_keys(self._prefix) - reported, pattern))
            locks += self._builder.infos({key: state for key, state in found.items() if state.has_lock_owners})
            return with_queued(locks, queued_messages(self._using, pattern=pattern))
        return locks

    def _with_queued(self, locks: list[LockInfo], states: Mapping[str, State]) -> list[LockInfo]:
        """Add the queued messages to the locks that have reservations."""
        names = [lock.name for lock in locks if lock.key in states and states[lock.key].has_reservations]
        return with_queued(locks, queued_messages(self._using, names)) if names else locks

    def _matching(self, keys: Iterable[str], pattern: str | None) -> list[str]:
        matches = re.compile(translate(pattern or "*")).match
        return sorted(key for key in keys if matches(key.removeprefix(self._prefix)))


class Survey:
    """The locks of several aliases. ``errors`` has an error for each alias that could not be read; ``name`` is for
    their texts.

    A refresh of an open page may miss the changes of the last second.
    """

    def __init__(self, aliases: Iterable[str], name: str = "*", is_refresh: bool = False) -> None:
        self.errors: dict[str, Problem] = {}
        self._aliases: dict[str, AliasSurvey] = {}
        for using in aliases:
            try:
                self._aliases[using] = AliasSurvey(using, name, is_refresh)
            except (LockUnavailableError, ImproperlyConfigured) as error:
                self.errors[using] = error

    @property
    def aliases(self) -> list[str]:
        """The aliases that could be read."""
        return list(self._aliases)

    @property
    def ahead(self) -> set[str]:
        """The processes whose last heartbeat is ahead of their server's clock, which has been set back since. This
        reading has set these heartbeats to the current time: dead processes will be silent after ``SILENT_AFTER``."""
        return {client for alias in self._aliases.values() for client in alias.ahead}

    @cached_property
    def processes(self) -> list[ProcessInfo]:
        """The processes that have a report, sorted by host; of several reports of a process, the latest counts."""
        found: dict[str, list[tuple[float, Report]]] = defaultdict(list)
        for alias in self._aliases.values():
            for report in alias.reports:
                found[report.client].append((max(alias.now - report.heartbeat, 0.0), report))
        return sorted(map(_process, found.values()), key=lambda process: (process.host, process.pid or 0))

    @cached_property
    def reported(self) -> list[Reported]:
        return [lock for alias in self._aliases.values() for lock in alias.reported]

    def read(self, names: Iterable[Name]) -> list[LockInfo]:
        """Read the current state of some locks; returns the held locks, in the given order."""
        return self._named(names, AliasSurvey.named)

    def shown(self, names: Iterable[Name]) -> list[LockInfo]:
        """Read the locks of a page; returns the held and the ``hot`` locks, in the given order."""
        return self._named(names, AliasSurvey.shown)

    def _named(
        self, names: Iterable[Name], read: Callable[[AliasSurvey, Iterable[str]], list[LockInfo]]
    ) -> list[LockInfo]:
        wanted = list(names)
        by_alias: dict[str, list[str]] = defaultdict(list)
        for using, name in wanted:
            by_alias[using].append(name)
        found = self._ask(by_alias, lambda alias, using: read(alias, by_alias[using]))
        order = {name: index for index, name in enumerate(wanted)}
        return sorted(found, key=lambda lock: order[lock.using, lock.name])

    def read_all(self, pattern: str | None = None, scan: bool = False, with_hot: bool = False) -> list[LockInfo]:
        return self._ask(self._aliases, lambda alias, _: alias.read_all(pattern, scan, with_hot))

    def deadlocks(self, at_most: int = MAX_SUSPECTS) -> tuple[Deadlock, ...]:
        """The deadlocks across the aliases; reads at most ``at_most`` suspected locks again."""
        return find_deadlocks(self.reported, self.read, at_most)

    def _ask(
        self, aliases: Iterable[str], question: Callable[[AliasSurvey, str], Sequence[LockInfo]]
    ) -> list[LockInfo]:
        found: list[LockInfo] = []
        for using in list(aliases):
            try:
                found += question(self._aliases[using], using) if using in self._aliases else ()
            except LockUnavailableError as error:
                self.errors[using] = error
                del self._aliases[using]
        return found


def _process(reports: Sequence[tuple[float, Report]]) -> ProcessInfo:
    """Make a process from its reports and their ages."""
    heard_ago, report = min(reports, key=lambda each: each[0])
    return ProcessInfo(
        client=report.client,
        host=report.host,
        pid=report.pid,
        role=report.role,
        version=report.version,
        started=report.started,
        heard_ago=heard_ago,
        silent=heard_ago > SILENT_AFTER,
        holds=max(len(report.holds) for _, report in reports),
        waits=max(len(report.waits) for _, report in reports),
    )


def own_report(now: float) -> Report:
    """The report of this process, which is always up to date."""
    fields = local_report(now - monotonic())
    return parse_report(client_id(), now, {name.encode(): text.encode() for name, text in fields.items()}, "own")
