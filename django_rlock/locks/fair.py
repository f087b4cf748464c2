"""The fair lock: a queue in Redis, and a release that hands the lock to the first waiter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from django_rlock._core.clock import monotonic
from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import ScriptCall, Template
from django_rlock._transport.identity import client_id, new_number
from django_rlock._transport.registry import when_unclaimed
from django_rlock._transport.servers import is_cluster
from django_rlock._transport.worker import clean_up
from django_rlock.locks.attempt import ACCEPTING, DECLINED
from django_rlock.locks.base import BaseLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import JAVA_POLL, PLAIN, Candidate, Kind, call_for
from django_rlock.locks.options import milliseconds
from django_rlock.settings import HEARTBEAT_SHARE, get_settings, settings_of

UNASKED = 600.0
"""How long a waiter sleeps before it tries again unwoken, in seconds; heartbeats find a lost ticket or wake-up
earlier."""


@lru_cache(maxsize=keys.MOST_KEPT)
def _acquiring(count: int, lease: float, claim: float, alive: float) -> Template:
    alive_ms = milliseconds(alive) if alive else 0  # milliseconds() returns 1 at least
    args = count, milliseconds(lease), milliseconds(claim), alive_ms
    return Template(scripts.FAIR_ACQUIRE, args)


@lru_cache(maxsize=keys.MOST_KEPT)
def _releasing(left: int, lease: float, claim: float) -> Template:
    args = left, milliseconds(lease), milliseconds(claim)
    return Template(scripts.FAIR_RELEASE, args)


class Fair(Kind["FairLock"]):
    """A queue of tickets. A release grants the lock to the first waiter that is alive, and wakes only that one."""

    joins = PLAIN
    heartbeats_together = 100
    java_poll = JAVA_POLL

    def begin(self, candidate: Candidate, now: float) -> None:
        # A queue's member begins with the client id, which a name chosen by the caller lacks. The number keeps late
        # commands of an earlier attempt under the same name off this one.
        if candidate.owner.is_named:
            candidate.asker = f"{client_id()}/{new_number()}/{candidate.owner_id}"

    def acquire(
        self, lock: FairLock, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        options = settings_of(lock.using)
        # A try that does not wait draws no ticket: a grant to it would cost the next waiter a claim.
        key, alive = options.key_prefix + lock.name, options.waiter_alive_time if waiting else 0
        return ScriptCall(lock.name, _acquiring(count, lease, options.claim_time, alive), key, asker)

    def release(self, lock: FairLock, owner_id: str, left: int, lease: float) -> ScriptCall:
        options = settings_of(lock.using)
        key = options.key_prefix + lock.name
        return ScriptCall(lock.name, _releasing(left, lease, options.claim_time), key, owner_id)

    def leave(self, lock: FairLock, asker: str) -> ScriptCall:
        claim = milliseconds(settings_of(lock.using).claim_time)
        return call_for(lock, scripts.FAIR_LEAVE, asker, claim)

    def decline(self, lock: FairLock, asker: str) -> ScriptCall:
        """Hands on a grant that nobody waits for, unless it has been confirmed."""
        claim = milliseconds(settings_of(lock.using).claim_time)
        return call_for(lock, scripts.FAIR_DECLINE, asker, claim)

    withdraw = leave  # a named owner asks as a separate member, which holds nothing

    def channel(self, lock: FairLock) -> str:
        # One for all locks of the process, since a grant names its waiter. A cluster needs the slot of each lock.
        return keys.wake_channel(client_id(), lock.key if is_cluster(lock.using) else None)

    def token(self, lock: FairLock, asker: str) -> str:
        return f"{asker} {lock.key}"

    def pauses(self, lock: FairLock, left_ms: int, tries: int) -> tuple[float, float]:
        # The process's heartbeat watches the holder's lease for all its waiters, so they can sleep until they are
        # woken.
        heartbeat = settings_of(lock.using).waiter_alive_time * HEARTBEAT_SHARE
        return UNASKED, min(heartbeat, left_ms / 1000 + 0.005) if left_ms >= 0 else heartbeat

    def outside_channels(self, lock: FairLock) -> tuple[str, ...]:
        # A Java client does not know the queue, so it publishes its release there only.
        return keys.redisson_channel(lock.key), keys.java_queue_channel(lock.key)

    def heartbeat(self, waiting: Sequence[tuple[FairLock, str]], pause: float) -> ScriptCall:
        all_keys = keys.by_sort([keys.fair_heartbeat_keys(lock.key) for lock, _ in waiting])
        first = waiting[0][0]
        options = settings_of(first.using)
        alive = milliseconds(max(options.waiter_alive_time, pause / HEARTBEAT_SHARE))
        claim, askers = milliseconds(options.claim_time), [asker for _, asker in waiting]
        return call_for(first, scripts.FAIR_HEARTBEAT, claim, alive, *askers, all_keys=all_keys)


class FairLock(BaseLock):
    """A re-entrant lock that serves its waiters first come, first served; the default kind::

        with FairLock("stock:42", wait_time=3):
            ...

    A release grants the lock to the owner that has waited longest and wakes only that one; no newcomer can overtake it.
    A waiter whose process died is skipped after ``CLAIM_TIME`` at the latest. The lock excludes Redisson's plain lock
    of the same name, whose clients do not queue.
    """

    __slots__ = ()

    kind = "fair"
    _kind = Fair()


# --- grants that nobody waits for -------------------------------------------------------------------------------------

# After a failover to a replica that lagged, or a restart with older data, the queue has tickets again whose owners have
# had their turn since. Their process is alive, so each ticket is granted the lock for the claim time; the process
# declines the grant at once.


def _decline(using: str, token: str) -> None:
    """Decline the grant that a message has announced, if no call of this process can still use it."""
    options = get_settings(using)
    asker, found, name = token.partition(f" {options.key_prefix}")
    if not found or not asker.startswith(client_id()):
        return
    DECLINED.append(asker)
    if any(each.asker == asker for each in ACCEPTING) or HOLDS.has(name, asker):
        return
    # An owner that took the lock by its own command, before the message of its grant came, has nothing to decline.
    lock = FairLock(name, using=using)
    clean_up(using, lock._kind.decline(lock, asker), monotonic() + options.claim_time)


when_unclaimed(_decline)
