"""What a process records besides its holds and waits: its hot locks, and its history.

``locks.statistics`` collects what has ended, as ``Span`` or ``Hold``. The recorder takes it every few seconds; all that
is shown of it selects or adds up these spans.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from django_rlock._core.threads import snapshot
from django_rlock._monitoring.documents import HOUR_SLOTS, LAST, MAX_NAMED, MAX_VALUE, SLOT, described_context
from django_rlock._redis.keys import lock_field
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.kinds import Group
from django_rlock.locks.records import Hold
from django_rlock.locks.statistics import MAX_EVENTS, MAX_RECENT, STATISTICS, Span
from django_rlock.settings import get_settings

# --- hot locks --------------------------------------------------------------------------------------------------------

# Locks that this process acquires many times a second. Their holds are too short for a report, so their rate is
# reported.

LEAST_RATE = 1.0
"""The number of acquisitions per second from which a lock is hot."""
MAX_HOT = 10
"""The number of hot locks that a process reports: those with the highest rates."""


class HotLock(NamedTuple):
    """A lock and its rate per second; ``last`` are holds of different owners, the latest first."""

    using: str
    name: str
    rate: float
    last: Sequence[Hold]

    def field(self, clock: float) -> tuple[str, str]:
        """The report's field for the lock, and its JSON."""
        key = get_settings(self.using).key_prefix + self.name
        holders = [
            {
                "by": held.owner.serial,
                "at": round(held.since + clock, 3),
                "place": held.owner.caller_name,
                "context": described_context(self.using, held.context),
            }
            for held in self.last
        ]
        return f"hot {key}", to_json({"key": key, "rate": float(f"{self.rate:.3g}"), "holders": holders})


def hot_locks(recent: Sequence[Hold], since: float, now: float) -> list[HotLock]:
    """The hot locks between two monotonic times, from the last MAX_RECENT holds since then."""
    if recent:
        now = max(now, recent[-1].ended)  # holds that end after ``now`` was read are among them
    if len(recent) == MAX_RECENT:
        since = max(since, recent[0].since)  # the deque has dropped earlier holds
    by_name: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for held in recent:
        by_name[held.lock.using, held.lock.name].append(held)
    rates = Counter({lock: len(holds) / (now - since) for lock, holds in by_name.items()})
    return [
        HotLock(*lock, rate, _last_of_each(by_name[lock]))
        for lock, rate in rates.most_common(MAX_HOT)
        if rate >= LEAST_RATE
    ]


def _last_of_each(holds: list[Hold]) -> list[Hold]:
    """The last hold of each of the last owners."""
    latest: dict[object, Hold] = {}
    for held in reversed(holds):
        latest.setdefault(held.owner.serial, held)
    return list(latest.values())[:MAX_NAMED]


# --- the history of this process --------------------------------------------------------------------------------------

# For the pages and commands: the last hour by template, the losses and forced releases, and the last spans of single
# locks, for their timelines. Its size is limited.

MAX_LOCKS = 50
"""The number of locks that a process remembers. It first forgets locks without waiters."""
MAX_NAMED_WAITS = 10
"""The number of the last waits of a lock that are recorded with their owners."""
_LATEST = 10
"""The number of the last locks that are not forgotten in favour of earlier locks."""
_REMARKABLE = 0.5
"""The shortest hold that counts as remarkable, in seconds."""
COLLECT_EVERY = 5.0
_LEAST_WINDOW = 1.0

T = TypeVar("T")
Past = dict[str, deque[Span]]
"""The last holds, waits and forced releases of one lock."""


@dataclass(slots=True)
class HourSlot:
    """The counts of a group of locks in one slot, and its longest spans; ``start`` is in monotonic seconds."""

    start: float
    acquired: int = 0
    gave_up: int = 0
    longest: list[Span] = field(default_factory=list)


class Recorder:
    """The history of this process and its hot locks. Times are monotonic seconds.

    ``noted`` says that something was counted since the last look, ``urgent`` that it was a loss or a forced release.
    ``version`` rises when there is something new to write.
    """

    def __init__(self) -> None:
        self.noted = self.urgent = False
        self.version = 0
        self.hot: list[HotLock] = []
        self._again = False  # nobody notes that a hold or a wait ends
        self._hours: dict[Group, deque[HourSlot]] = {}
        self._events: deque[Span] = deque(maxlen=MAX_EVENTS)
        self._locks: dict[tuple[str, str], Past] = {}
        self._looked_at = self._look_due = -math.inf

    @property
    def aliases(self) -> set[str]:
        return {group[0] for group in self._hours} | {event.using for event in self._events}

    def fields(self, aliases: Collection[str], clock: float, now: float) -> dict[str, str]:
        """The history of the locks of some aliases, as fields of a hash."""
        pasts = {lock: past for lock, past in self._locks.items() if lock[0] in aliases}
        return {
            "work": to_json([_work(*each, clock, now) for each in self._hours.items() if each[0][0] in aliases]),
            "events": to_json([described(event, clock) for event in self._events if event.using in aliases]),
            **{
                lock_field(get_settings(using).key_prefix + name): _text(past, clock)
                for (using, name), past in pasts.items()
            },
        }

    # --- looking -----------------------------------------------------------------------------------------------------

    def round(self, now: float) -> float:
        """Take what is due; returns when to call this again."""
        if self.urgent:
            self.urgent = False
            self._take_events()
        if self._has_to_look and now >= self._look_due:
            self.look(now)
        return self._look_due if self._has_to_look else math.inf

    @property
    def _has_to_look(self) -> bool:
        return self.noted or self._again or bool(self.hot)

    def look(self, now: float) -> None:
        """Take everything that has happened since the last look."""
        self._again = self.noted or bool(HOLDS) or bool(WAITS)
        self.noted = False  # before the counters are read: what is counted meanwhile is noted for the next look
        self._take_events()
        recent, waits = _drained(STATISTICS.recent), _drained(STATISTICS.waits)
        window = now - self._looked_at
        # If the thread is new or has slept, the window says nothing about the rates.
        is_short = _LEAST_WINDOW <= window <= 2 * COLLECT_EVERY
        self.hot = hot_locks(recent, self._looked_at, now) if is_short else []
        self._looked_at, self._look_due = now, now + COLLECT_EVERY
        # The long ones are listed twice, unless too many short ones came after them.
        ended = {id(each): each for each in [*_drained(STATISTICS.long), *recent, *waits]}
        spans = sorted(map(_span_of, ended.values()), key=lambda span: span.at)
        self._count(spans, now)
        self._remember(spans)

    def _take_events(self) -> None:
        if events := _drained(STATISTICS.events):
            self.version += 1
            self._events.extend(events)
            self._remember([event for event in events if event.what == "freed"])  # a lost lock is known by its hold

    def _count(self, spans: Iterable[Span], now: float) -> None:
        by_group = defaultdict(list)
        for span in spans:
            by_group[span.group].append(span)
        start = now - now % SLOT
        for group, counters in snapshot(STATISTICS.groups.items()):
            slots = self._hours.setdefault(group, deque(maxlen=HOUR_SLOTS))
            acquired, gave_up, new = counters.acquired.take(), counters.gave_up.take(), by_group[group]
            if acquired or gave_up or new:
                self.version += 1
                if not slots or slots[-1].start < start:
                    slots.append(HourSlot(start))
                slot = slots[-1]
                slot.acquired += acquired
                slot.gave_up += gave_up
                slot.longest = _longest([*slot.longest, *new])
            elif not slots or slots[-1].start <= now - (HOUR_SLOTS + 1) * SLOT:
                del self._hours[group]
                STATISTICS.forget(group)

    def _remember(self, spans: Iterable[Span]) -> None:
        for span in spans:
            lock = span.using, span.name
            past = self._locks.pop(lock, None) or {what: deque(maxlen=number) for what, number in LAST.items()}
            past[span.what].append(span)
            self._locks[lock] = past  # as the last one
        while len(self._locks) > MAX_LOCKS:
            # Not the latest locks, although they are dull at first: their waiters are still to come.
            earlier = itertools.islice(self._locks.items(), len(self._locks) - _LATEST)
            del self._locks[next((lock for lock, past in earlier if _is_dull(past)), next(iter(self._locks)))]


def described(span: Span, clock: float, is_named: bool = True) -> dict[str, Any]:
    """A span for JSON, without its owner if it is not ``is_named``."""
    texts = {
        "name": span.name, "reason": span.failure, "owner": span.owner, "by": span.by, "whom": span.whom,
    }  # fmt: skip
    document: dict[str, Any] = {name: text[:MAX_VALUE] for name, text in texts.items() if text}
    document |= {"what": span.what, "using": span.using, "at": round(span.at + clock, 3)}
    document |= {"seconds": round(span.seconds, 6), "failed": span.failure is not None}
    if is_named:
        document |= {"place": span.place[:MAX_VALUE], "context": described_context(span.using, span.context)}
    return document


def _work(group: Group, slots: Iterable[HourSlot], clock: float, now: float) -> dict[str, Any]:
    using, template, prefix = group
    shown = [slot for slot in slots if slot.start > now - HOUR_SLOTS * SLOT]
    return {
        "using": using,
        "template": template[:MAX_VALUE],
        "prefix": prefix[:MAX_VALUE],
        "slots": [[round(slot.start + clock), slot.acquired, slot.gave_up] for slot in shown],
        "longest": [described(span, clock) for span in _longest([span for slot in shown for span in slot.longest])],
    }


def _text(past: Past, clock: float) -> str:
    # Earlier waits only count for the length of the queue; without names they take a tenth of the space.
    unnamed = len(past["wait"]) - MAX_NAMED_WAITS
    spans = [
        described(span, clock, what != "wait" or at >= unnamed) for what in past for at, span in enumerate(past[what])
    ]
    return to_json(spans)


def _is_dull(past: Past) -> bool:
    return not (past["wait"] or past["freed"] or any(hold.seconds >= _REMARKABLE for hold in past["hold"]))


def _longest(spans: Sequence[Span]) -> list[Span]:
    """The longest hold and the longest wait."""
    found = [[span for span in spans if span.what == what] for what in ("hold", "wait")]
    return [max(each, key=lambda span: span.seconds) for each in found if each]


def _span_of(ended: Hold | Span) -> Span:
    if isinstance(ended, Span):
        return ended
    lock, lasted = ended.lock, ended.ended - ended.since
    group = STATISTICS.of(lock).group
    return Span("hold", group, lock.name, ended.ended, lasted, ended.caller_name, ended.context, ended.lost)


def _drained(new: deque[T]) -> list[T]:
    """Empty a deque, to which other threads only add, and return its items."""
    return [new.popleft() for _ in range(len(new))]


def to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
