"""The locks of some aliases at one moment: the reports about all of them, and the current state of some."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from django_rlock._core.clock import monotonic
from django_rlock._core.process import Owned
from django_rlock._monitoring.documents import Report, document_in, number_of, parse_report, short_text
from django_rlock._monitoring.reporter import local_report
from django_rlock._redis import keys
from django_rlock._redis.scripts import ENDLESS
from django_rlock._transport.calls import RUNS, reservation_call, run_flow
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import sync_driver
from django_rlock.console.deadlocks import MAX_SUSPECTS, Name, find_deadlocks
from django_rlock.console.reading import MOST_AHEAD, ServerReader, State, UnreadError, asking
from django_rlock.console.rows import SILENT_AFTER, Builder, Reported
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.infos import Deadlock, LockInfo, LockState, ProcessInfo, QueuedMessage
from django_rlock.settings import get_settings


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
        """Read the current state of some locks; returns the held locks, without queued messages."""
        return self._builder.infos(self._states(keys))

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
        states = self._states(wanted)
        locks = self._builder.infos(states)
        if with_hot:
            locks += self._builder.hot(key for key in wanted if key not in states)
        if scan:
            with asking(pattern or "*", self._using) as server:
                found = server.read_states(self._matching(server.scan_keys(self._prefix) - reported, pattern))
            locks += self._builder.infos({key: state for key, state in found.items() if state.has_lock_owners})
            return with_queued(locks, queued_messages(self._using, pattern=pattern))
        return self._with_queued(locks, states)

    def _states(self, keys: Iterable[str]) -> dict[str, State]:
        wanted = sorted(keys)
        with asking(", ".join(wanted[:3]), self._using) as server:
            return server.read_states(wanted)

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
        self.errors: dict[str, UnreadError] = {}
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
                del self._aliases[using]  # later questions do not wait for its server again
        return found


def _process(reports: Sequence[tuple[float, Report]]) -> ProcessInfo:
    """Make a process from its reports and their ages."""
    # Aliases on one server, and nodes, have the same report; one that was down has an old one.
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


# --- a cache of recent readings ---------------------------------------------------------------------------------------

# A cache of the locks that this process has just read: open pages refresh themselves, and share readings until a change
# is reported.

READING_MAX_AGE = 5.0
"""How long the reading of a lock is reused, in seconds; less for short leases, see ``_lasts``."""
MAX_KEPT_LOCKS = 5000
"""The largest number of locks in the cache."""

ReportsByKey = Mapping[str, object]
"""The reported values of locks, by key; None for a lock that changes too fast to be cached."""


class _SeenLock(NamedTuple):
    """The state of a lock at a time of this process's clock, and its reported values."""

    state: State
    reported: object
    at: float


_seen: Owned[dict[tuple[str, str], _SeenLock]] = Owned("reports", dict)
"""The cache, by alias and key."""


def read_states(server: ServerReader, using: str, reported: ReportsByKey, is_refresh: bool = False) -> dict[str, State]:
    """The states of the held locks among some locks. A refresh reads only locks that may have changed."""
    kept = _unchanged(server, using, reported) if is_refresh else {}
    asked_at = monotonic()
    found = server.read_states(sorted(reported.keys() - kept.keys()))
    if len(_seen.value) > MAX_KEPT_LOCKS:
        _seen.value.clear()
    for key in reported.keys() - kept.keys():
        if key in found:
            _seen.value[using, key] = _SeenLock(found[key], reported[key], asked_at)
        else:
            _seen.value.pop((using, key), None)
    return kept | found


def _unchanged(server: ServerReader, using: str, reported: ReportsByKey) -> dict[str, State]:
    """The cached locks whose reported values are unchanged, if all of them and their queues still exist.

    One command counts the keys of all these locks. If it finds fewer or more keys, no lock counts as unchanged.
    """
    now = monotonic()
    found = {
        key: seen for key in reported if (seen := _seen.value.get((using, key))) and _counts(seen, reported[key], now)
    }
    # A lock that was released or taken again has other reports, or other keys.
    if not found or server.count_present([*found]) != sum(seen.state.present for seen in found.values()):
        return {}
    return {key: _aged(seen.state, now - seen.at) for key, seen in found.items()}


def _counts(seen: _SeenLock, reported: object, now: float) -> bool:
    return reported is not None and reported == seen.reported and now - seen.at < _lasts(seen.state)


def _lasts(state: State) -> float:
    """How long a reading is reused. Leases are renewed after a third, and the displayed time left must not look as if a
    renewal had failed."""
    return READING_MAX_AGE if state.pttl == ENDLESS else min(READING_MAX_AGE, state.pttl / 6000)


def _aged(state: State, seconds: float) -> State:
    return state if state.pttl == ENDLESS else replace(state, pttl=max(state.pttl - round(1000 * seconds), 1))


# --- queued messages --------------------------------------------------------------------------------------------------

# Messages of Celery tasks that have a reservation: finding them, and freeing their reservations.

_LONGEST_DESCRIPTION = 5000
"""The maximum length of a reservation's description."""
_FREED_WITHIN = 2.0
"""How long freeing a reservation is retried while Redis is unreachable, in seconds."""

HEADINGS = ["task", "message", "queue", "queued for", "sender", "kept for"]


def queued_messages(
    using: str, names: Collection[str] | None = None, pattern: str | None = None
) -> list[QueuedMessage]:
    """The messages in the queues of some locks; with None, of all locks of the alias whose names match a shell pattern,
    which reads every key of the server. Raises LockUnavailableError if Redis cannot be read.
    """
    prefix = get_settings(using).key_prefix
    with asking(", ".join(names or [pattern or "*"]), using) as server:
        now, reservations = server.read_reservations(None if names is None else [prefix + name for name in names])
    found = (_message(using, now, *reservation) for reservation in reservations)
    matches = re.compile(translate(pattern or "*")).match
    # A reservation names its lock; planted names, and those of other prefixes, do not fit its key.
    ours = [
        each
        for each in found
        if each.key.startswith(keys.reservation_key(prefix + each.name, ""))
        and matches(each.name)
        and (names is None or each.name in names)
    ]
    return sorted(ours, key=lambda each: -each.waited)


def _message(using: str, now: float, key: str, value: str, pttl: int) -> QueuedMessage:
    first, _, about = value.partition("\n")
    since, _, rest = about.partition(" ")
    text = rest.partition(" ")[2]
    known = document_in(text, _LONGEST_DESCRIPTION)
    task_id = first.partition(":")[2]
    sent_at = number_of(since) or now
    return QueuedMessage(
        name=short_text(known.get("lock")),
        using=using,
        task=short_text(known.get("task")),
        task_id=short_text(task_id),
        queue=short_text(known.get("queue")),
        sender=short_text(known.get("sender")),
        since=sent_at,
        waited=max(now - sent_at, 0.0),
        left=max(pttl, 0) / 1000,
        is_sent=not first.startswith("?"),
        key=key,
        value=first.removeprefix("?"),
    )


def with_queued(locks: Iterable[LockInfo], messages: Iterable[QueuedMessage]) -> list[LockInfo]:
    """The locks with their queued messages, followed by the free locks for which messages are queued."""
    queued: dict[str, list[QueuedMessage]] = {}
    for message in messages:
        queued.setdefault(message.name, []).append(message)
    held = [replace(info, queued=tuple(queued.pop(info.name))) if info.name in queued else info for info in locks]
    return held + [_only_queued(messages) for messages in queued.values()]


def _only_queued(messages: Sequence[QueuedMessage]) -> LockInfo:
    """A free lock for which messages are queued."""
    first = messages[0]
    return LockInfo(
        name=first.name,
        key=get_settings(first.using).key_prefix + first.name,
        using=first.using,
        kind="",
        holders=(),
        state=LockState.QUEUED,
        remaining_lease=None,
        until=None,
        lease=None,
        waiters=(),
        waiting=0,
        queued=tuple(messages),
    )


def free_reservations(messages: Sequence[QueuedMessage]) -> int:
    """Free the reservations of messages, each only if that message still has it; returns how many were freed.

    The messages themselves stay in the queue. Raises LockUnavailableError if Redis is unreachable.
    """
    return sum(_free(message) for message in messages)


def _free(message: QueuedMessage) -> bool:
    driver = sync_driver(message.using)
    lock_key = get_settings(message.using).key_prefix + message.name
    call = reservation_call(message.name, lock_key, message.key, message.value, 0, RUNS)
    _, freed, *_ = run_flow(driver.run, (call, driver.now() + _FREED_WITHIN))
    return bool(freed)
