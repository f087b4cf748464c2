"""The fair lock: a queue in Redis, and a release that hands the lock to its head."""

from __future__ import annotations

from django_rlock import keys, scripts
from django_rlock.connections import is_cluster
from django_rlock.drivers.base import ScriptCall
from django_rlock.drivers.identity import client_id
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.hooks import REPOLL
from django_rlock.settings import BEAT_SHARE


class FairLock(BaseLock):
    """A re-entrant lock that serves its waiters first come, first served; the default kind.

    A release grants the lock to the longest waiting owner and wakes that one alone, so a hand-over costs the same
    however many wait, and no newcomer can barge in. A waiter whose process died is skipped after ``CLAIM_TIME`` at the
    latest. Excludes Redisson's plain lock of the same name, which does not queue::

        with FairLock("stock:42", wait_time=3):
            ...

    State in Redis: the hash owner → holds at the lock's key, as RLock's; the sorted sets ``rlock_queue:{key}`` (owner →
    ticket) and ``rlock_alive:{key}`` (client → epoch ms until which its waiters count as alive).
    """

    __slots__ = ()

    kind = "fair"
    joins = True

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        options = self.settings
        alive = milliseconds(options.waiter_alive_time) if waiting else 0
        return self._call(
            scripts.FAIR_ACQUIRE,
            self._keys()[:3],
            _member(owner),
            count,
            milliseconds(lease),
            milliseconds(options.claim_time),
            alive,
        )

    def release_call(self, owner: str, left: int, lease: float) -> ScriptCall:
        return self._call(
            scripts.FAIR_RELEASE,
            self._keys(),
            owner,
            left,
            milliseconds(lease),
            milliseconds(self.settings.claim_time),
        )

    def leave_call(self, owner: str) -> ScriptCall:
        return self._call(scripts.FAIR_LEAVE, self._keys(), _member(owner), milliseconds(self.settings.claim_time))

    def wake_up(self, owner: str) -> tuple[str, str | None]:
        key = self.key
        channel = keys.wake_channel(client_id(), key if is_cluster(self.using) else None)
        return channel, f"{_member(owner)} {key}"

    def pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        # The process's beat watches the holder's lease for all its waiters, which sleep until they are woken.
        beat = self.settings.waiter_alive_time * BEAT_SHARE
        return REPOLL, min(beat, left_ms / 1000 + 0.005) if left_ms >= 0 else beat

    def beat_call(self, owner: str) -> ScriptCall:
        options = self.settings
        return self._call(
            scripts.FAIR_BEAT,
            self._keys()[:3],
            _member(owner),
            milliseconds(options.claim_time),
            milliseconds(options.waiter_alive_time),
        )

    def _keys(self) -> tuple[str, str, str, str]:
        return keys.fair_keys(self.key)


def _member(owner: str) -> str:
    """How an owner stands in the queue: with its process in front, which an owner named by the caller lacks."""
    client = client_id()
    return owner if owner.startswith(client) else f"{client}/{owner}"
