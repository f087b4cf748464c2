"""The arguments of callers: durations, options and texts, each checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, TypedDict

from django_rlock._redis import keys
from django_rlock.settings import LONGEST

# --- durations --------------------------------------------------------------------------------------------------------

# Durations given by callers: seconds as a number or a timedelta, checked once. And one that several flows share.

Duration = float | timedelta

RELEASE_PATIENCE = 1.0
"""How long a release retries an unreachable server before the background thread takes over, in seconds."""


class _Unset:
    def __repr__(self) -> str:
        return "<not given>"


UNSET: Any = _Unset()
"""Stands for a duration that was not given, because None has another meaning."""


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


# --- options ----------------------------------------------------------------------------------------------------------

# The options of locks, and the checks of their texts.

_MOST_SHOWN = 60
"""How many characters of a wrong name an error shows."""
_FOR_LEASES = "lease_time= for a fixed lease (by default it is renewed)"
_FOR_WAITS = "wait_time= for how long to wait (0 tries once)"
_ELSEWHERE = {
    **dict.fromkeys(("timeout", "expire", "ttl", "lease"), _FOR_LEASES),
    **dict.fromkeys(("blocking_timeout", "blocking", "wait"), _FOR_WAITS),
    **dict.fromkeys(("sleep", "auto_renewal", "thread_local"), "nothing: waiters are notified, and leases are renewed"),
    "id": "owner=",
    "alias": "using=",
    "cache": "using=, the alias in RLOCK",
}
"""The equivalents of other lock libraries' options."""
_IN_CALLS = {
    "timeout": _FOR_WAITS,  # as in Python's own locks
    "token": "owner= of the lock",
    "replace_ttl": "lease_time= alone",
}
"""The equivalents that differ for methods."""


KindName = Literal["fair", "rlock", "spin", "fenced", "redlock", "read", "write", "limited"]
"""The values of ``kind=``."""


class LockOptions(TypedDict, total=False):
    """The options of all kinds of locks; ``BaseLock`` describes them."""

    wait_time: Duration | None
    lease_time: Duration | None
    using: str
    owner: str | None
    on_lost: Callable[[Any], object] | None
    max_hold_time: Duration | None
    at_least: Duration | None
    until_commit: bool | str | None


def limited_kind(kind: str | None) -> KindName:
    """The kind of a lock with ``permits=``. Raises ValueError for another one."""
    if kind not in (None, "limited"):
        raise ValueError(f"permits= makes a lock of its own kind, 'limited'; it takes no kind={kind!r}.")
    return "limited"


def unknown_option(called: str, names: Iterable[str], hints: Mapping[str, str] = _ELSEWHERE) -> TypeError:
    """The error for keyword arguments that do not exist; it names ours for those of other libraries."""
    name = next(iter(names))
    hint = f" Use {hints[name]}." if name in hints else ""
    return TypeError(f"{called}() got an unexpected keyword argument {name!r}.{hint}")


def unknown_argument(method: str, names: Iterable[str]) -> TypeError:
    """The same for a method."""
    return unknown_option(method, names, _ELSEWHERE | _IN_CALLS)


def checked_owner(value: object) -> str:
    """Return a name for an owner, if the locks' hashes can have it as a field."""
    owner = checked_text("lock's owner", value)
    if owner == keys.MODE:
        raise ValueError(f"A lock's owner must not be {owner!r}: that field of its hash has a special meaning.")
    return owner


def checked_text(what: str, value: object) -> str:
    """Return a value such as a "lock's name", if it is a string of at most ``keys.MAX_NAME`` bytes in UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"A {what} must be a string, not {_shortened(value)}.")
    if not value:
        raise ValueError(f"A {what} must not be empty; give it a name such as 'stock:42'.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"A {what} must be text that UTF-8 can carry, not {_shortened(value)}.") from None
    if size > keys.MAX_NAME:
        raise ValueError(
            f"A {what} must not be longer than {keys.MAX_NAME} bytes in UTF-8, and {_shortened(value)} has "
            f"{size}. Use a digest of the long part, as key templates do."
        )
    return value


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
