"""Durations given by callers: seconds as a number or a timedelta, checked once."""

from __future__ import annotations

import math
from datetime import timedelta
from functools import lru_cache
from typing import Any

Duration = float | timedelta


class _Unset:
    def __repr__(self) -> str:
        return "<not given>"


UNSET: Any = _Unset()
"""Stands for a duration that was not given, where None has a meaning of its own."""

LONGEST = 100 * 365 * 24 * 3600.0


def wait_seconds(value: Duration | None) -> float | None:
    """A wait: 0 tries once, None waits for ever."""
    return None if value is None else _seconds("wait_time", value, "0 or more; None waits for ever")


def lease_seconds(value: Duration | None) -> float | None:
    """A lease of at least a millisecond; None is renewed by the watchdog."""
    if value is None:
        return None
    seconds = _seconds("lease_time", value, "above 0; None is renewed by the watchdog")
    if seconds < 0.001:
        raise ValueError(f"lease_time must be at least 0.001 s, not {value!r}; None is renewed by the watchdog.")
    return seconds


@lru_cache(maxsize=256)
def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _seconds(argument: str, value: Duration, expected: str) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} must be seconds as a number or a timedelta, {expected}; not {value!r}.")
    if not math.isfinite(value) or not 0 <= value <= LONGEST:
        raise ValueError(f"{argument} must be a number of seconds {expected}; not {value!r}.")
    return float(value)
