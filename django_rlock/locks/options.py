"""The arguments of callers: durations, options and texts, each checked once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, TypedDict

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_rlock._core.callbacks import log
from django_rlock._core.clock import LONGEST, limit_for
from django_rlock._redis import keys
from django_rlock.settings import AliasSettings

logger = logging.getLogger("django_rlock.locks")

# --- durations --------------------------------------------------------------------------------------------------------

# Durations given by callers: seconds as a number or a timedelta, checked once. And one that several flows share.

Duration = float | timedelta

RELEASE_PATIENCE = 1.0
"""How long a release retries an unreachable server before the background thread takes over, in seconds."""


class _Unset:
    def __repr__(self) -> str:
        return "<not given>"

    def __reduce__(self) -> str:
        return "UNSET"  # a copy, and one in another process, are the same object


UNSET: Any = _Unset()
"""Stands for a duration that was not given, because None has another meaning."""


MILLISECOND = 0.001
"""The shortest time that a server counts, in seconds."""


def duration(argument: str, none: str = "", least: float = 0.0) -> Callable[[Duration | None], float | None]:
    """Make the check of an argument: seconds as a number or a timedelta, at least ``least`` (0 or a millisecond).

    None passes the check; ``none`` says in errors what it means. The check returns a float, and raises TypeError or
    ValueError.
    """
    otherwise = f"; {none}" if none else ""
    expected = f"{'above 0' if least else '0 or more'}{otherwise}"

    def check(value: Duration | None) -> float | None:
        if value is None:
            return None
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"{argument} must be seconds as a number or a timedelta, {expected}; not {value!r}.")
        if not least <= seconds < _RARE:  # nan fails this test too
            if not 0 <= seconds <= LONGEST:
                limit = limit_for(seconds)
                raise ValueError(f"{argument} must be a number of seconds {expected}; not {value!r}{limit}.")
            if seconds < least:
                raise ValueError(f"{argument} must be at least {least} s, not {value!r}{otherwise}.")
            if not isinstance(value, timedelta):
                _doubt(argument, value)
        return float(seconds)

    return check


_RARE = 1000
"""A duration from which on the number of seconds may be one of milliseconds."""
_doubted: set[str] = set()


def _doubt(argument: str, seconds: float) -> None:
    """Warn, once for each argument, that a number of seconds looks like one of milliseconds."""
    if seconds % 1000 == 0 and seconds % 3600 and argument not in _doubted:
        _doubted.add(argument)
        meant = f"{argument}={seconds / 1000:g} for {seconds:g} milliseconds, or a timedelta"
        time = timedelta(seconds=seconds)
        log(logger, logging.WARNING, f"{argument}={seconds:g} is {time} (h:mm:ss), as it is in seconds. Write {meant}.")


DURATIONS = {
    "wait_time": ("None waits forever", 0.0),
    "lease_time": ("None is renewed by the watchdog", MILLISECOND),
    "max_hold_time": ("None stands for MAX_HOLD_TIME", MILLISECOND),
    "at_least": ("None adds nothing, as 0", 0.0),
}
"""The durations of a lock: what None means, and the least value."""
wait_seconds, lease_seconds, hold_seconds, keep_seconds = (duration(name, *each) for name, each in DURATIONS.items())


@lru_cache(maxsize=256)
def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


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


def wrong_blocking(value: object) -> TypeError:
    """The error for another value of ``blocking`` than a bool: other libraries have the wait time there."""
    is_time = isinstance(value, int | float | timedelta)
    advice = f"acquire({value!r}): use wait_time={value!r}" if is_time else "use wait_time= for how long to wait"
    return TypeError(f"blocking must be True or False, not {value!r}; {advice}.")


def unknown_argument(method: str, names: Iterable[str]) -> TypeError:
    """The same for a method."""
    return unknown_option(method, names, _ELSEWHERE | _IN_CALLS)


def checked_owner(value: object) -> str:
    """Return a name for an owner, if the locks' hashes can have it as a field."""
    owner = checked_text("lock's owner", value)
    if owner == keys.MODE:
        raise ValueError(f"A lock's owner must not be {owner!r}: that field of its hash has a special meaning.")
    return owner


MOST_PERMITS = 2**31 - 1
"""The largest number, as in Redisson."""


def checked_number(argument: str, value: int, least: int = 0) -> int:
    """Return the number, if it is between ``least`` and MOST_PERMITS."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be a whole number, not {value!r}.")
    if not least <= value <= MOST_PERMITS:
        raise ValueError(f"{argument} must be a whole number from {least} to {MOST_PERMITS}, not {value!r}.")
    return value


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


# --- names ------------------------------------------------------------------------------------------------------------


class CompleteName(str):
    """A lock's name that KEY_FUNCTION has made."""

    __slots__ = ()


def completed(settings: AliasSettings, names: Iterable[str]) -> tuple[str, ...]:
    """The names of locks of an alias with a KEY_FUNCTION, completed by it. Raises ImproperlyConfigured if it cannot be
    imported."""
    function = settings.key_function
    if function is None:
        return tuple(names)
    if isinstance(function, str):
        try:
            function = import_string(function)
        except ImportError as error:
            raise ImproperlyConfigured(f"RLOCK[{settings.alias!r}]['KEY_FUNCTION']: {error}") from error
    return tuple([str(name) if isinstance(name, CompleteName) else function(name) for name in names])
