"""Locks of ours beside those of Redisson's that they are to equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from django_rlock import FairLock, RLock
from django_rlock.locks import BaseLock
from tests.interop import redisson
from tests.interop.redisson import Target


class Pair(NamedTuple):
    """``channel`` is where Redisson tells a release, given the name in its braces.

    ``listens``: our waiters listen there as well, while those of a fair lock learn from their process's next beat.
    """

    ours: Callable[..., BaseLock]
    theirs: Callable[[str], Target]
    channel: str = "redisson_lock__channel"
    listens: bool = True


PAIRS = {
    "plain": Pair(RLock, redisson.lock),
    "fair": Pair(FairLock, redisson.lock, listens=False),
}


def channel(prefix: str, name: str) -> str:
    """Redisson's name of a helper of ``name``."""
    return f"{prefix}:{name}" if "{" in name else f"{prefix}:{{{name}}}"
