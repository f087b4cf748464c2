"""Who holds which lock, what they do with it, and who waits; and freeing a lock that another owner holds.

Names come from the process reports (``reports``), which are written a little later than the truth. Each is
compared with the lock itself, so a lock that is gone is never shown, and a holder is always who holds it now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core import threads
from django_rlock._monitoring.building import Builder
from django_rlock._monitoring.infos import (
    CLIENT_LENGTH,
    Deadlock,
    Edge,
    Holder,
    LockInfo,
    LockState,
    Party,
    Waiter,
    WaitGraph,
)
from django_rlock._monitoring.queued import QueuedMessage, free_places, queued_messages, with_queued
from django_rlock._monitoring.reading import asking, listed_aliases
from django_rlock._monitoring.survey import Problem, Survey, edges, mark, own_report
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks import rlock
from django_rlock.locks.base import BaseLock
from django_rlock.locks.holds import INSPECTOR
from django_rlock.locks.kinds import Named
from django_rlock.locks.statistics import operator
from django_rlock.settings import DEFAULT_ALIAS, get_settings

__all__ = [
    "Deadlock",
    "Edge",
    "Holder",
    "LockInfo",
    "LockState",
    "Party",
    "QueuedMessage",
    "WaitGraph",
    "Waiter",
    "describe_holder",
    "find_locks",
    "find_named",
    "force_release",
    "free_places",
    "iter_locks",
    "listed_aliases",
    "lock_info",
    "lock_infos",
    "near_names",
    "queued_messages",
    "take_survey",
    "wait_for_graph",
]

ANSWER_WITHIN = 1.0
"""How long a call that timed out may take to find out who holds the lock, in seconds."""
MOST_NEAR = 3
"""How many names are suggested at most in place of one that is not held."""
_ALL = 10_000
"""Locks at most that are read again for the sake of deadlocks, where all locks are read anyway."""


def iter_locks(using: str | None = None, pattern: str | None = None, scan: bool = False) -> Iterator[LockInfo]:
    """The locks that are held now, of one alias or (None) of all.

    ``pattern`` is a shell pattern for their names (``stock:*``); None takes all. Held for less than half a
    second, a lock is not listed yet. ``scan=True`` also finds locks that no report names, as those of Java
    clients, and locks that are free while messages are queued for them: it looks at every key of the server, in steps.
    LockUnavailableError when the Redis of an alias
    is unreachable.
    """
    locks, errors = find_locks(using, pattern, scan)
    for error in errors.values():
        raise error
    yield from locks


def find_locks(
    using: str | None = None, pattern: str | None = None, scan: bool = False, with_hot: bool = False
) -> tuple[list[LockInfo], dict[str, Problem]]:
    """The same, all at once, with the errors of the aliases that could not be read; ``with_hot`` adds hot locks that
    are free for a moment.

    ImproperlyConfigured when RLOCK as a whole is wrong.
    """
    survey = take_survey(using, pattern or "*")
    locks = survey.read_all(pattern, scan, with_hot)
    return mark(locks, survey.deadlocks(_ALL)), survey.errors


def wait_for_graph(using: str | None = None) -> WaitGraph:
    """Who waits for whom, among the locks of one alias or (None) of all, and who is in a deadlock. Errors as
    ``iter_locks``.

    Waits are known once they have lasted for half a second; those of Java clients in Redisson's fair locks only. A
    deadlock is one that was found in two readings; one that a waiter ends by giving up may be seen for a second more.
    """
    survey = take_survey(using)
    found = edges(survey.read_all())
    deadlocks = survey.deadlocks(_ALL)
    for error in survey.errors.values():
        raise error
    return WaitGraph(tuple(found), deadlocks)


def take_survey(using: str | None = None, name: str = "*") -> Survey:
    """Reads the reports of one alias or (None) of all; errors call what was wanted ``name``. ImproperlyConfigured when
    RLOCK as a whole is wrong."""
    return Survey(listed_aliases() if using is None else [using], name)


def lock_info(name: str, using: str = DEFAULT_ALIAS) -> LockInfo | None:
    """A lock's holders and waiters, and the messages of Celery tasks that are queued for it; None when it is free and
    nothing is queued. LockUnavailableError when Redis cannot be
    asked, ImproperlyConfigured for a bad alias, ValueError for what can be no name."""
    return next(iter(lock_infos([name], using)), None)


def lock_infos(names: Iterable[str], using: str = DEFAULT_ALIAS) -> list[LockInfo]:
    """Those of some locks that are held or queued for, in a few round trips. Errors as ``lock_info``."""
    locks = [rlock(name, using=using) for name in names]
    survey = Survey([using], ", ".join(lock.key for lock in locks))
    found = survey.read((using, lock.name) for lock in locks)
    deadlocks = survey.deadlocks()
    for error in survey.errors.values():
        raise error
    queued = queued_messages(using, [lock.name for lock in locks]) if locks else []
    return with_queued(mark(found, deadlocks), queued)


def number_at(name: str, using: str = DEFAULT_ALIAS) -> int | None:
    """The number that a key of an alias holds instead of a lock: a semaphore's permits, or a latch's count. Errors as
    ``lock_info``."""
    with asking(name, using) as server:
        return server.read_number(get_settings(using).key_prefix + name)


def find_named(names: Iterable[str], using: str | None = None) -> tuple[list[LockInfo], dict[str, Problem]]:
    """The same under one alias or (None) under all, with the errors of the aliases that could not be read.

    ImproperlyConfigured when RLOCK as a whole is wrong.
    """
    wanted = list(names)
    found: list[LockInfo] = []
    errors: dict[str, Problem] = {}
    for alias in listed_aliases() if using is None else [using]:
        try:
            found += lock_infos(wanted, alias)
        except (LockUnavailableError, ImproperlyConfigured) as error:
            errors[alias] = error
    return found, errors


def near_names(name: str, using: str | None = None) -> list[str]:
    """Names of locks that are held now and look like this one, the nearest first."""
    survey = take_survey(using, name)
    return get_close_matches(name, {lock.name for lock in survey.read_all()} - {name}, n=MOST_NEAR)


def force_release(
    name: str, owner: str | None = None, using: str = DEFAULT_ALIAS, reason: str = "", by: str = ""
) -> bool:
    """Free a lock that another owner holds, and let its next waiter in. Returns whether it was held.

    With ``owner``, only while that owner holds it, so that the next holder is never freed by mistake; None frees
    whoever holds it. The holder's process is notified at once, but its code goes on until it looks: two may run
    meanwhile. ``reason`` goes to the log, the signal and the history, with ``by``, who does it; the holder's log names
    both. Raises LockUnavailableError when Redis is unreachable.
    """
    if owner == "":
        raise ValueError("The owner must be as lock_info() gives it, or None for whoever holds the lock.")
    lock = rlock(name, using=using)
    token = operator.set((by, reason, _whom(lock, owner)))
    try:
        text = f"{by}: {reason or 'no reason given'}" if by else reason
        return lock.force_release(owner, reason=text)
    finally:
        operator.reset(token)


def _describe(lock: BaseLock) -> LockInfo | None:
    info = lock_info(lock.name, lock.using)
    return info and replace(info, kind=info.kind or lock.kind)


def describe_holder(lock: Named) -> str | None:
    """Who holds a lock, in one line; None when it is free, or Redis unreachable or slow."""
    return threads.within(ANSWER_WITHIN, _read_holder, lock)


def _whom(lock: Named, owner: str | None) -> str:
    """Who is to lose a lock, for the history; "" when that cannot be read."""
    info = threads.within(ANSWER_WITHIN, _read_lock, lock)
    return "; ".join(str(holder) for holder in (info.holders if info else ()) if owner in (None, holder.owner))


def _read_holder(lock: Named) -> str | None:
    info = _read_lock(lock)
    return str(info.holder) if info else None


def _read_lock(lock: Named) -> LockInfo | None:
    """One report is read, not all. None when the lock is free, or Redis unreachable."""
    with suppress(LockUnavailableError), asking(lock.name, lock.using) as server:
        states = server.read_states([lock.key])
        processes = {owner[:CLIENT_LENGTH] for state in states.values() for owner in state.holds}
        now, reports = server.read_reports(processes)
        for info in Builder(lock.using, now, [*reports, own_report(now)]).infos(states):
            return info
    return None


INSPECTOR.describe, INSPECTOR.holder = _describe, describe_holder
