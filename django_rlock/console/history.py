"""The history of locks: the last hour by template, and the locks that were lost or force-released.

Each process writes its own history (``recorder``), which outlives the process. This module combines these histories. As
with reports, it trusts no value that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_rlock._monitoring.documents import (
    HOUR_SLOTS,
    KEEP,
    LAST,
    SLOT,
    list_of,
    number_of,
    parsed,
    short_text,
    texts_of,
)
from django_rlock.console.reading import ProcessHistory, UnreadError, asking, listed_aliases
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
MAX_FIELD_SPANS = max(MAX_EVENTS, sum(LAST.values()))
_HOUR = SLOT * HOUR_SLOTS
_WHATS = "hold", "wait", "lost", "freed"
_TEXTS = "using", "name", "place", "reason", "by", "whom"
CLOCK_AHEAD = 1.0
"""How far a process's estimate of the server's clock may be ahead of that clock, in seconds."""


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
    problems: Sequence[tuple[str, UnreadError]]
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
    problems: list[tuple[str, UnreadError]] = []
    for using in aliases:
        try:
            with asking("*", using) as server:
                now, histories = server.read_histories("work", "events")
        except (LockUnavailableError, ImproperlyConfigured) as error:
            problems.append((using, error))
            continue
        # Aliases may share a server, where each process has one history for all.
        for history in histories:
            client = history.client
            work |= {(client, found.using, found.template, found.prefix): found for found in _work(history, now)}
            events |= {(client, event.what, event.at, event.name): event for event in spans_in(history, "events", now)}
    latest = sorted(events.values(), key=lambda event: event.at)[::-1][:MAX_SHOWN_EVENTS]
    return History(_joined(work.values()), latest, problems, known)


def _joined(found: Iterable[GroupWork]) -> list[GroupWork]:
    groups: dict[tuple[str, str, str], GroupWork] = {}
    for work in found:
        group = work.using, work.template, work.prefix
        groups.setdefault(group, GroupWork(using=work.using, template=work.template, prefix=work.prefix)).add(work)
    busy = [work for work in groups.values() if work.acquired or work.gave_up]
    return sorted(busy, key=lambda work: (-work.acquired, work.using, work.label))[:MAX_WORK]


def _work(history: ProcessHistory, now: float) -> Iterator[GroupWork]:
    for entry in list_of(parsed(history.texts.get("work", ""), MAX_HISTORY_JSON), MAX_GROUPS + _MORE_GROUPS):
        # A slot may begin before the hour does, and by a clock that is ahead.
        begin, end = now + history.ahead - _HOUR - SLOT, now + history.ahead + SLOT
        slots = [slot for slot in _slots(entry.get("slots")) if begin < slot[0] < end]
        spans = [_span(history, span, now) for span in list_of(entry.get("longest"), 2)]
        longest = {span.what: span for span in spans if span and span.at > now - _HOUR - SLOT}
        yield GroupWork(
            using=short_text(entry.get("using")),
            template=short_text(entry.get("template")),
            prefix=short_text(entry.get("prefix")),
            acquired=int(sum(slot[1] for slot in slots)),
            gave_up=int(sum(slot[2] for slot in slots)),
            longest_hold=longest.get("hold"),
            longest_wait=longest.get("wait"),
        )


def _slots(value: Any) -> Iterable[list[float]]:
    """The start of each slot, the number of acquisitions in it, and the number of failed attempts."""
    # Numbers beyond _MAX_COUNT would lose digits in a browser.
    for slot in value[:HOUR_SLOTS] if isinstance(value, list) else ():
        numbers = [number_of(number) for number in slot] if isinstance(slot, list) and len(slot) == 3 else [None]
        known = [number for number in numbers if number is not None and 0 <= number <= _MAX_COUNT]
        if len(known) == 3:
            yield known


def spans_in(history: ProcessHistory, field: str, now: float) -> Iterator[ReportedSpan]:
    """The spans in a field of a process's history."""
    for entry in list_of(parsed(history.texts.get(field, ""), MAX_HISTORY_JSON), MAX_FIELD_SPANS):
        yield from filter(None, [_span(history, entry, now)])


def _span(history: ProcessHistory, entry: Mapping[str, Any], now: float) -> ReportedSpan | None:
    """The span of an entry; None for impossible values."""
    what, at, seconds = entry.get("what"), number_of(entry.get("at")), number_of(entry.get("seconds"))
    if what not in _WHATS or at is None or seconds is None or not 0 <= seconds < at:
        return None
    at -= history.ahead
    if not now - KEEP < at < now + CLOCK_AHEAD:
        return None
    # A Party shortens the former owner's id in the same way as the ids of holders.
    owner, pid = short_text(entry.get("owner")), number_of(history.texts.get("pid"))
    texts: dict[str, Any] = {name: short_text(entry.get(name)) for name in _TEXTS}
    return ReportedSpan(
        **texts,
        owner="",
        actor="",
        client=history.client,
        host=short_text(history.texts.get("host")) or None,
        pid=None if pid is None else int(pid),
        role=short_text(history.texts.get("role")),
        context=texts_of(entry.get("context")),
        what=what,
        at=min(at, now),
        seconds=seconds,
        failed=entry.get("failed") is True,
        lost_owner=Party(owner=owner, actor="", client=owner[:CLIENT_LENGTH]).short_owner,
        is_named="place" in entry,
    )


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
