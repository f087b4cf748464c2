"""The locks: one module for each kind, over shared flows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Unpack, overload

from django_rlock._transport.identity import Use
from django_rlock._transport.worker import CleanUps, IdleConnections, add_jobs
from django_rlock.locks.base import BaseLock
from django_rlock.locks.fair import FairLock
from django_rlock.locks.forced import ForcedReleaseWatcher, watch_forced_releases
from django_rlock.locks.heartbeats import Heartbeats, heartbeat_soon
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.multi import MultiLock
from django_rlock.locks.options import (
    DURATIONS,
    UNSET,
    CompleteName,
    Duration,
    KindName,
    LockOptions,
    completed,
    duration,
    limited_kind,
)
from django_rlock.locks.plain import Backoff, ConstantBackoff, ExponentialBackoff, FencedLock, RLock, SpinLock
from django_rlock.locks.readwrite import LimitedLock, Preference, ReadLock, ReadWriteLock, WriteLock
from django_rlock.locks.redlock import RedLock
from django_rlock.locks.watchdog import Renewals
from django_rlock.settings import DEFAULT_ALIAS, parsed_entry, unknown_alias

__all__ = [
    "KINDS",
    "BaseLock",
    "ConstantBackoff",
    "Duration",
    "ExponentialBackoff",
    "FairLock",
    "FencedLock",
    "LimitedLock",
    "LockTerms",
    "MultiLock",
    "RLock",
    "ReadLock",
    "ReadWriteLock",
    "RedLock",
    "SpinLock",
    "WriteLock",
    "named_lock",
    "rlock",
]

KINDS: dict[str, type[BaseLock]] = {
    cls.kind: cls for cls in (FairLock, RLock, SpinLock, FencedLock, RedLock, ReadLock, WriteLock, LimitedLock)
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LockTerms:
    """The options of ``rlock()`` that a decorator, a task or a command has for its locks, checked once.

    Durations are in seconds; None stands for an option that was not given.
    """

    using: str = DEFAULT_ALIAS
    kind: KindName | None = None
    wait_time: float | None = None
    lease_time: float | None = None
    at_least: float | None = None
    max_hold_time: float | None = None
    permits: int | None = None
    of_lock: dict[str, Any] = field(init=False)
    """The given options, without the wait time, which may depend on the call."""

    @staticmethod
    def checked(spelled: Callable[[str], str] = str, **given: Any) -> dict[str, Any]:
        """The values of options as ``LockTerms`` has them. Raises TypeError or ValueError for a wrong one; ``spelled``
        returns an option's name for the error."""
        kind, permits = given.get("kind"), given.get("permits")
        if kind not in (None, *KINDS):
            raise ValueError(f"{spelled('kind')} must be one of {', '.join(map(repr, KINDS))} or None, not {kind!r}.")
        for name, bounds in DURATIONS.items():
            given[name] = duration(spelled(name), *bounds)(given.get(name))
        given["at_least"] = at_least = given["at_least"] or None
        limits = "at_least" if permits is None else "permits"
        try:
            # Making a lock checks what its kind allows.
            if permits is not None:
                given["kind"] = limited_kind(kind)
                LimitedLock("permits", permits=permits, at_least=at_least)
            elif at_least is not None and kind is not None:
                KINDS[kind]("at_least", at_least=at_least)
        except (TypeError, ValueError) as error:
            if spelled(limits) == limits:
                raise
            raise type(error)(f"{spelled(limits)}: {error}") from None
        return given

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in TERMS if name != "wait_time"}
        object.__setattr__(self, "of_lock", {name: value for name, value in given.items() if value is not None})


TERMS = tuple(each.name for each in fields(LockTerms) if each.init)


class _AnyOptions(LockOptions, total=False):
    """With the options of the kinds: the alias's default kind may be any."""

    backoff: Backoff
    fencing: bool
    permits: int | None
    prefer: Preference


@overload
def rlock(name: str, /, *, kind: Literal["fair"], **options: Unpack[LockOptions]) -> FairLock: ...
@overload
def rlock(name: str, /, *, kind: Literal["rlock"], **options: Unpack[LockOptions]) -> RLock: ...
@overload
def rlock(
    name: str, /, *, kind: Literal["spin"], backoff: Backoff = ..., **options: Unpack[LockOptions]
) -> SpinLock: ...
@overload
def rlock(name: str, /, *, kind: Literal["fenced"], **options: Unpack[LockOptions]) -> FencedLock: ...
@overload
def rlock(
    name: str, /, *, kind: Literal["redlock"], fencing: bool = ..., **options: Unpack[LockOptions]
) -> RedLock: ...
@overload
def rlock(
    name: str, /, *, kind: Literal["read"], prefer: Preference = ..., **options: Unpack[LockOptions]
) -> ReadLock: ...
@overload
def rlock(
    name: str, /, *, kind: Literal["write"], prefer: Preference = ..., **options: Unpack[LockOptions]
) -> WriteLock: ...
@overload
def rlock(
    name: str, /, *, kind: Literal["limited"] | None = None, permits: int, **options: Unpack[LockOptions]
) -> LimitedLock: ...
@overload
def rlock(*names: str, kind: KindName | None = None, **options: Unpack[_AnyOptions]) -> BaseLock: ...
def rlock(
    *names: str,
    wait_time: Duration | None = UNSET,
    lease_time: Duration | None = None,
    using: str = DEFAULT_ALIAS,
    kind: str | None = None,
    owner: str | None = None,
    at_least: Duration | None = None,
    until_commit: bool | str | None = None,
    permits: int | None = None,
    **options: Any,
) -> BaseLock:
    """Make a lock of the alias's default kind, or of ``kind``.

    Several names make a MultiLock, which takes all of them or none. ``wait_time`` and ``lease_time`` are seconds. By
    default acquire waits for WAIT_TIME, with ``wait_time=None`` forever; with ``lease_time=None`` the watchdog renews
    the lease. ``owner``, ``at_least``, ``until_commit`` and further options are those of the lock classes. With
    ``permits``, that many owners may hold each lock at once (see ``LimitedLock``). Raises ValueError for an unknown
    kind or without a name, and ImproperlyConfigured for a bad alias, or for a kind that the alias does not support:
    with NODES only RedLock works. If the alias has a KEY_FUNCTION, it completes the names, now and in this thread or
    task.
    """
    if not names:
        if "name" in options:
            raise TypeError(f"rlock() takes names without a keyword: write rlock({options['name']!r}).")
        raise ValueError("No lock was named: give one name or several, as in rlock('stock:42').")
    if not isinstance(using, str):
        raise unknown_alias(using)
    options_of_alias = parsed_entry(using)
    if options_of_alias.key_function is not None:
        names = completed(options_of_alias, names)
    # The alias's own kind cannot limit its owners, so the number alone chooses the kind.
    if permits is not None:
        kind = limited_kind(kind)
        options["permits"] = permits
    chosen = kind or options_of_alias.kind
    if chosen not in KINDS:
        raise ValueError(f"Unknown kind of lock {chosen!r}; choose one of {', '.join(map(repr, KINDS))}.")
    if kind is not None:
        options_of_alias.check_kind(kind)
    # Most locks are made without options, which take time to pass.
    has_times = wait_time is not UNSET or lease_time is not None or at_least is not None
    if len(names) == 1 and not has_times and owner is None and until_commit is None and not options:
        return KINDS[chosen](names[0], using=using)
    times: Any = {
        "wait_time": wait_time,
        "lease_time": lease_time,
        "owner": owner,
        "at_least": at_least,
        "until_commit": until_commit,
    }
    if len(names) == 1:
        return KINDS[chosen](names[0], using=using, **times, **options)
    return MultiLock(*(KINDS[chosen](name, using=using, **options) for name in names), **times)


def named_lock(*names: str, using: str, **options: Any) -> BaseLock:
    """As ``rlock()``, for names that KEY_FUNCTION has completed already, such as names in reports and messages."""
    if parsed_entry(using).key_function is not None:
        names = tuple(map(CompleteName, names))
    made: BaseLock = rlock(*names, using=using, **options)
    return made


# --- what the layers below call ---------------------------------------------------------------------------------------

# Named here, since the import of a module must have no effect: Python 3.15 can defer it until the module is used.

add_jobs(Renewals, ForcedReleaseWatcher, CleanUps, IdleConnections, Heartbeats)
watch_forced_releases()
WAITS.hurry = heartbeat_soon
Use.is_idle = lambda: not HOLDS.table and not WAITS
