"""The locks of some aliases at one moment: what reports say of all of them, and the current state of some."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from django_rlock.clock import monotonic
from django_rlock.drivers.identity import client_id
from django_rlock.exceptions import LockUnavailableError
from django_rlock.inspection import recent, waiting
from django_rlock.inspection.building import SILENT_AFTER, Builder
from django_rlock.inspection.infos import Deadlock, LockInfo, ProcessInfo
from django_rlock.inspection.parsing import Report, parse_report
from django_rlock.inspection.queued import queued_messages, with_queued
from django_rlock.inspection.reading import MOST_AHEAD, State
from django_rlock.inspection.reported import Reported
from django_rlock.inspection.sources import asking
from django_rlock.reports import local_report
from django_rlock.settings import get_settings

Problem = LockUnavailableError | ImproperlyConfigured
"""Why an alias could not be read."""


class AliasSurvey:
    """One alias. LockUnavailableError or ImproperlyConfigured when it cannot be read. For a refresh, see ``recent``."""

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
            states = recent.read_states(server, self._using, wanted, self._is_refresh)
        locks = self._builder.infos(states) + self._builder.hot(key for key in wanted if key not in states)
        return self._with_queued(locks, states)

    def read_all(self, pattern: str | None = None, scan: bool = False, with_hot: bool = False) -> list[LockInfo]:
        """Read all locks that reports name, or with ``scan`` all that the server has; see ``find_locks``."""
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
        """Add the queued messages to the locks that have places."""
        names = [lock.name for lock in locks if lock.key in states and states[lock.key].has_places]
        return with_queued(locks, queued_messages(self._using, names)) if names else locks

    def _matching(self, keys: Iterable[str], pattern: str | None) -> list[str]:
        matches = re.compile(translate(pattern or "*")).match
        return sorted(key for key in keys if matches(key.removeprefix(self._prefix)))


class Survey:
    """Several aliases. ``errors`` has an error for each alias that could not be read; ``name`` is for their texts.

    A refresh of a page that a person looks at need not know all that has happened within the last second.
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
        reading has brought these heartbeats back: whoever is dead will be silent after ``SILENT_AFTER``."""
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

    def read(self, names: Iterable[waiting.Name]) -> list[LockInfo]:
        """Read the current state of some locks; returns the held locks, in the given order."""
        return self._named(names, AliasSurvey.named)

    def shown(self, names: Iterable[waiting.Name]) -> list[LockInfo]:
        """Read the locks of a page; returns the held and the ``hot`` locks, in the given order."""
        return self._named(names, AliasSurvey.shown)

    def _named(
        self, names: Iterable[waiting.Name], read: Callable[[AliasSurvey, Iterable[str]], list[LockInfo]]
    ) -> list[LockInfo]:
        wanted = list(names)
        by_alias: dict[str, list[str]] = defaultdict(list)
        for using, name in wanted:
            by_alias[using].append(name)
        found = self._ask(by_alias, lambda alias, using: read(alias, by_alias[using]))
        places = {name: place for place, name in enumerate(wanted)}
        return sorted(found, key=lambda lock: places[lock.using, lock.name])

    def read_all(self, pattern: str | None = None, scan: bool = False, with_hot: bool = False) -> list[LockInfo]:
        return self._ask(self._aliases, lambda alias, _: alias.read_all(pattern, scan, with_hot))

    def deadlocks(self, at_most: int = waiting.MAX_SUSPECTS) -> tuple[Deadlock, ...]:
        """The deadlocks across the aliases; reads at most so many suspected locks again."""
        return waiting.find_deadlocks(self.reported, self.read, at_most)

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
    """This process's own report, which is always up to date."""
    fields = local_report(now - monotonic())
    return parse_report(client_id(), now, {name.encode(): text.encode() for name, text in fields.items()}, "own")
