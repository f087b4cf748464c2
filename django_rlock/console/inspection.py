"""The public functions of ``django_rlock.inspection``, and the answers for ``lock.info()`` and the texts of errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._monitoring.reporter import report_newcomers
from django_rlock._redis.keys import stack_channel, stack_key
from django_rlock._transport.calls import unavailable
from django_rlock._transport.identity import new_request
from django_rlock._transport.registry import commands_to
from django_rlock._transport.servers import SERVER_ERRORS, is_cluster
from django_rlock.console.deadlocks import edges, mark
from django_rlock.console.reading import State, UnreadError, asking, listed_aliases
from django_rlock.console.rows import Builder
from django_rlock.console.survey import (
    Survey,
    own_report,
    queued_messages,
    with_queued,
)
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks import infos, named_lock
from django_rlock.locks.base import BaseLock
from django_rlock.locks.holds import INSPECTOR
from django_rlock.locks.kinds import Named
from django_rlock.locks.statistics import operator
from django_rlock.settings import DEFAULT_ALIAS, get_settings, server_aliases

T = TypeVar("T")

READ_WITHIN = 1.0
"""How long a call that timed out may take to find out who holds the lock, in seconds."""
MOST_NEAR = 3
"""The largest number of names to suggest for a lock that is not held."""
STACK_WITHIN = 3.0
"""How long a process may take to reply with the stack of a holder, in seconds."""
_STACK_PAUSE = 0.05
_MAX_LINES = 250
_ALL = 10_000
"""The largest number of locks to read again in order to confirm deadlocks, if all locks are read anyway."""


def iter_locks(using: str | None = None, pattern: str | None = None, scan: bool = False) -> Iterator[infos.LockInfo]:
    """The locks that are held now, under one alias or (None) under all aliases.

    ``pattern`` is a shell pattern for their names (``stock:*``); None matches all names. A lock is listed once it has
    been held for half a second. ``scan=True`` reads every key of the server, in steps, and also finds locks that no
    report names, such as locks of Java clients, and free locks for which messages are queued. Raises
    LockUnavailableError if the Redis server of an alias is unreachable.
    """
    locks, errors = find_locks(using, pattern, scan)
    for error in errors.values():
        raise error
    yield from locks


def find_locks(
    using: str | None = None, pattern: str | None = None, scan: bool = False, with_hot: bool = False
) -> tuple[list[infos.LockInfo], dict[str, UnreadError]]:
    """The locks of ``iter_locks`` as a list, and the errors of the aliases that could not be read. ``with_hot`` adds
    hot locks that are free at the moment. Raises ImproperlyConfigured if RLOCK as a whole is wrong.
    """
    survey = take_survey(using, pattern or "*")
    locks = survey.read_all(pattern, scan, with_hot)
    return mark(locks, survey.deadlocks(_ALL)), survey.errors


def wait_for_graph(using: str | None = None) -> infos.WaitGraph:
    """Which owners wait for which, among the locks of one alias or (None) of all aliases, and which are in a deadlock.
    Errors are as for ``iter_locks``.

    Waits are known once they have lasted for half a second; for Java clients, only waits for fair locks are known. A
    deadlock is reported if two readings found it; after a waiter has given up, it may be reported for another second.
    """
    survey = take_survey(using)
    found = edges(survey.read_all())
    deadlocks = survey.deadlocks(_ALL)
    for error in survey.errors.values():
        raise error
    return infos.WaitGraph(tuple(found), deadlocks)


def take_survey(using: str | None = None, name: str = "*") -> Survey:
    """Read the reports of one alias or (None) of all aliases; ``name`` is for error texts. Raises ImproperlyConfigured
    if RLOCK as a whole is wrong."""
    return Survey(listed_aliases() if using is None else [using], name)


def lock_info(name: str, using: str = DEFAULT_ALIAS) -> infos.LockInfo | None:
    """A lock's holders and waiters, and the messages of Celery tasks that are queued for it; None if the lock is free
    and no message is queued. With a KEY_FUNCTION, ``name`` is the complete name, as in ``lock.name``. Raises
    LockUnavailableError if Redis cannot be read, ImproperlyConfigured for a bad alias, ValueError for an invalid
    name."""
    return next(iter(lock_infos([name], using)), None)


def lock_infos(names: Iterable[str], using: str = DEFAULT_ALIAS) -> list[infos.LockInfo]:
    """The ``lock_info`` of several locks, read in a few round trips; free locks are left out. Errors are as there."""
    locks = [named_lock(name, using=using) for name in names]
    prefix = get_settings(using).key_prefix
    survey = Survey([using], ", ".join(prefix + lock.name for lock in locks))
    found = survey.read((using, lock.name) for lock in locks)
    deadlocks = survey.deadlocks()
    for error in survey.errors.values():
        raise error
    # Free locks may have queued messages, too, so all names are read.
    queued = queued_messages(using, [lock.name for lock in locks]) if locks else []
    return with_queued(mark(found, deadlocks), queued)


def number_at(name: str, using: str = DEFAULT_ALIAS) -> int | None:
    """The number under a key that holds a semaphore (its permits) or a latch (its count) instead of a lock; None
    otherwise. Errors are as for ``lock_info``."""
    with asking(name, using) as server:
        return server.read_number(get_settings(using).key_prefix + name)


def find_named(names: Iterable[str], using: str | None = None) -> tuple[list[infos.LockInfo], dict[str, UnreadError]]:
    """The locks with these names under one alias or (None) under all aliases, and the errors of the aliases that could
    not be read. Raises ImproperlyConfigured if RLOCK as a whole is wrong.
    """
    wanted = list(names)
    return _of_each(using, lambda alias: lock_infos(wanted, alias))


def find_queued(
    using: str | None = None, names: Collection[str] | None = None, pattern: str | None = None
) -> tuple[list[infos.QueuedMessage], dict[str, UnreadError]]:
    """The ``queued_messages`` of one alias or (None) of all aliases; the errors are as for ``find_named``."""
    return _of_each(using, lambda alias: queued_messages(alias, names, pattern))


def _of_each(using: str | None, read: Callable[[str], list[T]]) -> tuple[list[T], dict[str, UnreadError]]:
    """What ``read`` returns for one alias or (None) for all aliases, and the errors of the others."""
    found: list[T] = []
    errors: dict[str, UnreadError] = {}
    for alias in listed_aliases() if using is None else [using]:
        try:
            found += read(alias)
        except (LockUnavailableError, ImproperlyConfigured) as error:
            errors[alias] = error
    return found, errors


def near_names(name: str, using: str | None = None) -> list[str]:
    """Names of currently held locks that resemble this name, the closest match first."""
    survey = take_survey(using, name)
    return get_close_matches(name, {lock.name for lock in survey.read_all()} - {name}, n=MOST_NEAR)


def force_release(
    name: str, owner: str | None = None, using: str = DEFAULT_ALIAS, reason: str = "", by: str = ""
) -> bool:
    """Free a lock that another owner holds, and let its next waiter in. Returns whether it was held.

    With ``owner``, the lock is freed only if that owner still holds it, so that the next holder never loses it by
    mistake; None frees it from any holder. The holder's process is notified at once, but its code continues until it
    checks the lock, so two holders may overlap. ``reason`` and ``by``, the operator, go to the log, the signal and the
    history; the holder's log names both. Raises LockUnavailableError if Redis is unreachable.
    """
    if owner == "":
        raise ValueError("The owner must be an owner of lock_info(), or None to free the lock from any owner.")
    lock = named_lock(name, using=using)
    # The history names the holder, and only before the release can it be read.
    token = operator.set((by, reason, _whom(lock, owner)))
    try:
        text = f"{by}: {reason or 'no reason given'}" if by else reason
        return lock.force_release(owner, reason=text)
    finally:
        operator.reset(token)


def _describe(lock: BaseLock) -> infos.LockInfo | None:
    info = lock_info(lock.name, lock.using)
    return info and replace(info, kind=info.kind or lock.kind)


def describe_holder(lock: Named) -> str | None:
    """A lock's holder in one line; None if the lock is free, or Redis is unreachable or slow."""
    return threads.within(READ_WITHIN, _read_holder, lock)


def _describe_owner(lock: Named, owner: str) -> str | None:
    """A known holder of a lock, in one line, by one round trip; None when Redis is unreachable or slow."""
    return threads.within(READ_WITHIN, _read_owner, lock, owner)


def _read_owner(lock: Named, owner: str) -> str | None:
    with suppress(LockUnavailableError), asking(lock.name, lock.using) as server:
        now, reports = server.read_reports({owner[: infos.CLIENT_LENGTH]})
        # The caller knows the owner, so the lock itself is not read.
        [info] = Builder(lock.using, now, [*reports, own_report(now)]).infos({lock.key: State({owner: 1}, 0, (), 0)})
        return str(info.holder)
    return None


def _whom(lock: Named, owner: str | None) -> str:
    """The holder that is about to lose the lock, for the history; "" if it cannot be read."""
    info = threads.within(READ_WITHIN, _read_lock, lock)
    return "; ".join(str(holder) for holder in (info.holders if info else ()) if owner in (None, holder.owner))


def _read_holder(lock: Named) -> str | None:
    info = _read_lock(lock)
    return str(info.holder) if info else None


def _read_lock(lock: Named) -> infos.LockInfo | None:
    """Read a lock with the report of its holder only. None if the lock is free, or Redis is unreachable."""
    with suppress(LockUnavailableError), asking(lock.name, lock.using) as server:
        states = server.read_states([lock.key])
        processes = {owner[: infos.CLIENT_LENGTH] for state in states.values() for owner in state.holds}
        now, reports = server.read_reports(processes)
        for info in Builder(lock.using, now, [*reports, own_report(now)]).infos(states):
            return info
    return None


def holder_stack(lock: infos.LockInfo, holder: infos.Holder) -> list[str] | None:
    """The call stack of the thread or task that holds a lock, the innermost call last: file, line and function of each
    call.

    None if its process does not reply within STACK_WITHIN seconds: it is paused or disconnected, its SHOW_STACKS
    setting is off, or it is a Java client. Raises LockUnavailableError if Redis is unreachable.
    """
    return threads.run_in_thread(_ask_for_stack, lock, holder)


def _ask_for_stack(lock: infos.LockInfo, holder: infos.Holder) -> list[str] | None:
    request = new_request()
    channel, message = stack_channel(holder.client), json.dumps([lock.key, holder.owner, request])
    until, servers, errors = monotonic() + STACK_WITHIN, server_aliases(lock.using), []
    for using in servers:
        publish = "SPUBLISH" if is_cluster(using) else "PUBLISH"
        try:
            commands_to(using, "reports").run([(channel, (publish, channel, message))])
        except SERVER_ERRORS as error:
            errors.append(error)
    if len(errors) == len(servers):
        raise unavailable(lock.name, errors[0]) from errors[0]
    # Polling for three seconds at most is simpler than a separate subscription.
    while monotonic() < until:
        for using in servers:
            if lines := _read_stack(using, stack_key(request)):
                return lines
        time.sleep(_STACK_PAUSE)
    return None


def _read_stack(using: str, key: str) -> list[str] | None:
    with suppress(*SERVER_ERRORS, ValueError, RecursionError):
        (text,) = commands_to(using, "reports").run([(key, ("GET", key))])
        lines = json.loads(text or "null")
        return list(map(str, lines[:_MAX_LINES])) if isinstance(lines, list) else None
    return None


def follow_locks() -> None:
    """Describe locks and their holders for the layers below, and begin to report the locks of this process."""
    INSPECTOR.describe, INSPECTOR.holder, INSPECTOR.owner = _describe, describe_holder, _describe_owner
    INSPECTOR.matching = iter_locks
    report_newcomers()
