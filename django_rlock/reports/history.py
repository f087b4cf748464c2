"""The history of this process, for the admin: its last hour by template, locks that it lost or freed by force.

It is one text on each server, written every 15 seconds while something happens, and soon after a loss. It outlives its
process. Its content comes from ``locks.tallies``, and its size is limited.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_rlock.callbacks import log
from django_rlock.clock import monotonic
from django_rlock.connections import SERVER_ERRORS
from django_rlock.drivers.commands import Commands
from django_rlock.drivers.identity import client_id
from django_rlock.drivers.room import commands_to
from django_rlock.locks.statistics import STATISTICS, Event, Group, LockStatistics, Past
from django_rlock.reports.about import MAX_TEXT, describe_process, described_context
from django_rlock.reports.hot import HotLock, hot_locks

T = TypeVar("T")

logger = logging.getLogger("django_rlock.reports")

HISTORIES = "rlock_histories"
"""Sorted set of the processes that have a history: client id → server time when it was written, in seconds."""
SLOT = 300.0
"""The last hour is counted in slots of so many seconds."""
SLOTS = 12
LOOK_EVERY = 5.0
WRITE_EVERY = 15.0
KEEP = 86400.0
"""How long a history is kept after it was last written, in seconds."""
_EVENT_PAUSE = 1.0
_RETRY_PAUSE = 10.0
_LEAST_WINDOW = 1.0


def history_key(client: str) -> str:
    """The key of a process's history, a string."""
    return f"rlock_history:{client}"


@dataclass(slots=True)
class Slot:
    """What happened to the locks of a group in one slot; ``start`` is in monotonic seconds."""

    start: float
    acquired: int = 0
    gave_up: int = 0
    hold: Past | None = None
    wait: Past | None = None


class Hour:
    """The last hour of one group."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque(maxlen=SLOTS)

    def take(self, tally: LockStatistics, now: float) -> bool:
        """Take what was counted since the last time; returns whether that was anything."""
        acquired, gave_up = tally.acquired.take(), tally.gave_up.take()
        if not (acquired or gave_up or tally.waits):
            return False
        slot = self._slot(tally, now)
        slot.acquired += acquired
        slot.gave_up += gave_up
        slot.hold = _longest([slot.hold, *_drained(tally.holds)])
        slot.wait = _longest([slot.wait, *_drained(tally.waits)])
        return True

    def _slot(self, tally: LockStatistics, now: float) -> Slot:
        start = now - now % SLOT
        if not self._slots or self._slots[-1].start < start:
            self._slots.append(Slot(start))
            tally.longest_hold = tally.longest_wait = 0.0
        return self._slots[-1]

    def is_over(self, now: float) -> bool:
        """Whether nothing has happened for an hour."""
        return not self._slots or self._slots[-1].start <= now - (SLOTS + 1) * SLOT

    def described(self, group: Group, clock: float, now: float) -> dict[str, Any]:
        using, template, prefix = group
        slots = [slot for slot in self._slots if slot.start > now - SLOTS * SLOT]
        return {
            "using": using,
            "template": template[:MAX_TEXT],
            "prefix": prefix[:MAX_TEXT],
            "slots": [[round(slot.start + clock), slot.acquired, slot.gave_up] for slot in slots],
            "hold": _described(_longest(slot.hold for slot in slots), using, clock),
            "wait": _described(_longest(slot.wait for slot in slots), using, clock),
        }


class Recorder:
    """Keeps the history of this process and its hot locks, and writes the history to all servers that it concerns.

    ``homes_of`` returns the servers of an alias: CACHES alias or URL, and the alias through which to reach it. Times
    are monotonic seconds. ``noted`` is set when something was counted since the last look, ``urgent`` when it is a loss
    or a forced release.
    """

    def __init__(self, homes_of: Callable[[str], Mapping[str, str]]) -> None:
        self.noted = self.urgent = False
        self.hot: list[HotLock] = []
        self._homes_of = homes_of
        self._hours: dict[Group, Hour] = {}
        self._servers: dict[str, Commands] = {}
        self._unsent = False
        self._looked_at = self._look_due = self._sent_at = -math.inf
        self._write_from = math.inf

    def round(self, now: float) -> float:
        """Look and write if that is due; returns when to call this again."""
        if self.urgent:
            self.urgent = False
            self._plan_to_write(max(now, self._sent_at + _EVENT_PAUSE))
        if (self.noted or self.hot) and now >= self._look_due:
            self._look(now)
        if self._unsent and now >= self._write_from:
            self._write(now)
        look_due = self._look_due if self.noted or self.hot else math.inf
        return min(look_due, self._write_from if self._unsent else math.inf)

    def leave(self, now: float) -> None:
        """Write what has not been written, at the process's end."""
        self._look(now)
        if self._unsent or self.urgent:
            self._write(now)

    def _plan_to_write(self, at: float) -> None:
        self._write_from = min(self._write_from, at) if self._unsent else at
        self._unsent = True

    def _look(self, now: float) -> None:
        self.noted = False
        has_news = self._take(now)
        window = now - self._looked_at
        is_short = _LEAST_WINDOW <= window <= 2 * LOOK_EVERY  # else it has just begun, or slept meanwhile
        recent = _drained(STATISTICS.recent)
        self.hot = hot_locks(recent, self._looked_at, now) if is_short else []
        self._looked_at, self._look_due = now, now + LOOK_EVERY
        if has_news and not self._unsent:
            self._plan_to_write(now + WRITE_EVERY)

    def _take(self, now: float) -> bool:
        has_news = False
        for group, tally in STATISTICS.groups.copy().items():
            hour = self._hours.setdefault(group, Hour())
            has_news = hour.take(tally, now) or has_news
            if hour.is_over(now):
                del self._hours[group]
                STATISTICS.forget(group)
        return has_news

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, now: float) -> None:
        self._unsent = False
        self._sent_at = now
        events = STATISTICS.events.copy()
        aliases = {group[0] for group in self._hours} | {event.lock.using for event in events}
        for cache, using in {home for alias in aliases for home in self._homes_of(alias).items()}:
            try:
                self._send(cache, using, now, events)
            except ImproperlyConfigured:
                pass  # a test has removed its alias
            except SERVER_ERRORS as error:
                log(logger, logging.INFO, "The history was not written; it is retried later: %s", error)
                self._plan_to_write(now + _RETRY_PAUSE)

    def _send(self, cache: str, using: str, now: float, events: deque[Event]) -> None:
        server = self._servers.get(cache) or self._servers.setdefault(cache, commands_to(using, "reports"))
        clock = server_clock(server, HISTORIES)
        at = now + clock
        document = describe_process(clock) | {
            "work": [
                hour.described(group, clock, now) for group, hour in self._hours.items() if self._is_at(group[0], cache)
            ],
            "events": [_event(event, clock) for event in events if self._is_at(event.lock.using, cache)],
        }
        key, text = history_key(client_id()), json.dumps(document, separators=(",", ":"))
        server.run(
            [
                (key, ("SET", key, text, "PX", round(KEEP * 1000))),
                (HISTORIES, ("ZADD", HISTORIES, repr(at), client_id())),
                (HISTORIES, ("ZREMRANGEBYSCORE", HISTORIES, "-inf", repr(at - KEEP))),
            ]
        )

    def _is_at(self, using: str, cache: str) -> bool:
        return cache in self._homes_of(using)


def server_clock(server: Commands, key: str) -> float:
    """The time of the server that has a key, minus the monotonic time."""
    before = monotonic()
    ((seconds, micros),) = server.run([(key, ("TIME",))])
    return int(seconds) + int(micros) / 1e6 - (before + monotonic()) / 2


def _drained(new: deque[T]) -> list[T]:
    """Take out what a deque has; other threads only add to it."""
    return [new.popleft() for _ in range(len(new))]


def _longest(found: Iterable[Past | None]) -> Past | None:
    return max(filter(None, found), key=lambda past: past.seconds, default=None)


def _described(past: Past | None, using: str, clock: float) -> dict[str, Any] | None:
    return past and {
        "name": past.key[1][:MAX_TEXT],
        "seconds": round(past.seconds, 6),
        "at": round(past.ended + clock, 3),
        "place": past.place,
        "context": described_context(using, past.context),
    }


def _event(event: Event, clock: float) -> dict[str, Any]:
    return {
        "what": event.what,
        "at": round(event.at + clock, 3),
        "using": event.lock.using,
        "name": event.lock.name[:MAX_TEXT],
        "owner": event.owner,
        "by": event.by[:MAX_TEXT],
        "reason": event.reason[:MAX_TEXT],
        "whom": event.whom[:MAX_TEXT],
        "place": event.place,
        "context": described_context(event.lock.using, event.context),
    }
