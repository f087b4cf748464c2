"""The last holds and waits of each lock in this process, for the timelines in the admin.

The reporter's thread takes them from ``locks.statistics``, and keeps a few of them for a few locks. They are one hash
on each server, with a field for each lock, which outlives the process for a day.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django_rlock._monitoring.parsing import KEEP, MAX_HOLDS, MAX_WAITS
from django_rlock._monitoring.recorded import (
    MAX_TEXT,
    Held,
    describe_event,
    describe_process,
    described_context,
    names_of,
)
from django_rlock._redis.keys import recent_field, recent_key
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import Command
from django_rlock.locks.records import Hold
from django_rlock.locks.statistics import Event, Past
from django_rlock.settings import get_settings

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
        self.holds: deque[Past] = deque(maxlen=MAX_HOLDS)
        self.waits: deque[Past] = deque(maxlen=MAX_WAITS)
        self.freed: deque[Event] = deque(maxlen=MAX_FREED)
        self.touched = -math.inf

    @property
    def is_dull(self) -> bool:
        return not (self.waits or self.freed or any(hold.seconds >= _LONG for hold in self.holds))

    def described(self, using: str, clock: float) -> str:
        first_named = len(self.waits) - MAX_NAMED_WAITS
        document = {
            "holds": [_described(hold, using, clock) for hold in self.holds],
            "waits": [_described(wait, using, clock, at >= first_named) for at, wait in enumerate(self.waits)],
            "freed": [describe_event(event, clock) for event in self.freed],
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
        self._last_event: Event | None = None

    def take(self, held: Iterable[Held], waits: Iterable[Past], now: float) -> None:
        """Remember holds and waits that have ended."""
        for each in held:
            for lock in names_of(each):
                self._touch(lock, now).holds.append(_past(each))
        for wait in waits:
            self._touch((wait.key[0], wait.key[1]), now).waits.append(wait)
        self._forget(now)

    def take_events(self, events: Sequence[Event], now: float) -> None:
        """Remember the new forced releases among the last events; a lost lock is known by its hold."""
        new = [*itertools.takewhile(lambda event: event is not self._last_event, reversed(events))]
        for event in reversed(new):
            self._last_event = event
            if event.what == "freed":
                self._touch((event.lock.using, event.lock.name), now).freed.append(event)
        self._forget(now)

    def commands(self, cache: str, clock: float) -> list[Command]:
        """The commands for a server, after which the caller calls ``sent``, or ``failed``, after which everything is
        sent again."""
        unsent = self._unsent.get(cache)
        here = {lock: recent for lock, recent in self._locks.items() if cache in self._homes_of(lock[0])}
        wanted = [lock for lock in here if unsent is None or lock in unsent]
        gone = () if unsent is None else [_field(lock) for lock in unsent - here.keys()]
        if not (wanted or gone):
            return []
        key = recent_key(client_id())
        mapping = describe_process(clock) | {_field(lock): here[lock].described(lock[0], clock) for lock in wanted}
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
        earlier = itertools.islice(self._locks.items(), excess + MAX_LOCKS - _LATEST)
        return next((lock for lock, recent in earlier if recent.is_dull), oldest)


def _field(lock: LockId) -> str:
    using, name = lock
    return recent_field(get_settings(using).key_prefix + name)


def _past(held: Held) -> Past:
    if isinstance(held, Hold):
        lasted = held.ended - held.since
        return Past(lasted, held.ended, held.key, held.place, held.context, held.lost)
    key = held.group.using, held.group.name, "", held.owner.serial
    return Past(held.ended - held.since, held.ended, key, held.owner.place, held.context)


def _described(past: Past, using: str, clock: float, is_named: bool = True) -> dict[str, Any]:
    document: dict[str, Any] = {"at": round(past.ended + clock, 3), "seconds": round(past.seconds, 6)}
    if past.failure is not None:
        document["failure"] = past.failure[:MAX_TEXT]
    if is_named:
        document |= {"place": past.place[:MAX_TEXT], "context": described_context(using, past.context)}
    return document
