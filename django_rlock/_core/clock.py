"""The clock of this process, which measures all deadlines and durations of the package.

It continues while the machine is suspended, as a server's clock does, and is never set. On Linux that is
CLOCK_BOOTTIME, on macOS and the BSDs CLOCK_MONOTONIC; ``time.monotonic`` stands still during a suspension on both.
Libraries that fake the time in tests do not affect it: freezegun replaces ``time.monotonic``, and time-machine
CLOCK_REALTIME.

A virtual machine that is paused, or moved to another host, may come back with a clock that stood still. The host or NTP
then sets its wall clock, so that it jumps against this clock. No decision uses the wall clock; but after such a jump,
the servers are queried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

JUMP = 0.25
"""The tolerated movement of the wall clock against this clock, in seconds: two readings may be that far apart."""

LONGEST = 100 * 365 * 24 * 3600.0
"""The longest duration, in seconds; Redis refuses expiries beyond the range of its clock."""


def _suspension_proof() -> int:
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        time.clock_gettime(clock)
    except OSError:  # a sandbox without it
        return time.CLOCK_MONOTONIC
    return clock


# Each reading is a single call into C.
monotonic: Callable[[], float] = partial(time.clock_gettime, _suspension_proof())
"""The time in seconds, since some moment in the past."""

wall: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_REALTIME)
"""The wall clock, in seconds. Only its distance from the other clock matters."""

_pretended = 0.0


def wall_offset() -> float:
    """How far the wall clock is ahead of this clock, in seconds; it changes only when one of the two jumps."""
    return wall() - monotonic() + _pretended


def pretend_jump(seconds: float) -> None:
    """For tests: make this package see a jump of the wall clock."""
    global _pretended  # noqa: PLW0603 - there is one clock
    _pretended += seconds


def has_jumped(since: float) -> bool:
    """Whether either clock has jumped since ``wall_offset()`` returned ``since``."""
    return abs(wall_offset() - since) > JUMP


def limit_for(value: object) -> str:
    """For the error about a duration that is refused: the limit, if the value exceeds it."""
    exceeds = isinstance(value, int | float) and value > LONGEST
    return f" (the longest is {LONGEST:.0f} s, 100 years)" if exceeds else ""
