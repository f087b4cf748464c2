"""The clock of this process: each deadline and each duration of the package is measured by it.

It goes on while the machine is suspended, as a server's clock does, and is never set. On Linux that is CLOCK_BOOTTIME,
on macOS and the BSDs CLOCK_MONOTONIC; ``time.monotonic`` stands still during a suspension on both. Libraries that fake
the time in tests do not reach it: freezegun replaces ``time.monotonic``, and time-machine answers for CLOCK_REALTIME.

A virtual machine that is paused, or moved to another host, may come back with a clock that stood still. Its wall clock
is then set by its host or by NTP, so it jumps against this clock. No decision uses the wall clock; after a jump of it,
the servers are queried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

JUMP = 0.25
"""By how many seconds the wall clock may move against this clock unnoticed: two readings may be that far apart."""


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

_wall: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_REALTIME)


_pretended = 0.0


def wall_offset() -> float:
    """How far the wall clock is ahead of this clock, in seconds; it changes only when one of the two jumps."""
    return _wall() - monotonic() + _pretended


def pretend_jump(seconds: float) -> None:
    """For tests: let the wall clock jump, in the eyes of this package."""
    global _pretended  # noqa: PLW0603 - there is one clock
    _pretended += seconds


def has_jumped(since: float) -> bool:
    """Whether either clock has jumped since ``wall_offset()`` returned ``since``."""
    return abs(wall_offset() - since) > JUMP
