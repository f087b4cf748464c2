"""Redisson's spin lock: waiters poll with growing pauses, and need no listening connection."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

from django_rlock.locks.options import LockOptions
from django_rlock.locks.plain import Plain, RLock

Backoff = Callable[[int], float]
"""Returns how long to sleep after a number of tries, in seconds."""
SHORTEST_PAUSE = 0.0001
"""The pause used for a backoff of 0, in seconds."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Pauses in seconds that grow by ``multiplier`` up to ``maximum``, with some jitter below that."""

    initial: float = 0.001
    maximum: float = 0.128
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.initial <= self.maximum < math.inf and 1 <= self.multiplier <= 1000):
            raise ValueError("A backoff needs 0 < initial <= maximum, in seconds, and a multiplier of 1 to 1000.")

    def __call__(self, tries: int) -> float:
        grown = self.initial * self.multiplier ** min(tries - 1, 64)
        jitter = random.uniform(0, 0.001 * (tries - 1))  # noqa: S311 - it keeps waiters from polling in step
        return min(self.maximum, grown + jitter)


@dataclass(frozen=True, slots=True)
class ConstantBackoff:
    """The same pause after each try, in seconds."""

    delay: float = 0.064

    def __post_init__(self) -> None:
        if not 0 < self.delay < math.inf:
            raise ValueError("A backoff needs a delay above 0, in seconds.")

    def __call__(self, tries: int) -> float:
        return self.delay


class Spin(Plain["SpinLock"]):
    """Nothing wakes a waiter: it asks again, after pauses that the lock's ``backoff`` chooses."""

    hears_forced = False

    def channel(self, lock: SpinLock) -> None:
        return None

    def pauses(self, lock: SpinLock, left_ms: int, tries: int) -> tuple[float, float]:
        return max(lock.backoff(tries), SHORTEST_PAUSE), math.inf


class SpinLock(RLock):
    """An RLock whose waiters poll, for servers and proxies without pub/sub, and for waits of a few milliseconds.

    ``backoff`` returns how long to sleep after a number of tries, in seconds::

        with SpinLock("stock:42", backoff=ConstantBackoff(0.01)):
            ...

    State in Redis is that of RLock. Unlike Redisson's, its release wakes the waiters of an RLock of the same name.
    """

    __slots__ = ("backoff",)

    kind = "spin"
    _kind = Spin()

    def __init__(self, name: str, *, backoff: Backoff = ExponentialBackoff(), **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        if not callable(backoff):
            raise TypeError(f"backoff must be a function of the number of tries, not {backoff!r}.")
        self.backoff = backoff
