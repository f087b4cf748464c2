"""Locks of ours beside locks of Redisson's, of which one at a time is to be held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django_rlock import FairLock, FencedLock, ReadWriteLock, RLock, SpinLock
from django_rlock.locks import BaseLock
from tests.interop import redisson
from tests.interop.redisson import Target


class Pair(NamedTuple):
    """``channel`` is where Redisson tells a release, given the name in its braces.

    ``listens``: our waiters listen there as well, all the time; for those of a fair lock see ``test_locks``.
    ``tells``: a release of Redisson's does tell, which its spin lock's does not.
    ``kept`` is what a release leaves behind, without the name in its braces.
    """

    ours: Callable[..., BaseLock]
    theirs: Callable[[str], Target]
    channel: str = "redisson_lock__channel"
    listens: bool = True
    tells: bool = True
    kept: tuple[str, ...] = ()


def _read(name: str, **options: Any) -> BaseLock:
    return ReadWriteLock(name, **options).read_lock


def _write(name: str, **options: Any) -> BaseLock:
    return ReadWriteLock(name, **options).write_lock


ALIKE = {
    "plain": Pair(RLock, redisson.lock),
    "fair": Pair(FairLock, redisson.lock, listens=False),
    "spin": Pair(SpinLock, redisson.spin_lock, listens=False, tells=False),
    "fenced": Pair(FencedLock, redisson.fenced_lock, kept=("redisson_lock_token",)),
    "write": Pair(_write, redisson.write_lock, "redisson_rwlock"),
}
MIXED = {
    "read-write": Pair(_read, redisson.write_lock, "redisson_rwlock"),
    "write-read": Pair(_write, redisson.read_lock, "redisson_rwlock"),
}
PAIRS = ALIKE | MIXED
"""All exclude each other; those that are alike can force each other as well."""


def helper(prefix: str, name: str) -> str:
    """What Redisson calls a channel or a key beside the lock's own."""
    return f"{prefix}:{name}" if "{" in name else f"{prefix}:{{{name}}}"
