"""RedLock: a lock held on a majority of independent servers, so that no single server is indispensable."""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import ScriptCall, backoff
from django_rlock._transport.quorum.calls import (
    Acquire,
    AcquireAgain,
    AskHolders,
    AskState,
    ForceRelease,
    Keep,
    Release,
    Renew,
    Seed,
)
from django_rlock.locks.base import BaseLock
from django_rlock.locks.kinds import SETTLE, Kind, settled_keys
from django_rlock.locks.options import LockOptions, milliseconds
from django_rlock.locks.ownership import fencing_token
from django_rlock.settings import QUORUM_KIND, SHORTEST_LEASES, settings_of

ROUNDING = 0.002
"""Subtracted from the lease in addition to the clocks' drift, in seconds: servers count whole milliseconds."""
_BACKOFF = 0.005, 0.5


class Majority(Kind["RedLock"]):
    """Each call goes to all nodes, and combines their votes. Waiters are not woken."""

    drifts = True
    fresh_names = True
    votes = {
        scripts.LOCK_STATE: AskState,
        scripts.LOCK_HOLDERS: AskHolders,
        scripts.LOCK_KEEP: Keep,
        scripts.LOCK_FORCE_RELEASE: ForceRelease,
        scripts.REQUEST_RETIRE: ForceRelease,
    }

    def acquire(
        self, lock: RedLock, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        self.check_lease(lock, lease)
        options = settings_of(lock.using)
        kept = 0 if options.fence_ttl is None else milliseconds(options.fence_ttl)
        script = scripts.REDLOCK_ACQUIRE
        all_keys = lock.key, keys.token_key(lock.key), keys.tombstone_key(lock.key, asker), *_marks(lock)
        args = (asker, count, milliseconds(lease), kept)
        if count > 1:
            return AcquireAgain(lock.name, script, all_keys, args, lease=lease)
        if lock.owner == asker:
            raise ValueError(f"RedLock {lock.name!r} is acquired under a new name each time; it takes no owner=.")
        return Acquire(
            lock.name,
            script,
            all_keys,
            args,
            lease=lease,
            valid_for=lease - self.drift(lock, lease),
            fencing=lock.fencing,
            undo=partial(self.leave, lock, asker, lease),
        )

    def release(self, lock: RedLock, owner_id: str, left: int, lease: float) -> Release:
        all_keys = lock.key, keys.redisson_channel(lock.key), keys.tombstone_key(lock.key, owner_id)
        refused = milliseconds(2 * settings_of(lock.using).node_timeout)
        args = (owner_id, left, milliseconds(lease), refused)
        return Release(lock.name, scripts.REDLOCK_RELEASE, all_keys, args, lease=lease)

    def leave(self, lock: RedLock, asker: str, lease: float | None = None) -> Release:
        return self.release(lock, asker, 0, lease or settings_of(lock.using).watchdog_timeout)

    def lease(self, lock: RedLock, owner_id: str, lease: float, mode: int) -> Renew:
        marks = _marks(lock)
        return Renew(
            lock.name,
            scripts.REDLOCK_RENEW,
            (lock.key, *(marks or (lock.key,)), *settled_keys(lock, owner_id, mode)),
            (owner_id, milliseconds(lease), mode, len(marks)),
            lease=lease,
            undo=partial(self.leave, lock, owner_id, lease),
            # A settling call gives no new lease, and may come after a forced release.
            seed=None if mode == SETTLE else partial(self._seed, lock, owner_id, lease),
        )

    def _seed(self, lock: RedLock, owner_id: str, lease: float, holds: int) -> Seed:
        all_keys = lock.key, keys.tombstone_key(lock.key, owner_id)
        return Seed(lock.name, scripts.REDLOCK_SEED, all_keys, (owner_id, holds, milliseconds(lease)))

    def check_keep(self, lock: RedLock, seconds: float) -> None:
        longest = settings_of(lock.using).longest_lease
        if longest is not None and seconds > longest:
            raise ValueError(
                f"RedLock {lock.name!r} can be kept for at most {longest:g} s after its release, because a restarted "
                f"node has no vote for that long; not {seconds:g} s. Raise QUARANTINE, or use another alias."
            )

    def channel(self, lock: RedLock) -> None:
        return None

    def pauses(self, lock: RedLock, left_ms: int, tries: int) -> tuple[float, float]:
        # Jitter, so that clients that have split the votes do not collide again.
        return backoff(tries, *_BACKOFF), math.inf

    def drift(self, lock: RedLock, lease: float) -> float:
        return lease * settings_of(lock.using).clock_drift + ROUNDING

    def check_lease(self, lock: RedLock, lease: float) -> None:
        options = settings_of(lock.using)
        shortest = SHORTEST_LEASES * options.node_timeout
        if lease < shortest:
            raise ValueError(
                f"The lease of RedLock {lock.name!r} must be at least {shortest:g} s, {SHORTEST_LEASES} times "
                f"NODE_TIMEOUT, so that it outlasts the calls to the nodes; not {lease:g} s."
            )
        if options.longest_lease is not None and lease > options.longest_lease:
            raise ValueError(
                f"The lease of RedLock {lock.name!r} must be at most {options.longest_lease:g} s, because a restarted "
                f"node has no vote for that long; not {lease:g} s. Raise QUARANTINE, or let the watchdog renew it."
            )


def _marks(lock: RedLock) -> tuple[str, ...]:
    """The key of the mark of each node's data; none where nodes forget nothing."""
    options = settings_of(lock.using)
    return (keys.voter_key(options.longest_lease),) if options.nodes and options.longest_lease else ()


class RedLock(BaseLock):
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

    State on each server: as FencedLock's, and ``rlock_tombstone:{key}:owner`` for a short time after each release.
    The algorithm is Redis's Redlock (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/).
    """

    __slots__ = ("fencing",)

    kind = QUORUM_KIND
    _kind = Majority()
    token = fencing_token

    def __init__(self, name: str, *, fencing: bool = True, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.fencing = fencing
