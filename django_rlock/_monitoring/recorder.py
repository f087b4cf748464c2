"""What a process records besides its holds and waits: its hot locks, the last events of single locks, its history."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.threads import snapshot
from django_rlock._monitoring.documents import (
    HOUR_SLOTS,
    KEEP,
    MAX_HOLDS,
    MAX_NAMED,
    MAX_VALUE,
    MAX_WAITS,
    SLOT,
    describe_process,
    described_context,
)
from django_rlock._redis.keys import HISTORIES, history_key, recent_field, recent_key
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import Command, Commands, commands_to
from django_rlock._transport.servers import SERVER_ERRORS
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.kinds import Group
from django_rlock.locks.records import Hold
from django_rlock.locks.statistics import MAX_RECENT, STATISTICS, LockStatistics, Span
from django_rlock.settings import get_settings

# --- hot locks --------------------------------------------------------------------------------------------------------

# Locks that this process acquires many times a second. Their holds are too short for a report, so their rate is
# reported.

LEAST_RATE = 1.0
"""The number of acquisitions per second from which a lock is hot."""
MAX_HOT = 10
"""The number of hot locks that a process reports: those with the highest rates."""


class HotLock:
    """A lock and its rate per second; ``recent`` lists holds of different owners, the latest first."""

    def __init__(self, using: str, name: str, rate: float, recent: Iterable[Hold]) -> None:
        self.using = using
        self._name = name
        self._rate = rate
        self._recent = list(recent)
        self._clock: float | None = None
        self._pair = "", ""

    def field(self, clock: float) -> tuple[str, str]:
        """The report's field for the lock, and its JSON, which is the same object while ``clock`` is the same."""
        if clock != self._clock:
            self._clock, self._pair = clock, self._made(clock)
        return self._pair

    def _made(self, clock: float) -> tuple[str, str]:
        key = get_settings(self.using).key_prefix + self._name
        holders = [
            {
                "by": held.owner.serial,
                "at": round(held.since + clock, 3),
                "place": held.owner.caller_name,
                "context": described_context(self.using, held.context),
            }
            for held in self._recent
        ]
        document = {"key": key, "rate": float(f"{self._rate:.3g}"), "holders": holders}
        return f"hot {key}", json.dumps(document, separators=(",", ":"))


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


# --- the last events of single locks ----------------------------------------------------------------------------------

# The last holds and waits of single locks, for the timelines in the admin: one hash on each server, with a field for
# each lock, which outlives the process for a day.

MAX_LOCKS = 50
"""The number of locks that a process remembers. It first forgets locks without waiters."""
MAX_NAMED_WAITS = 10
"""The number of the last waits of a lock that are recorded with their owners."""
MAX_FREED = 5
"""The number of forced releases of a lock that a process remembers."""
_LATEST = 10
"""The number of the last locks that are not forgotten in favour of earlier locks."""
_LONG = 0.5
"""The shortest hold that counts as remarkable, in seconds."""

LockId = tuple[str, str]
"""Alias and name."""


class Recent:
    """The events of one lock in this process, the latest last."""

    __slots__ = ("freed", "holds", "touched", "waits")

    def __init__(self) -> None:
        self.holds: deque[Span] = deque(maxlen=MAX_HOLDS)
        self.waits: deque[Span] = deque(maxlen=MAX_WAITS)
        self.freed: deque[Span] = deque(maxlen=MAX_FREED)
        self.touched = -math.inf

    def add(self, span: Span) -> None:
        {"hold": self.holds, "wait": self.waits, "freed": self.freed}[span.what].append(span)

    @property
    def is_dull(self) -> bool:
        return not (self.waits or self.freed or any(hold.seconds >= _LONG for hold in self.holds))

    def described(self, clock: float) -> str:
        # Earlier waits only count for the length of the queue; without names they take a tenth of the space.
        first_named = len(self.waits) - MAX_NAMED_WAITS
        document = {
            "holds": [described(hold, clock) for hold in self.holds],
            "waits": [described(wait, clock, at >= first_named) for at, wait in enumerate(self.waits)],
            "freed": [described(each, clock) for each in self.freed],
        }
        return json.dumps(document, separators=(",", ":"))


class Recents:
    """The locks that this process remembers, and the changes that its servers have not received yet.

    ``homes_of`` returns the servers of an alias, as for ``Recorder``. For the reporter's thread only.
    """

    def __init__(self, homes_of: Callable[[str], Mapping[str, str]]) -> None:
        self._homes_of = homes_of
        self._locks: dict[LockId, Recent] = {}
        self._unsent: dict[str, set[LockId]] = {}  # a server without an entry gets everything
        self._last_event: Span | None = None

    def take(self, spans: Iterable[Span], now: float) -> None:
        """Remember spans."""
        for span in spans:
            self._touch((span.using, span.name), now).add(span)
        self._forget(now)

    def take_events(self, events: Sequence[Span], now: float) -> None:
        """Remember the new forced releases among the last events; a lost lock is known by its hold."""
        new = [*itertools.takewhile(lambda event: event is not self._last_event, reversed(events))][::-1]
        self._last_event = events[-1] if events else None
        self.take([event for event in new if event.what == "freed"], now)

    def commands(self, cache: str, clock: float) -> list[Command]:
        """The commands for a server, after which the caller calls ``sent``, or ``failed``, after which everything is
        sent again."""
        unsent = self._unsent.get(cache)
        here = {lock: recent for lock, recent in self._locks.items() if cache in self._homes_of(lock[0])}
        wanted = [lock for lock in here if unsent is None or lock in unsent]
        gone = () if unsent is None else [_field_of(lock) for lock in unsent - here.keys()]
        if not (wanted or gone):
            return []
        key = recent_key(client_id())
        mapping = describe_process(clock) | {_field_of(lock): here[lock].described(clock) for lock in wanted}
        commands: list[tuple[str, ...]] = [("HSET", key, *itertools.chain(*mapping.items()))]
        if unsent is None:
            commands.insert(0, ("UNLINK", key))
        if gone:
            commands.append(("HDEL", key, *gone))
        return [(key, words) for words in (*commands, ("PEXPIRE", key, str(round(KEEP * 1000))))]

    def sent(self, cache: str) -> None:
        self._unsent[cache] = set()

    def failed(self, cache: str) -> None:
        self._unsent.pop(cache, None)

    def _touch(self, lock: LockId, now: float) -> Recent:
        recent = self._locks.pop(lock) if lock in self._locks else Recent()
        self._locks[lock] = recent  # as the last one
        recent.touched = now
        self._note(lock)
        return recent

    def _note(self, lock: LockId) -> None:
        for cache in self._homes_of(lock[0]):
            if cache in self._unsent:
                self._unsent[cache].add(lock)

    def _forget(self, now: float) -> None:
        while self._locks and (lock := self._superfluous(now)):
            del self._locks[lock]
            self._note(lock)

    def _superfluous(self, now: float) -> LockId | None:
        oldest = next(iter(self._locks))
        if self._locks[oldest].touched < now - KEEP:
            return oldest
        if (excess := len(self._locks) - MAX_LOCKS) <= 0:
            return None
        # Not the latest locks, although they are dull at first: their waiters are still to come.
        earlier = itertools.islice(self._locks.items(), excess + MAX_LOCKS - _LATEST)
        return next((lock for lock, recent in earlier if recent.is_dull), oldest)


def _field_of(lock: LockId) -> str:
    using, name = lock
    return recent_field(get_settings(using).key_prefix + name)


def _span_of(held: Hold) -> Span:
    lock, lasted = held.lock, held.ended - held.since
    return Span("hold", lock.using, lock.name, held.ended, lasted, held.caller_name, held.context, held.lost)


def described(span: Span, clock: float, is_named: bool = True) -> dict[str, Any]:
    """A span for JSON, without its owner if it is not ``is_named``. Holds and waits are written below their lock's
    name."""
    document: dict[str, Any] = {"at": round(span.at + clock, 3)}
    if span.what in ("lost", "freed"):
        texts = {"reason": span.failure or "", "by": span.by, "whom": span.whom, "name": span.name}
        document |= {name: text[:MAX_VALUE] for name, text in texts.items()}
        document |= {"what": span.what, "using": span.using, "owner": span.owner}
    else:
        document["seconds"] = round(span.seconds, 6)
        if span.failure is not None:
            document["failure"] = span.failure[:MAX_VALUE]
    if is_named:
        document |= {"place": span.place[:MAX_VALUE], "context": described_context(span.using, span.context)}
    return document


# --- the history of this process --------------------------------------------------------------------------------------

# The history of this process, for the admin: its last hour by template, and the locks that it lost or force-released.
#
# It is one text on each server, written every five seconds while something happens, and soon after a loss. It outlives
# its process. Its content comes from ``locks.statistics``, and its size is limited.

T = TypeVar("T")

logger = logging.getLogger("django_rlock.reports")

COLLECT_EVERY = 5.0
WRITE_EVERY = 5.0
_EVENT_PAUSE = 1.0
_RETRY_PAUSE = 10.0
_LEAST_WINDOW = 1.0


@dataclass(slots=True)
class HourSlot:
    """The counts of a group of locks in one slot; ``start`` is in monotonic seconds."""

    start: float
    acquired: int = 0
    gave_up: int = 0
    hold: Span | None = None
    wait: Span | None = None


class Hour:
    """The last hour of one group."""

    def __init__(self) -> None:
        self._slots: deque[HourSlot] = deque(maxlen=HOUR_SLOTS)

    def take(self, counters: LockStatistics, now: float) -> bool:
        """Take the counts since the last call; returns whether there were any."""
        acquired, gave_up = counters.acquired.take(), counters.gave_up.take()
        if not (acquired or gave_up or counters.waits):
            return False
        slot = self._slot(counters, now)
        slot.acquired += acquired
        slot.gave_up += gave_up
        slot.hold = _longest([slot.hold, *_drained(counters.holds)])
        slot.wait = _longest([slot.wait, *_drained(counters.waits)])
        return True

    def _slot(self, counters: LockStatistics, now: float) -> HourSlot:
        start = now - now % SLOT
        if not self._slots or self._slots[-1].start < start:
            self._slots.append(HourSlot(start))
            # Callers record only holds and waits that are longer than these.
            counters.longest_hold = counters.longest_wait = 0.0
        return self._slots[-1]

    def is_over(self, now: float) -> bool:
        """Whether nothing has happened for an hour."""
        return not self._slots or self._slots[-1].start <= now - (HOUR_SLOTS + 1) * SLOT

    def described(self, group: Group, clock: float, now: float) -> dict[str, Any]:
        using, template, prefix = group
        slots = [slot for slot in self._slots if slot.start > now - HOUR_SLOTS * SLOT]
        return {
            "using": using,
            "template": template[:MAX_VALUE],
            "prefix": prefix[:MAX_VALUE],
            "slots": [[round(slot.start + clock), slot.acquired, slot.gave_up] for slot in slots],
            "hold": _named(_longest(slot.hold for slot in slots), clock),
            "wait": _named(_longest(slot.wait for slot in slots), clock),
        }


class Recorder:
    """Collects the history of this process and its hot locks. Writes the history, and the ``recents`` of single locks,
    to the servers of these locks.

    ``homes_of`` returns the servers of an alias: CACHES alias or URL, and the alias through which to reach it. Times
    are monotonic seconds. ``noted`` says that something was counted since the last look, ``urgent`` that it was a loss
    or a forced release.
    """

    def __init__(self, homes_of: Callable[[str], Mapping[str, str]], recents: Recents) -> None:
        self.noted = self.urgent = False
        self.hot: list[HotLock] = []
        self._homes_of = homes_of
        self._recents = recents
        self._again = False  # nobody notes that a hold or a wait ends
        self._hours: dict[Group, Hour] = {}
        self._servers: dict[str, Commands] = {}
        self._looked_at = self._look_due = self._sent_at = -math.inf
        self._write_from = math.inf  # if nothing is to be written

    def round(self, now: float) -> float:
        """Collect and write what is due; returns when to call this again."""
        if self.urgent:
            self.urgent = False
            self._plan_to_write(max(now, self._sent_at + _EVENT_PAUSE))
        if self._has_to_look and now >= self._look_due:
            self._look(now)
        if now >= self._write_from:
            self._write(now)
        return min(self._look_due if self._has_to_look else math.inf, self._write_from)

    @property
    def _has_to_look(self) -> bool:
        return self.noted or self._again or bool(self.hot)

    def leave(self, now: float) -> None:
        """Write the rest at the end of the process."""
        self._look(now)
        if self._write_from < math.inf or self.urgent:
            self._write(now)

    def _plan_to_write(self, at: float) -> None:
        self._write_from = min(self._write_from, at)

    def _look(self, now: float) -> None:
        self._again = self.noted or bool(HOLDS) or bool(WAITS)
        self.noted = False  # before the counters are read: what is counted meanwhile is noted for the next look
        has_news = self._take(now)
        window = now - self._looked_at
        # If the thread is new or has slept, the window says nothing about the rates.
        is_short = _LEAST_WINDOW <= window <= 2 * COLLECT_EVERY
        recent = _drained(STATISTICS.recent)
        self.hot = hot_locks(recent, self._looked_at, now) if is_short else []
        self._looked_at, self._look_due = now, now + COLLECT_EVERY
        self._recents.take([*map(_span_of, recent), *_drained(STATISTICS.waits)], now)
        if has_news:
            self._plan_to_write(max(now, self._sent_at + WRITE_EVERY))

    def _take(self, now: float) -> bool:
        has_news = False
        for group, counters in snapshot(STATISTICS.groups.items()):
            hour = self._hours.setdefault(group, Hour())
            has_news = hour.take(counters, now) or has_news
            if hour.is_over(now):
                del self._hours[group]
                STATISTICS.forget(group)
        return has_news

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, now: float) -> None:
        self._write_from = math.inf
        self._sent_at = now
        events = snapshot(STATISTICS.events)
        self._recents.take_events(events, now)
        aliases = {group[0] for group in self._hours} | {event.using for event in events}
        for cache, using in {home for alias in aliases for home in self._homes_of(alias).items()}:
            try:
                self._send(cache, using, now, events)
            except ImproperlyConfigured:
                pass  # a test has removed its alias
            except SERVER_ERRORS as error:
                self._recents.failed(cache)
                log(logger, logging.INFO, "The history was not written; it is retried later: %s", error)
                self._plan_to_write(now + _RETRY_PAUSE)

    def _send(self, cache: str, using: str, now: float, events: Sequence[Span]) -> None:
        server = self._servers.get(cache) or self._servers.setdefault(cache, commands_to(using, "reports"))
        clock = server_clock(server, HISTORIES)
        at = now + clock
        document = describe_process(clock) | {
            "work": [
                hour.described(group, clock, now) for group, hour in self._hours.items() if self._is_at(group[0], cache)
            ],
            "events": [described(event, clock) for event in events if self._is_at(event.using, cache)],
        }
        key, text = history_key(client_id()), json.dumps(document, separators=(",", ":"))
        server.run(
            [
                (key, ("SET", key, text, "PX", round(KEEP * 1000))),
                (HISTORIES, ("ZADD", HISTORIES, repr(at), client_id())),
                (HISTORIES, ("ZREMRANGEBYSCORE", HISTORIES, "-inf", repr(at - KEEP))),
                *self._recents.commands(cache, clock),
            ]
        )
        self._recents.sent(cache)

    def _is_at(self, using: str, cache: str) -> bool:
        return cache in self._homes_of(using)


def server_clock(server: Commands, key: str) -> float:
    """The time of the server that has a key, minus the monotonic time."""
    before = monotonic()
    ((seconds, micros),) = server.run([(key, ("TIME",))])
    return int(seconds) + int(micros) / 1e6 - (before + monotonic()) / 2


def _drained(new: deque[T]) -> list[T]:
    """Empty a deque, to which other threads only add, and return its items."""
    return [new.popleft() for _ in range(len(new))]


def _longest(found: Iterable[Span | None]) -> Span | None:
    return max(filter(None, found), key=lambda span: span.seconds, default=None)


def _named(span: Span | None, clock: float) -> dict[str, Any] | None:
    """The description of a hold or wait of one lock of a group."""
    return span and {"name": span.name[:MAX_VALUE], **described(span, clock)}
