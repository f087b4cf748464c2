"""Who holds which lock, what they do with it, and who waits; and freeing a lock that somebody else holds.

Names come from the process reports (``reports``), which are written a little later than the truth. Each is
compared with the lock itself, so a lock that is gone is never shown, and a holder is always who holds it now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import translate

from django_rlock.connections import SERVER_ERRORS
from django_rlock.drivers.base import unavailable
from django_rlock.drivers.identity import client_id
from django_rlock.exceptions import LockUnavailableError
from django_rlock.inspection import reading
from django_rlock.inspection.building import Builder
from django_rlock.inspection.infos import CLIENT_LENGTH, Holder, LockInfo, LockState, Party, Waiter
from django_rlock.inspection.sources import Server, source
from django_rlock.locks import rlock
from django_rlock.locks.base import BaseLock, set_inspector
from django_rlock.locks.hooks import LockHooks
from django_rlock.reports import local_report
from django_rlock.settings import DEFAULT_ALIAS, get_aliases, get_settings

__all__ = [
    "Holder",
    "LockInfo",
    "LockState",
    "Party",
    "Waiter",
    "force_release",
    "iter_locks",
    "listed_aliases",
    "lock_info",
    "lock_infos",
]


def iter_locks(using: str | None = None, pattern: str | None = None, scan: bool = False) -> Iterator[LockInfo]:
    """The locks that are held now, of one alias or (None) of all.

    ``pattern`` is a shell pattern for their names (``stock:*``); None takes all. Held for less than half a
    second, a lock is not listed yet. ``scan=True`` also finds locks that no report names, as those of Java
    clients: it looks at every key of the server, in steps. LockUnavailableError when the Redis of an alias
    cannot be asked.
    """
    for alias in listed_aliases() if using is None else [using]:
        yield from _read_locks(alias, pattern, scan)


def lock_info(name: str, using: str = DEFAULT_ALIAS) -> LockInfo | None:
    """A lock's holders and waiters, or None when it is free. LockUnavailableError when Redis cannot be
    asked."""
    return next(iter(lock_infos([name], using)), None)


def lock_infos(names: Iterable[str], using: str = DEFAULT_ALIAS) -> list[LockInfo]:
    """Those of some locks that are held, in two or three round trips. Errors as ``lock_info``."""
    keys = [rlock(name, using=using).key for name in names]
    with _asking(", ".join(keys), using) as server:
        now, reports = server.read_all_reports()
        builder = Builder(using, now, [*reports, _local_report(now)])
        return builder.infos(server.read_states(keys))


def read_states(keys: Iterable[str], using: str = DEFAULT_ALIAS) -> dict[str, reading.State]:
    """The locks among ``keys`` that are held, without reports. Errors as ``lock_info``."""
    wanted = list(keys)
    with _asking(", ".join(wanted), using) as server:
        return server.read_states(wanted)


def force_release(name: str, owner: str | None = None, using: str = DEFAULT_ALIAS, reason: str = "") -> bool:
    """Free a lock that somebody else holds, and let its next waiter in. Returns whether it was held.

    With ``owner`` only while that owner holds it, so that the next holder is never freed by mistake; None
    frees whoever holds it. The holder learns of it at its next renewal, and goes on until then: two may be
    inside. ``reason`` goes to the log and to the signal. LockUnavailableError when Redis cannot be asked.
    """
    if owner == "":
        raise ValueError("The owner must be as lock_info() gives it, or None for whoever holds the lock.")
    return rlock(name, using=using).force_release(owner, reason=reason)


def listed_aliases() -> list[str]:
    """The aliases without those that show the same locks as another: same server or nodes, same prefix."""
    seen: dict[tuple[object, str], str] = {}
    for alias in reversed(get_aliases()):
        options = get_settings(alias)
        seen[options.nodes or options.cache, options.key_prefix] = alias
    return sorted(seen.values())


def _read_locks(using: str, pattern: str | None, scan: bool) -> list[LockInfo]:
    prefix = get_settings(using).key_prefix
    with _asking(pattern or "*", using) as server:
        now, reports = server.read_all_reports()
        builder = Builder(using, now, [*reports, _local_report(now)])
        told = builder.keys()
        states = server.read_states(_matching(told, prefix, pattern))
        if scan:
            found = server.read_states(_matching(server.scan_keys(prefix) - told, prefix, pattern))
            states |= {key: state for key, state in found.items() if state.has_lock_owners}
        return builder.infos(states)


def _matching(keys: Iterable[str], prefix: str, pattern: str | None) -> list[str]:
    matches = re.compile(translate(pattern or "*")).match
    return sorted(key for key in keys if matches(key.removeprefix(prefix)))


def _local_report(now: float) -> reading.Report:
    """This process's own report, which is true at once."""
    return reading.parse_report(client_id(), now, local_report(now - time.monotonic()))


@contextmanager
def _asking(name: str, using: str) -> Iterator[Server]:
    try:
        yield source(using, name)
    except LockUnavailableError:
        raise
    except SERVER_ERRORS as error:
        raise unavailable(name, error) from error


def _describe(lock: BaseLock) -> LockInfo | None:
    info = lock_info(lock.name, lock.using)
    return info and replace(info, kind=info.kind or lock.kind)


def _holder_text(lock: LockHooks) -> str | None:
    """Who holds a lock, for an error message: one report is read, not all."""
    with suppress(LockUnavailableError), _asking(lock.name, lock.using) as server:
        states = server.read_states([lock.key])
        processes = {owner[:CLIENT_LENGTH] for state in states.values() for owner in state.holds}
        now, reports = server.read_reports(processes)
        for info in Builder(lock.using, now, [*reports, _local_report(now)]).infos(states):
            return str(info.holder)
    return None


set_inspector(_describe, _holder_text)
