"""Durations given by callers: seconds as a number or a timedelta, checked once. And one that several flows share."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

from django_rlock.settings import LONGEST

Duration = float | timedelta

RELEASE_PATIENCE = 1.0
"""How long a release retries an unreachable server before the background thread takes over, in seconds."""


class _Unset:
    def __repr__(self) -> str:
        return "<not given>"


UNSET: Any = _Unset()
"""Stands for a duration that was not given, because None has a meaning of its own."""


def wait_seconds(value: Duration | None) -> float | None:
    """Check a wait: 0 tries once, None waits forever."""
    return None if value is None else _seconds("wait_time", value, "0 or more; None waits forever")


def lease_seconds(value: Duration | None) -> float | None:
    """Check a lease: at least a millisecond; None is renewed by the watchdog."""
    return _at_least_a_millisecond("lease_time", value, "None is renewed by the watchdog")


def hold_seconds(value: Duration | None) -> float | None:
    """Check the longest time that a lock may be held; None stands for MAX_HOLD_TIME."""
    return _at_least_a_millisecond("max_hold_time", value, "None stands for MAX_HOLD_TIME")


def keep_seconds(value: Duration | None) -> float | None:
    """Check for how long a lock stays taken at least; 0 and None add nothing to the hold."""
    return (_seconds("at_least", value, "0 or more") or None) if value is not None else None


@lru_cache(maxsize=256)
def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _at_least_a_millisecond(argument: str, value: Duration | None, none: str) -> float | None:
    if value is None:
        return None
    seconds = _seconds(argument, value, f"above 0; {none}")
    if seconds < 0.001:
        raise ValueError(f"{argument} must be at least 0.001 s, not {value!r}; {none}.")
    return seconds


def _seconds(argument: str, value: Duration, expected: str) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} must be seconds as a number or a timedelta, {expected}; not {value!r}.")
    if not 0 <= value <= LONGEST:  # nan fails this test too
        raise ValueError(f"{argument} must be a number of seconds {expected}; not {value!r}.")
    return float(value)
