"""Locks of ours beside those of Redisson's that they are to equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from django_rlock import FairLock, FencedLock, RLock
from django_rlock.locks import BaseLock
from tests.interop import redisson
from tests.interop.redisson import Target


class Pair(NamedTuple):
    """``channel`` is where Redisson tells a release, given the name in its braces.

    ``listens``: our waiters listen there as well, while those of a fair lock learn from their process's next beat.
    ``kept`` is what a release leaves behind, without the name in its braces.
    """

    ours: Callable[..., BaseLock]
    theirs: Callable[[str], Target]
    channel: str = "redisson_lock__channel"
    listens: bool = True
    kept: tuple[str, ...] = ()


PAIRS = {
    "plain": Pair(RLock, redisson.lock),
    "fair": Pair(FairLock, redisson.lock, listens=False),
    "fenced": Pair(FencedLock, redisson.fenced_lock, kept=("redisson_lock_token",)),
}


def helper(prefix: str, name: str) -> str:
    """What Redisson calls a channel or a key beside the lock's own."""
    return f"{prefix}:{name}" if "{" in name else f"{prefix}:{{{name}}}"
