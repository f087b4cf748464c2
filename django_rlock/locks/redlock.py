"""RedLock: a lock held on a majority of independent servers, so that no single server is indispensable."""

from __future__ import annotations

import math
from typing import Any

from django_rlock import keys, scripts
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.quorum.calls import (
    Acquire,
    AcquireAgain,
    AskHolders,
    AskState,
    Bump,
    ForceRelease,
    Release,
    Renew,
    Seed,
)
from django_rlock.drivers.retrying import backoff
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.fenced import TokenLock
from django_rlock.locks.hooks import SETTLE
from django_rlock.settings import QUORUM_KIND, SHORTEST_LEASES

ROUNDING = 0.002
"""Subtracted from the lease in addition to the clocks' drift, in seconds: servers count whole milliseconds."""
_BACKOFF = 0.005, 0.5


class RedLock(TokenLock):
    """A re-entrant lock over the independent servers of an alias with ``NODES``, with a fencing token.

    A majority of them must grant it, so it works while a minority is down, paused or cut off. It counts as held for its
    lease, less CLOCK_DRIFT of it and 2 ms, from before the first command was sent. The watchdog renews it on a
    majority. ``suspect`` says that renewals fail while the lease still runs::

        with rlock("invoice:7", using="quorum") as lock:
            lock.token

    Acquire takes one round trip. A second one raises the nodes' counters if the nodes did not accept the proposed
    token. With ``fencing=False`` it is never needed, and the lock has no token.

    Guaranteed: no two owners hold the lock at once, as long as the servers fail independently, their clocks and the
    client's run at rates that differ by less than CLOCK_DRIFT allows, and a server that forgot its locks has no vote
    for QUARANTINE seconds. Tokens rise from owner to owner even if that fails, while the servers keep their counters; a
    server that loses its counter continues from its clock. Raises ValueError for a lease longer than QUARANTINE or
    shorter than twenty times NODE_TIMEOUT, and for acquiring with ``owner=``: each attempt needs a new name, so
    ``owner=`` can only be used to release or extend a hold.

    State on each server: as FencedLock's, and the sorted set ``rlock_tombstones:{key}`` of abandoned attempts.
    The algorithm is Redis's Redlock (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/).
    """

    __slots__ = ("fencing",)

    kind = QUORUM_KIND
    _fresh_names = True

    def __init__(self, name: str, *, fencing: bool = True, **options: Any) -> None:
        super().__init__(name, **options)
        self.fencing = fencing

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        self._check_lease(lease)
        key, token, tombstones, _ = keys.redlock_keys(self.key)
        kept = 0 if self._settings.fence_ttl is None else milliseconds(self._settings.fence_ttl)
        script, all_keys = scripts.REDLOCK_ACQUIRE, (key, token, tombstones)
        args = (wire_name, count, milliseconds(lease), kept)
        if count > 1:
            return AcquireAgain(self.name, script, all_keys, args, lease=lease)
        if self.owner == wire_name:
            raise ValueError(f"RedLock {self.name!r} is acquired under a new name each time; it takes no owner=.")
        return Acquire(
            self.name,
            script,
            all_keys,
            args,
            lease=lease,
            valid_for=lease - self._drift(lease),
            bump=Bump(self.name, scripts.REDLOCK_BUMP, (key, token), (wire_name, 0, kept)) if self.fencing else None,
            undo=self._leave_call(wire_name, lease),
        )

    def _release_call(self, wire_name: str, left: int, lease: float) -> Release:
        undo = None if left else self._leave_call(wire_name, lease)
        return self._free_call(wire_name, left, lease, undo)

    def _leave_call(self, wire_name: str, lease: float | None = None) -> Release:
        return self._free_call(wire_name, 0, lease or self._settings.watchdog_timeout, None)

    def _free_call(self, wire_name: str, left: int, lease: float, undo: Release | None) -> Release:
        key, _, tombstones, channel = keys.redlock_keys(self.key)
        refused = milliseconds(2 * self._settings.node_timeout)
        args = (wire_name, left, milliseconds(lease), refused)
        return Release(self.name, scripts.REDLOCK_RELEASE, (key, channel, tombstones), args, lease=lease, undo=undo)

    def _extend_call(self, wire_name: str, lease: float, keep_longer: bool = False) -> ScriptCall:
        self._check_lease(lease)
        return super()._extend_call(wire_name, lease, keep_longer)

    def _lease_call(self, wire_name: str, lease: float, mode: int) -> Renew:
        key, _, tombstones, _ = keys.redlock_keys(self.key)
        lease_ms = milliseconds(lease)
        seed = None
        if mode != SETTLE:  # a settling call gives no new lease, and may come after a forced release
            seed = Seed(self.name, scripts.REDLOCK_SEED, (key, tombstones), (wire_name, 1, lease_ms))
        args = (wire_name, lease_ms, mode)
        undo = self._leave_call(wire_name, lease)
        all_keys = key, *self._order(wire_name, mode)
        return Renew(self.name, scripts.REDLOCK_RENEW, all_keys, args, lease=lease, undo=undo, seed=seed)

    def _state_call(self, wire_name: str) -> AskState:
        return AskState(self.name, scripts.LOCK_STATE, (self.key,), (wire_name,))

    def _holders_call(self) -> AskHolders:
        return AskHolders(self.name, scripts.LOCK_HOLDERS, (self.key,), ("",))

    def _force_release_call(self, wire_name: str | None, request: str) -> ForceRelease:
        return _everywhere(super()._force_release_call(wire_name, request))

    def _retire_call(self, request: str | bytes) -> ForceRelease:
        return _everywhere(super()._retire_call(request))

    def _channel(self) -> None:
        return None

    def _pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        # Jitter, so that clients that have split the votes do not collide again.
        return backoff(tries, *_BACKOFF), math.inf

    def _drift(self, lease: float) -> float:
        return lease * self._settings.clock_drift + ROUNDING

    def _check_lease(self, lease: float) -> None:
        options = self._settings
        shortest = SHORTEST_LEASES * options.node_timeout
        if lease < shortest:
            raise ValueError(
                f"The lease of RedLock {self.name!r} must be at least {shortest:g} s, {SHORTEST_LEASES} times "
                f"NODE_TIMEOUT, so that it outlasts the calls to the nodes; not {lease:g} s."
            )
        if options.longest_lease is not None and lease > options.longest_lease:
            raise ValueError(
                f"The lease of RedLock {self.name!r} must be at most {options.longest_lease:g} s, because a restarted "
                f"node has no vote for that long; not {lease:g} s. Raise QUARANTINE, or let the watchdog renew it."
            )


def _everywhere(call: ScriptCall) -> ForceRelease:
    return ForceRelease(call.name, call.script, call.keys, call.args)
