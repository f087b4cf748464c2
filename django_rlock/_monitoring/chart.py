"""A lock's timeline as a picture: where on it to draw what, in percent of its width and pixels of its height.

The picture has no size of its own, so it fits a phone without a script, and its texts keep their size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from django_rlock._monitoring.timeline import Span, Timeline

WINDOWS = (10.0, 60.0, 300.0, 900.0, 3600.0, 6 * 3600.0, 86400.0)
"""The durations that a picture may show, in seconds."""
LANES = 4
"""Holds at the same time, such as those of readers, are drawn below each other in so many lanes."""
MAX_BARS = 100
"""How many holds are drawn, the last ones."""
LANE = 12
QUEUE = 36
"""Heights, in pixels: of a lane, and of the longest queue."""
_TOP = 18
_GAP = 22
_FOOT = 20
_SLIMMEST = 0.4
"""The least width of a hold, in percent."""
_OVERLAP = 0.005
"""By which part of the picture one hold may seem to begin before another one ends, which the clocks of two processes
measured."""
_COLUMNS = 200
"""Of how many columns the queue consists."""


class Bar(NamedTuple):
    """A hold on the picture."""

    x: float
    width: float
    y: int
    span: Span


class Column(NamedTuple):
    """How many waited, at most, during a part of the picture."""

    x: float
    width: float
    y: float
    height: float
    waiting: int


class Mark(NamedTuple):
    """A loss or forced release on the picture."""

    x: float
    at: float
    what: str


class Tick(NamedTuple):
    """A moment on the picture; ``anchor`` is the side of its text that is at ``x``."""

    x: float
    at: float
    anchor: str


@dataclass(frozen=True)
class Chart:
    """A timeline's picture. Time goes from left to right, or the other way where text does (``is_mirrored``)."""

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
            lane = next((lane for lane, free in enumerate(free_from) if span.start >= free), LANES - 1)
            free_from[lane] = span.at - _OVERLAP * self.window
            x, width = self._extent(span.start, span.at, _SLIMMEST)
            bars.append(Bar(x, width, _TOP + lane * (LANE + 2), span))
        return bars

    @cached_property
    def columns(self) -> list[Column]:
        longest = self.timeline.longest_queue
        columns, start = [], 0
        for waiting, same in groupby(self._lengths()):
            until = start + len(list(same))
            if waiting:
                height = round(QUEUE * waiting / longest, 1)
                x, width = self._placed(100 * start / _COLUMNS, 100 * until / _COLUMNS)
                columns.append(Column(x, width, self.queue_base - height, height, waiting))
            start = until
        return columns

    def _lengths(self) -> list[int]:
        lengths = [0] * _COLUMNS
        for start, until, waiting in self.timeline.queue:
            first, last = (min(int(_COLUMNS * self._at(at) / 100), _COLUMNS - 1) for at in (start, until))
            for column in range(first, last + 1):
                lengths[column] = max(lengths[column], waiting)
        return lengths

    @property
    def marks(self) -> list[Mark]:
        found = [(hold.at, "lost") for hold in self.timeline.lost] + [
            (each.at, "freed") for each in self.timeline.freed
        ]
        return [Mark(self._placed(x := self._at(at), x)[0], at, what) for at, what in found[-MAX_BARS:]]

    @property
    def ticks(self) -> list[Tick]:
        """The beginning, the middle and the end."""
        places = ((0, "start"), (50, "middle"), (100, "end"))
        start = self.timeline.now - self.window
        return [Tick(self._placed(x, x)[0], start + self.window * x / 100, anchor) for x, anchor in places]

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
        """Below the queue, which takes no room where nobody waited."""
        return self.queue_top + 6 + QUEUE if self.timeline.queue else self.queue_top - _GAP + 8

    @property
    def height(self) -> int:
        return self.queue_base + _FOOT

    def _at(self, moment: float) -> float:
        """The place of a moment, in percent from the beginning."""
        passed = self.window - (self.timeline.now - moment)
        return min(max(100 * passed / self.window, 0.0), 100.0)

    def _extent(self, start: float, until: float, least: float) -> tuple[float, float]:
        first, last = self._at(start), self._at(until)
        first = min(first, 100 - least)
        return self._placed(first, max(last, first + least))

    def _placed(self, first: float, last: float) -> tuple[float, float]:
        """The left side and the width of what lasts from one place to another."""
        left = 100 - last if self.is_mirrored else first
        return round(left, 2), round(last - first, 2)
