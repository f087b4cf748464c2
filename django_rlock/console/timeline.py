"""A lock's timeline: who held it when, how long others waited, what was lost or freed by force; and its picture.

The past is the memory of each process (``recorder``), the present is the lock's current state. As with reports, no
value from Redis is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from django_rlock._monitoring.documents import LAST
from django_rlock._redis.keys import lock_field
from django_rlock.console.history import ReportedSpan, plain, spans_in
from django_rlock.console.reading import asking
from django_rlock.locks.infos import LockInfo, Party
from django_rlock.locks.statistics import LONG_WAIT
from django_rlock.settings import get_settings

MAX_SHOWN = 10
"""The number of the last holds, of the last waits and of the last forced releases that are listed."""
MAX_SPANS = 500
"""The number of holds, and of waits, that are drawn."""


@dataclass(frozen=True)
class Timeline:
    """The last holds and waits of a lock, and its forced releases, the earliest first, at the time ``now`` of the
    server's clock."""

    now: float
    holds: Sequence[ReportedSpan]
    waits: Sequence[ReportedSpan]
    freed: Sequence[ReportedSpan]

    def __bool__(self) -> bool:
        return bool(self.holds or self.waits or self.freed)

    @property
    def listed(self) -> list[ReportedSpan]:
        """The entries that have ended, the latest first."""
        holds = [hold for hold in self.holds if not hold.is_now][-MAX_SHOWN:]
        # Waits without names are there for the queue's graph only.
        waits = [wait for wait in self.waits if not wait.is_now and wait.is_named][-MAX_SHOWN:]
        return sorted([*holds, *waits, *self.freed[-MAX_SHOWN:]], key=lambda span: -span.at)

    @property
    def longest_hold(self) -> float | None:
        return max((hold.seconds for hold in self.holds), default=None)

    @property
    def longest_wait(self) -> float | None:
        return max((wait.seconds for wait in self.waits), default=None)

    @property
    def gave_up(self) -> int:
        return sum(wait.failed for wait in self.waits)

    @property
    def lost(self) -> list[ReportedSpan]:
        return [hold for hold in self.holds if hold.failed]

    @cached_property
    def queue(self) -> list[tuple[float, float, int]]:
        """The lengths of the queue, where it is not empty: from when, until when, and how many waited."""
        # Attempts that found the lock free were in no queue.
        long = [wait for wait in self.waits if wait.is_now or wait.seconds >= LONG_WAIT]
        # At the same time, a waiter that leaves (-1) comes before one that joins.
        changes = sorted(change for wait in long for change in ((wait.start, 1), (wait.at, -1)))
        steps, waiting = [], 0
        for (at, change), (until, _) in pairwise(changes):
            waiting += change
            if waiting and until > at:
                steps.append((at, until, waiting))
        return steps

    @property
    def longest_queue(self) -> int:
        return max((waiting for _, _, waiting in self.queue), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without whole owner ids."""
        return {
            "longest_hold": self.longest_hold,
            "longest_wait": self.longest_wait,
            "longest_queue": self.longest_queue,
            "gave_up": self.gave_up,
            "lost": len(self.lost),
            "freed": len(self.freed),
            "last": [plain(span) for span in self.listed],
        }


def read_timeline(using: str, name: str, info: LockInfo | None) -> Timeline:
    """Return a lock's past and its present state. Raises LockUnavailableError if Redis does not answer."""
    field = lock_field(get_settings(using).key_prefix + name)
    with asking(name, using) as server:
        now, histories = server.read_histories(field)
    spans = [span for history in histories for span in spans_in(history, field, now)]
    # What still lasts is known from the lock itself: processes record only what has ended.
    if info:
        spans += [
            _present("hold", using, name, holder, now, holder.held_for) for holder in info.holders if holder.since
        ]
        spans += [_present("wait", using, name, waiter, now, waiter.waited) for waiter in info.waiters if waiter.since]
    spans.sort(key=lambda span: span.at)
    holds, waits, freed = ([span for span in spans if span.what == what][-MAX_SPANS:] for what in LAST)
    return Timeline(now, holds, waits, freed)


def _present(what: str, using: str, name: str, party: Party, now: float, seconds: float | None) -> ReportedSpan:
    known = {field.name: getattr(party, field.name) for field in fields(Party)}
    return ReportedSpan(**known, what=what, using=using, name=name, at=now, seconds=seconds or 0.0, is_now=True)


# --- the picture ------------------------------------------------------------------------------------------------------

WINDOWS = (10.0, 60.0, 300.0, 900.0, 3600.0, 6 * 3600.0, 86400.0)
"""The durations that a picture may show, in seconds."""
LANES = 4
"""Holds at the same time, such as those of readers, are drawn below each other in so many lanes."""
MAX_BARS = 100
"""The number of holds that are drawn: the last ones."""
LANE = 12
QUEUE_HEIGHT = 36
"""Heights, in pixels: of a lane, and of the longest queue."""
_TOP = 18
_GAP = 22
_FOOT = 20
_SLIMMEST = 0.4
"""The least width of a hold, in percent."""
_OVERLAP = 0.005
"""The share of the picture by which a hold may overlap the next one in a lane: two processes have measured them."""
_CHART_COLUMNS = 200
"""The number of columns of the queue's graph."""


class Bar(NamedTuple):
    """A hold on the picture."""

    x: float
    width: float
    y: int
    span: ReportedSpan


class ChartColumn(NamedTuple):
    """The largest number of waiters during a part of the picture."""

    x: float
    width: float
    y: float
    height: float
    waiting: int


class ChartMark(NamedTuple):
    """A loss or forced release on the picture."""

    x: float
    at: float
    what: str


class ChartTick(NamedTuple):
    """A moment on the picture; ``anchor`` is the side of its text that is at ``x``."""

    x: float
    at: float
    anchor: str


@dataclass(frozen=True)
class Chart:
    """A timeline's picture. Time goes from left to right, or from right to left like the text (``is_mirrored``)."""

    timeline: Timeline
    is_mirrored: bool = False

    @cached_property
    def window(self) -> float:
        """How many seconds it shows: all of the timeline, up to a day."""
        starts = [span.start for span in (*self.timeline.holds, *self.timeline.waits)]
        age = self.timeline.now - min([*starts, *(event.at for event in self.timeline.freed)], default=0.0)
        return next((window for window in WINDOWS if age <= window), WINDOWS[-1])

    @property
    def is_brief(self) -> bool:
        """Whether the seconds matter."""
        return self.window < 3600

    @cached_property
    def bars(self) -> list[Bar]:
        free_from = [float("-inf")] * LANES
        bars = []
        for span in sorted(self.timeline.holds[-MAX_BARS:], key=lambda hold: hold.start):
            # Without a free lane, bars overlap in the last one.
            lane = next((lane for lane, free in enumerate(free_from) if span.start >= free), LANES - 1)
            free_from[lane] = span.at - _OVERLAP * self.window
            x, width = self._extent(span.start, span.at, _SLIMMEST)
            bars.append(Bar(x, width, _TOP + lane * (LANE + 2), span))
        return bars

    @cached_property
    def columns(self) -> list[ChartColumn]:
        longest = self.timeline.longest_queue
        columns, start = [], 0
        for waiting, same in groupby(self._lengths()):
            until = start + len(list(same))
            if waiting:
                height = round(QUEUE_HEIGHT * waiting / longest, 1)
                x, width = self._positioned(100 * start / _CHART_COLUMNS, 100 * until / _CHART_COLUMNS)
                columns.append(ChartColumn(x, width, self.queue_base - height, height, waiting))
            start = until
        return columns

    def _lengths(self) -> list[int]:
        lengths = [0] * _CHART_COLUMNS
        for start, until, waiting in self.timeline.queue:
            first, last = (min(int(_CHART_COLUMNS * self._at(at) / 100), _CHART_COLUMNS - 1) for at in (start, until))
            # A column shows its longest queue, so that a short one is not lost.
            for column in range(first, last + 1):
                lengths[column] = max(lengths[column], waiting)
        return lengths

    @property
    def marks(self) -> list[ChartMark]:
        found = [(hold.at, "lost") for hold in self.timeline.lost] + [
            (each.at, "freed") for each in self.timeline.freed
        ]
        return [ChartMark(self._positioned(x := self._at(at), x)[0], at, what) for at, what in found[-MAX_BARS:]]

    @property
    def ticks(self) -> list[ChartTick]:
        """The beginning, the middle and the end."""
        anchors = ((0, "start"), (50, "middle"), (100, "end"))
        start = self.timeline.now - self.window
        return [ChartTick(self._positioned(x, x)[0], start + self.window * x / 100, anchor) for x, anchor in anchors]

    @property
    def text_x(self) -> int:
        """Where texts begin."""
        return 100 if self.is_mirrored else 0

    @property
    def queue_top(self) -> int:
        """Where the text above the queue is."""
        return max((bar.y for bar in self.bars), default=_TOP) + LANE + _GAP - 6

    @property
    def queue_base(self) -> int:
        """Below the queue's graph, which is left out if nobody waited."""
        return self.queue_top + 6 + QUEUE_HEIGHT if self.timeline.queue else self.queue_top - _GAP + 8

    @property
    def height(self) -> int:
        return self.queue_base + _FOOT

    def _at(self, moment: float) -> float:
        """The position of a moment, in percent from the beginning."""
        passed = self.window - (self.timeline.now - moment)
        return min(max(100 * passed / self.window, 0.0), 100.0)

    def _extent(self, start: float, until: float, least: float) -> tuple[float, float]:
        first, last = self._at(start), self._at(until)
        first = min(first, 100 - least)
        return self._positioned(first, max(last, first + least))

    def _positioned(self, first: float, last: float) -> tuple[float, float]:
        """The left side and the width of a bar from one position to another."""
        left = 100 - last if self.is_mirrored else first
        return round(left, 2), round(last - first, 2)
