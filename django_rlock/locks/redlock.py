"""RedLock: a lock that a majority of independent servers holds, so that none of them is needed."""

from __future__ import annotations

import math
import random
from typing import Any

from django_rlock import keys, scripts
from django_rlock.drivers.base import ScriptCall
from django_rlock.drivers.quorum_calls import (
    Acquire,
    AcquireAgain,
    AskState,
    Bump,
    ForceRelease,
    Release,
    Renew,
    Seed,
)
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.fenced import TokenLock
from django_rlock.settings import QUORUM_KIND, SHORTEST_LEASES

ROUNDING = 0.002
"""Taken off the lease beside the clocks' drift, in seconds: servers count whole milliseconds."""
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5


class RedLock(TokenLock):
    """A re-entrant lock over the independent servers of an alias with ``NODES``, with a fencing token.

    A majority of them must grant it, so it works while a minority is down, paused or cut off. It counts as held for its
    lease, less CLOCK_DRIFT of it and 2 ms, from before the first server was asked; the watchdog has it renewed by a
    majority. ``suspect`` tells that renewals fail while it still runs::

        with rlock("invoice:7", using="quorum") as lock:
            lock.token

    ``fencing=False`` saves acquire's second round trip, and the lock has no token then.

    What holds: no two owners are inside at once, as long as the servers share no fate, their clocks and the client's
    run at rates that differ by less than CLOCK_DRIFT allows, and a server that forgot its locks gets no votes for
    QUARANTINE seconds. Tokens rise from owner to owner even where that fails, while the servers keep their counters;
    one that loses its counter goes on from its clock. ValueError for a lease longer than QUARANTINE, or shorter than
    twenty times NODE_TIMEOUT, and for acquiring with ``owner=``: each attempt needs a new name, so one can only be used
    to release or extend a hold.

    State on each server: as FencedLock's, and the sorted set ``rlock_tombstones:{key}`` of attempts that were given up.
    The algorithm is Redis's Redlock (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/).
    """

    __slots__ = ("fencing",)

    kind = QUORUM_KIND
    fresh_names = True

    def __init__(self, name: str, *, fencing: bool = True, **options: Any) -> None:
        super().__init__(name, **options)
        self.fencing = fencing

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        self._check_lease(lease)
        key, token, tombstones, _ = keys.redlock_keys(self.key)
        kept = 0 if self.settings.fence_ttl is None else milliseconds(self.settings.fence_ttl)
        script, all_keys = scripts.REDLOCK_ACQUIRE, (key, token, tombstones)
        args = (owner, count, milliseconds(lease), kept)
        if count > 1:
            return AcquireAgain(self.name, script, all_keys, args, lease=lease)
        if self.owner == owner:
            raise ValueError(f"RedLock {self.name!r} is acquired under a new name each time; it takes no owner=.")
        return Acquire(
            self.name,
            script,
            all_keys,
            args,
            lease=lease,
            valid_for=lease - self.drift(lease),
            bump=Bump(self.name, scripts.REDLOCK_BUMP, (key, token), (owner, 0, kept)) if self.fencing else None,
            undo=self.leave_call(owner, lease),
        )

    def release_call(self, owner: str, left: int, lease: float) -> Release:
        undo = None if left else self.leave_call(owner, lease)
        return self._release(owner, left, lease, undo)

    def leave_call(self, owner: str, lease: float | None = None) -> Release:
        return self._release(owner, 0, lease or self.settings.watchdog_timeout, None)

    def _release(self, owner: str, left: int, lease: float, undo: Release | None) -> Release:
        key, _, tombstones, channel = keys.redlock_keys(self.key)
        refused = milliseconds(2 * self.settings.node_timeout)
        args = (owner, left, milliseconds(lease), refused)
        return Release(self.name, scripts.REDLOCK_RELEASE, (key, channel, tombstones), args, lease=lease, undo=undo)

    def renew_call(self, owner: str, lease: float) -> Renew:
        return self._renew(owner, lease, 1)

    def extend_call(self, owner: str, lease: float) -> Renew:
        self._check_lease(lease)
        return self._renew(owner, lease, 0)

    def _renew(self, owner: str, lease: float, keep_longer: int) -> Renew:
        key, _, tombstones, _ = keys.redlock_keys(self.key)
        lease_ms = milliseconds(lease)
        seed = Seed(self.name, scripts.REDLOCK_SEED, (key, tombstones), (owner, 1, lease_ms))
        args = (owner, lease_ms, keep_longer)
        undo = self.leave_call(owner, lease)
        return Renew(self.name, scripts.REDLOCK_RENEW, (key,), args, lease=lease, undo=undo, seed=seed)

    def state_call(self, owner: str) -> AskState:
        return AskState(self.name, scripts.LOCK_STATE, (self.key,), (owner,))

    def force_release_call(self, owner: str | None) -> ForceRelease:
        plain = super().force_release_call(owner)
        return ForceRelease(self.name, plain.script, plain.keys, plain.args)

    def wake_up(self, owner: str) -> None:
        return None

    def pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        # Jitter, so that those who split the votes do not meet again.
        grown = min(_SHORTEST_PAUSE * 2 ** min(tries - 1, 32), _LONGEST_PAUSE)
        return grown * random.uniform(0.5, 1.5), math.inf  # noqa: S311

    def drift(self, lease: float) -> float:
        return lease * self.settings.clock_drift + ROUNDING

    def _check_lease(self, lease: float) -> None:
        options = self.settings
        shortest = SHORTEST_LEASES * options.node_timeout
        if lease < shortest:
            raise ValueError(
                f"The lease of RedLock {self.name!r} must be at least {shortest:g} s, {SHORTEST_LEASES} times "
                f"NODE_TIMEOUT, so that it outlasts asking the nodes; not {lease:g} s."
            )
        if options.longest_lease is not None and lease > options.longest_lease:
            raise ValueError(
                f"The lease of RedLock {self.name!r} must be at most {options.longest_lease:g} s, for so long a node "
                f"that has restarted gets no votes; not {lease:g} s. Raise QUARANTINE, or let the watchdog renew it."
            )
