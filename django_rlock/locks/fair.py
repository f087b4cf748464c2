"""The fair lock: a queue in Redis, and a release that hands the lock to the first waiter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Self

from django_rlock import keys, scripts
from django_rlock.connections import is_cluster
from django_rlock.drivers.calls import Prepared, ScriptCall
from django_rlock.drivers.identity import client_id, new_number
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.hooks import Waitable
from django_rlock.settings import BEAT_SHARE, settings_of

UNASKED = 600.0
"""How long a waiter sleeps before it tries again unwoken, in seconds; beats find a lost ticket or wake-up earlier."""


@lru_cache(maxsize=keys.MOST_KEPT)
def _acquiring(key: str, count: int, lease: float, claim: float, alive: float) -> Prepared:
    alive_ms = milliseconds(alive) if alive else 0  # milliseconds() returns 1 at least
    return Prepared(
        scripts.FAIR_ACQUIRE, keys.fair_keys(key), (count, milliseconds(lease), milliseconds(claim), alive_ms)
    )


@lru_cache(maxsize=keys.MOST_KEPT)
def _releasing(key: str, left: int, lease: float, claim: float) -> Prepared:
    args = left, milliseconds(lease), milliseconds(claim)
    return Prepared(scripts.FAIR_RELEASE, keys.fair_release_keys(key), args)


class FairLock(BaseLock):
    """A re-entrant lock that serves its waiters first come, first served; the default kind.

    A release grants the lock to the owner that has waited longest and wakes only that one. So a hand-over costs the
    same however many wait, and no newcomer can overtake them. A waiter whose process died is skipped after
    ``CLAIM_TIME`` at the latest. It excludes Redisson's plain lock of the same name, whose clients do not queue::

        with FairLock("stock:42", wait_time=3):
            ...

    State in Redis: the hash owner → holds at the lock's key, as RLock's; the sorted sets ``rlock_queue:{key}`` (owner →
    ticket) and ``rlock_alive:{key}`` (client → epoch ms until which its waiters count as alive).
    """

    __slots__ = ()

    kind = "fair"
    _beats_together = 100
    _joins = True

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        options = settings_of(self.using)
        key, alive = options.key_prefix + self.name, options.waiter_alive_time if waiting else 0
        return ScriptCall(self.name, _acquiring(key, count, lease, options.claim_time, alive), self._member(wire_name))

    def _release_call(self, wire_name: str, left: int, lease: float) -> ScriptCall:
        options = settings_of(self.using)
        key = options.key_prefix + self.name
        return ScriptCall(self.name, _releasing(key, left, lease, options.claim_time), wire_name)

    def _leave_call(self, wire_name: str) -> ScriptCall:
        claim = milliseconds(self._settings.claim_time)
        return self._call(scripts.FAIR_LEAVE, keys.fair_release_keys(self.key), wire_name, claim)

    def _withdraw_call(self, wire_name: str) -> ScriptCall:
        return self._leave_call(self._member(wire_name))

    def _for_one_attempt(self) -> Self:
        lock = copy(self)
        lock._ticket = new_number()
        return lock

    def _channel(self) -> str:
        return keys.wake_channel(client_id(), self.key if is_cluster(self.using) else None)

    def _token(self, wire_name: str) -> str:
        return f"{self._member(wire_name)} {self.key}"

    def _pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        # The process's beat watches the holder's lease for all its waiters, so they can sleep until they are woken.
        beat = self._settings.waiter_alive_time * BEAT_SHARE
        return UNASKED, min(beat, left_ms / 1000 + 0.005) if left_ms >= 0 else beat

    def _beat_call(self, waiting: Sequence[tuple[Waitable, str]], alive: float) -> ScriptCall:
        # First the state keys of all locks, then the queues of all, and so on.
        by_sort = zip(*[keys.fair_keys(lock.key) for lock, _ in waiting], strict=True)
        all_keys = tuple(itertools.chain.from_iterable(by_sort))
        members = [lock._member(owner) for lock, owner in waiting]  # type: ignore[attr-defined]
        claim = milliseconds(self._settings.claim_time)
        return self._call(scripts.FAIR_BEAT, all_keys, claim, milliseconds(alive), *members)

    def _outside_channel(self) -> str:
        return keys.redisson_channel(self.key)

    def _member(self, wire_name: str) -> str:
        """The owner's member in the queue, which begins with the client id. A name chosen by the caller lacks that, so
        the client id and the number of the attempt are put before it.
        """
        return wire_name if self._ticket is None else f"{client_id()}/{self._ticket}/{wire_name}"
