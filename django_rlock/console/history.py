"""The history of locks: the last hour by template, and the locks that were lost or force-released.

Each process writes its own history (``recorder``), which outlives the process. This module combines these histories. As
with reports, it trusts no value that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_rlock._monitoring.documents import (
    HOUR_SLOTS,
    KEEP,
    SLOT,
    document_in,
    list_of,
    number_of,
    short_text,
    texts_of,
)
from django_rlock.console.reading import asking, listed_aliases
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.infos import CLIENT_LENGTH, Party
from django_rlock.locks.statistics import MAX_EVENTS, MAX_GROUPS
from django_rlock.settings import get_aliases

MAX_HISTORY_JSON = 250_000
MAX_WORK = 200
"""The number of groups of locks to show: the groups that were acquired most often."""
MAX_SHOWN_EVENTS = 200
"""The number of events to show: the latest ones."""
_MAX_COUNT = 2**53
_MORE_GROUPS = 50
"""Groups of a process beyond MAX_GROUPS: one for each alias."""
_HOUR = SLOT * HOUR_SLOTS
CLOCK_AHEAD = 1.0
"""How far a process's estimate of the server's clock may be ahead of that clock, in seconds."""

Problem = LockUnavailableError | ImproperlyConfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSpan(Party):
    """A party's "hold" of a lock, or its "wait" for one, which ended after ``seconds``; or a lock that it "lost", or
    "freed" by force. ``at`` is the time of that, by the server's clock.

    ``failed``: a hold ended by a loss, for a ``reason``, or a wait without the lock. ``is_now``: it has not ended.
    ``is_named``: its process has recorded the owner. A lock was freed for a ``reason``, ``by`` an operator, "" for
    code; ``lost_owner`` is the shortened id of the former owner, "" if any owner was meant, and ``whom`` describes its
    process, its work and how long it held the lock, "" if unknown.
    """

    what: str
    at: float
    using: str
    name: str
    seconds: float = 0.0
    failed: bool = False
    reason: str = ""
    by: str = ""
    lost_owner: str = ""
    whom: str = ""
    is_now: bool = False
    is_named: bool = True

    @property
    def start(self) -> float:
        return self.at - self.seconds

    @property
    def verb(self) -> str:
        """Its outcome, in one word or two."""
        if self.what == "wait":
            return "gave up" if self.failed else "waited"
        return "lost" if self.failed else "held"


@dataclass(slots=True, kw_only=True)
class GroupWork:
    """The last hour of the locks of a key template; if ``template`` is "", of the locks whose names begin with
    ``prefix``; if both are "", of all other locks of the alias. ``acquired`` counts holds that have ended, ``gave_up``
    attempts that did not get the lock."""

    using: str
    template: str
    prefix: str
    acquired: int = 0
    gave_up: int = 0
    longest_hold: ReportedSpan | None = None
    longest_wait: ReportedSpan | None = None

    @property
    def label(self) -> str:
        """For example ``stock:<id>`` or ``stock:…``; "" for other locks."""
        return self.template or (f"{self.prefix}…" if self.prefix else "")

    def add(self, other: GroupWork) -> None:
        """Add the counts of another process."""
        self.acquired += other.acquired
        self.gave_up += other.gave_up
        self.longest_hold = _longer(self.longest_hold, other.longest_hold)
        self.longest_wait = _longer(self.longest_wait, other.longest_wait)


@dataclass(frozen=True, slots=True)
class History:
    """``work`` by alias and template, sorted by acquisitions; ``events``, the latest first.

    ``problems`` are the aliases that could not be read, with their errors; the alias is "" if RLOCK as a whole is
    wrong. ``aliases`` are the aliases of this project; processes of other projects may use the same servers.
    """

    work: Sequence[GroupWork]
    events: Sequence[ReportedSpan]
    problems: Sequence[tuple[str, Problem]]
    aliases: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without whole owner ids."""
        return {
            "work": [
                {
                    "using": work.using,
                    "template": work.template,
                    "prefix": work.prefix,
                    "acquired": work.acquired,
                    "gave_up": work.gave_up,
                    "longest_hold": work.longest_hold and plain(work.longest_hold),
                    "longest_wait": work.longest_wait and plain(work.longest_wait),
                }
                for work in self.work
            ],
            "events": [plain(event) for event in self.events],
        }


def read_history() -> History:
    """Read the histories of all processes from all servers."""
    try:
        return _read(listed_aliases(), get_aliases())
    except ImproperlyConfigured as error:
        return History((), (), [("", error)], ())


def _read(aliases: Iterable[str], known: Sequence[str]) -> History:
    work: dict[tuple[str, str, str, str], GroupWork] = {}
    events: dict[tuple[str, str, float, str], ReportedSpan] = {}
    problems: list[tuple[str, Problem]] = []
    for using in aliases:
        try:
            with asking("*", using) as server:
                now, texts = server.read_histories()
        except (LockUnavailableError, ImproperlyConfigured) as error:
            problems.append((using, error))
            continue
        # Aliases may share a server, where each process has one history for all.
        for client, text in texts.items():
            document = document_in(text, MAX_HISTORY_JSON)
            for found in _work(client, document, now):
                work[client, found.using, found.template, found.prefix] = found
            for event in spans_in(client, document, "events", MAX_EVENTS, now):
                events[client, event.what, event.at, event.name] = event
    latest = sorted(events.values(), key=lambda event: event.at)[::-1][:MAX_SHOWN_EVENTS]
    return History(_joined(work.values()), latest, problems, known)


def _joined(found: Iterable[GroupWork]) -> list[GroupWork]:
    groups: dict[tuple[str, str, str], GroupWork] = {}
    for work in found:
        group = work.using, work.template, work.prefix
        groups.setdefault(group, GroupWork(using=work.using, template=work.template, prefix=work.prefix)).add(work)
    busy = [work for work in groups.values() if work.acquired or work.gave_up]
    return sorted(busy, key=lambda work: (-work.acquired, work.using, work.label))[:MAX_WORK]


def _work(client: str, document: Mapping[str, Any], now: float) -> Iterable[GroupWork]:
    for entry in list_of(document.get("work"), MAX_GROUPS + _MORE_GROUPS):
        using = short_text(entry.get("using"))
        # A slot may begin before the hour does, and by a clock that is ahead.
        slots = [slot for slot in _slots(entry.get("slots")) if now - _HOUR - SLOT < slot[0] < now + SLOT]
        yield GroupWork(
            using=using,
            template=short_text(entry.get("template")),
            prefix=short_text(entry.get("prefix")),
            acquired=int(sum(slot[1] for slot in slots)),
            gave_up=int(sum(slot[2] for slot in slots)),
            longest_hold=_past(client, document, "hold", entry.get("hold"), using, now),
            longest_wait=_past(client, document, "wait", entry.get("wait"), using, now),
        )


def _slots(value: Any) -> Iterable[list[float]]:
    """The start of each slot, the number of acquisitions in it, and the number of failed attempts."""
    # Numbers beyond _MAX_COUNT would lose digits in a browser.
    for slot in value[:HOUR_SLOTS] if isinstance(value, list) else ():
        numbers = [number_of(number) for number in slot] if isinstance(slot, list) and len(slot) == 3 else [None]
        known = [number for number in numbers if number is not None and 0 <= number <= _MAX_COUNT]
        if len(known) == 3:
            yield known


def _past(
    client: str, document: Mapping[str, Any], field: str, entry: Any, using: str, now: float
) -> ReportedSpan | None:
    known = (entry | {"what": field, "using": using}) if isinstance(entry, dict) else {}
    return _span(client, document, known, now - _HOUR - SLOT, now + SLOT)


def spans_in(
    client: str,
    document: Mapping[str, Any],
    field: str,
    at_most: int,
    now: float,
    lock: Mapping[str, Any] | None = None,
) -> Iterator[ReportedSpan]:
    """The spans in a field of a process's memory: holds or waits, as ``lock`` says; without it, losses and forced
    releases."""
    for entry in list_of(document.get(field), at_most):
        if lock is not None:
            found = _span(client, document, {**entry, **lock}, now - KEEP, now + CLOCK_AHEAD)
            if found is not None:
                yield replace(found, at=min(found.at, now))
        elif entry.get("what") in ("lost", "freed"):
            yield from filter(None, [_span(client, document, entry, now - KEEP, now + SLOT)])


def _span(
    client: str, document: Mapping[str, Any], entry: Mapping[str, Any], since: float, until: float
) -> ReportedSpan | None:
    """The span of an entry; None for impossible values, or another time."""
    lasts = entry.get("what") in ("hold", "wait")
    at, seconds = number_of(entry.get("at")), number_of(entry.get("seconds") if lasts else 0.0)
    if at is None or seconds is None or not since < at < until or not 0 <= seconds < at:
        return None
    # A Party shortens the former owner's id in the same way as the ids of holders.
    owner = short_text(entry.get("owner"))
    return ReportedSpan(
        **party_in(client, document, entry),
        what=short_text(entry.get("what")),
        at=at,
        using=short_text(entry.get("using")),
        name=short_text(entry.get("name")),
        seconds=seconds,
        failed=entry.get("failure") is not None,
        reason=short_text(entry.get("failure" if lasts else "reason")),
        by=short_text(entry.get("by")),
        lost_owner=Party(owner=owner, actor="", client=owner[:CLIENT_LENGTH]).short_owner,
        whom=short_text(entry.get("whom")),
        is_named="place" in entry,
    )


def party_in(client: str, document: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    pid = number_of(document.get("pid"))
    return {
        "owner": "",
        "actor": "",
        "client": client,
        "host": short_text(document.get("host")) or None,
        "pid": None if pid is None else int(pid),
        "role": short_text(document.get("role")),
        "place": short_text(entry.get("place")),
        "context": texts_of(entry.get("context")),
    }


def _longer(one: ReportedSpan | None, other: ReportedSpan | None) -> ReportedSpan | None:
    found = [past for past in (one, other) if past]
    return max(found, key=lambda past: past.seconds, default=None)


_OF_EVENTS = {"by", "lost_owner", "whom"}
_OF_SPANS = {"failed", "is_named", "is_now", "seconds"}


def plain(span: ReportedSpan) -> dict[str, Any]:
    """Plain values, for JSON, without what does not concern it; without whole owner ids."""
    others = _OF_SPANS if span.what in ("lost", "freed") else _OF_EVENTS
    document = asdict(span) | {"client": span.short_client, "doing": span.doing}
    return {name: value for name, value in document.items() if name not in others | {"owner", "actor"}}
