"""Forced releases: the flow that frees a lock from any holder, and the watcher that notices forced releases."""

from __future__ import annotations

import logging
import math
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from django_rlock import signals
from django_rlock._core.callbacks import log
from django_rlock._core.clock import has_jumped, monotonic, wall_offset
from django_rlock._core.threads import snapshot
from django_rlock._redis.scripts import ABSENT, ENDLESS
from django_rlock._transport.calls import REMEMBERED, Driver, ScriptCall, run_sync
from django_rlock._transport.identity import Owner, new_request
from django_rlock._transport.listener import ListenerWaiter
from django_rlock._transport.registry import background_driver, listeners
from django_rlock._transport.worker import RETRY, BackgroundWorker, clean_up, worker
from django_rlock.locks.holds import HOLDS, NEWCOMERS
from django_rlock.locks.kinds import AbstractLock, Forced, force_release_call, forced_channel, retire_call
from django_rlock.locks.mutex import serialized
from django_rlock.locks.options import RELEASE_PATIENCE
from django_rlock.locks.places import PLACES
from django_rlock.locks.records import Hold
from django_rlock.locks.statistics import note_freed, operator
from django_rlock.locks.watchdog import (
    AT_ONCE,
    FORCED_RELEASES,
    FREED,
    Renewals,
    lose,
    note_loss,
    undo_late_copies,
    watch,
)
from django_rlock.settings import get_settings

logger = logging.getLogger("django_rlock.locks")
watchdog_logger = logging.getLogger("django_rlock.watchdog")


# --- the flow ---------------------------------------------------------------------------------------------------------


@serialized
async def free_by_force(lock: AbstractLock, driver: Driver, caller: Owner, owner: str | None, reason: str) -> bool:
    own = _forced_holds(lock, caller, owner, driver.now())
    renewed = [hold.renewed for hold in own]
    freed = False
    try:
        # Until the reply comes, the watchdog or another call may find the lock gone, and must not report a loss.
        _expect_the_end(own)
        request = new_request()
        by, why, _ = operator.get() or ("", reason, "")
        how = (f"{by} freed it by force" if by else "another owner freed it by force") + (f": {why}" if why else "")
        reply = await _run_forced(lock, driver, force_release_call(lock, owner, request, how), request)
        freed = bool(reply[1] == 1)
    finally:
        for hold, was_renewed in zip(own, renewed, strict=True):
            _note_forced(hold, freed, was_renewed)
    if freed:
        log(
            logger, logging.WARNING, "Lock %r (%r) was freed by force: %s",
            lock.name, lock.key, reason or "no reason given",
        )  # fmt: skip
        note_freed(lock, owner, reason, caller.caller_name)
        NEWCOMERS.counted(True)
        signals.lock_force_released.notify(lock, owner=owner, reason=reason)
    return freed


async def _run_forced(lock: AbstractLock, driver: Driver, call: ScriptCall, request: str) -> list[Any]:
    """Send a forced release and return its reply; no copy of it may free the next holder."""
    retire = retire_call(lock, request)
    until = driver.now() + RELEASE_PATIENCE
    try:
        reply = await driver.run(call, until)
        # A retired request stays remembered, so a copy that is still under way finds it executed.
        if call.sends > 1:
            await driver.run(retire, until)
    except BaseException:
        clean_up(lock.using, retire, driver.now() + REMEMBERED)
        raise
    return reply


def _forced_holds(lock: AbstractLock, caller: Owner, owner: str | None, now: float) -> list[Hold]:
    """The caller's own holds that the call frees: all, or those of an owner id. Holds that were lost before are
    left out, because their loss must still be reported.
    """
    # All scopes, unless the lock is one side of a read-write lock.
    scopes = (lock._kind.scope,) if lock._kind.scope else ("", "read", "write")
    holds = [hold for scope in scopes if (hold := HOLDS.get(lock, caller, scope)) is not None]
    if owner:
        holds = [hold for hold in holds if hold.lock._kind.field(hold.owner_id) == lock._kind.field(owner)]
    return [hold for hold in holds if not note_loss(hold, now)]


def _note_forced(hold: Hold, freed: bool, renewed: bool) -> None:
    if freed:
        hold.count = 0
        HOLDS.remove(hold)
        undo_late_copies(hold, hold.deadline)
        HOLDS.uncover_lost(hold)
    else:
        hold.renewed, hold.ending = renewed, False
        watch(hold)


def _expect_the_end(holds: list[Hold]) -> None:
    """A caller or a renewal that finds the lock gone, while its own owner frees it by force, must report no loss."""
    for hold in holds:
        hold.ending = True
        hold.renewed = False


# --- the watcher ------------------------------------------------------------------------------------------------------

LISTEN_AFTER = 0.5
"""Only holds that last longer than this listen to their forced release, in seconds: most end long before."""
MOST_CHANNELS = 1000
"""How many channels of an alias are subscribed at once. A cluster has one for each lock; holds of further locks notice
their forced release at their next renewal.
"""
_MOST_MESSAGES = 100
"""How many messages of forced releases are kept, as reasons of losses."""


class Subscription:
    """Listens to forced releases on one channel, for the holds that refer to it.

    ``heard_at`` is when its last message came, or its subscription was last confirmed, in monotonic seconds. Earlier
    messages may have been missed, or may concern a hold that its caller had not recorded yet.
    """

    __slots__ = ("__weakref__", "heard_at", "waiters")

    def __init__(self) -> None:
        self.waiters: list[ListenerWaiter] = []
        self.heard_at = math.inf


class ForcedReleaseWatcher:
    """Finds the holds of an alias that may have ended unnoticed, and queries the server about them.

    When a hold is as old as LISTEN_AFTER, its process listens to forced releases. A message only causes queries, until
    the server replies. So a message that is late, forged or meant for another owner does no harm. A message that was
    missed while not subscribed does no harm either: the server is queried about all holds that may be older than the
    last subscription.

    After a jump of a clock all holds are queried, because more time may have passed than this process's clock shows.
    """

    def __init__(self, worker: BackgroundWorker) -> None:
        self._worker = worker
        self._young: deque[Hold] = deque()
        self._subscriptions: dict[str, weakref.ref[Subscription]] = {}
        self._doubted: deque[Hold] = deque()
        self._unanswered: list[Hold] = []
        self._again_at = math.inf
        self._seen = wall_offset()
        self.inbox: deque[tuple[str, str]] = deque()
        """The channel and the message of each forced release; an empty message means all locks of the channel."""
        self._messages: deque[tuple[float, str]] = deque(maxlen=_MOST_MESSAGES)

    def add(self, hold: Hold) -> None:
        """Let a hold listen to its forced release once it is old enough."""
        if hold.subscription is None:
            self._young.append(hold)

    def round(self, now: float) -> float:
        # The machine may have been suspended, and the monotonic clock with it: then leases ended on the server only.
        if has_jumped(self._seen):
            self._doubt_all(wall_offset())
        while self._young and self._young[0].since <= now - LISTEN_AFTER:
            self._listen(self._young.popleft())
        if heard := {self.inbox.popleft() for _ in range(len(self.inbox))}:
            for subscription in filter(None, [self._subscription(channel) for channel, _ in heard]):
                subscription.heard_at = monotonic()
            self._doubted.extend(self._meant(heard))
        if self._again_at <= now:
            self._doubted.extend(self._unanswered)
            self._unanswered, self._again_at = [], math.inf
        # Few at a time: renewals are due in the same thread.
        doubted = [self._doubted.popleft() for _ in range(min(len(self._doubted), AT_ONCE))]
        holds = [hold for hold in doubted if hold.lost is None and hold in HOLDS]
        if holds and (unanswered := run_sync(_ask_about(holds))):
            self._unanswered += unanswered
            self._again_at = monotonic() + RETRY
        if self._doubted:
            return now
        if not self._unanswered:
            self._worker.jobs[Renewals].clocks = self._seen
        return min(self._young[0].since + LISTEN_AFTER if self._young else math.inf, self._again_at)

    def _doubt_all(self, clocks: float) -> None:
        holds = [hold for hold in HOLDS.snapshot() if hold.lock.using == self._worker.using]
        self._doubted.extend(holds)
        if holds:
            log(
                watchdog_logger, logging.INFO, "The wall clock jumped by %.1f s; the server is asked about %d locks.",
                clocks - self._seen, len(holds),
            )  # fmt: skip
        self._seen = clocks

    def _listen(self, hold: Hold) -> None:
        if not hold.kind.hears_forced or hold.subscription is not None or hold not in HOLDS:
            return
        channel = forced_channel(hold.lock)
        subscription = self._subscription(channel)
        if subscription is not None:
            hold.subscription = subscription
            if hold.is_unconfirmed or hold.confirmed_at() <= subscription.heard_at:
                self._doubted.append(hold)  # it may have been freed unheard
        elif len(self._subscriptions) < MOST_CHANNELS:
            hold.subscription = subscription = Subscription()
            # Callers drop it with their last hold. So it is removed by one call into C, in which no exception vanishes.
            self._subscriptions[channel] = weakref.ref(subscription, partial(self._subscriptions.pop, channel))
            hear = partial(self._hear, channel)
            subscription.waiters = [each.call_at(channel, hear) for each in listeners(self._worker.using)]

    def _hear(self, channel: str, message: str) -> None:
        self._messages.append((monotonic(), message))
        self.inbox.append((channel, message))
        self._worker.wake()

    def _subscription(self, channel: str) -> Subscription | None:
        place = self._subscriptions.get(channel)
        return None if place is None else place()

    def _meant(self, heard: set[tuple[str, str]]) -> list[Hold]:
        """The holds that the messages concern."""
        using = self._worker.using
        heard = {(channel, Forced.parse(message).key) for channel, message in heard}
        if any(not key for _, key in heard):
            holds = HOLDS.snapshot()
        else:
            place, prefix = PLACES.value[using], get_settings(using).key_prefix
            spots = {(place, key.removeprefix(prefix)) for _, key in heard}
            holds = [hold for spot in spots for hold in HOLDS.named(spot)]
        return [hold for hold in holds if hold.lock.using == using and _is_meant(hold, heard)]

    def how_freed(self, hold: Hold) -> str | None:
        """How a hold was freed by force, if a message said so; the last message counts, because earlier ones may be
        late."""
        parsed = (Forced.parse(message) for at, message in snapshot(self._messages)[::-1] if at >= hold.since)
        fields = "", hold.hash_field
        return next((each.how for each in parsed if each.key == hold.lock.key and each.field in fields), None) or None

    def at_exit(self) -> None:
        """Do nothing: there is nothing to clean up."""


async def _ask_about(holds: Sequence[Hold]) -> list[Hold]:
    """Query the server about holds of one alias; return the holds without a result."""
    driver = background_driver(holds[0].lock.using)
    # Compared afterwards: a caller may set another lease while the server is asked.
    deadlines = [hold.deadline for hold in holds]
    calls = [hold.kind.state(hold.lock, hold.owner_id) for hold in holds]
    replies = await driver.run_all(calls)
    for hold, deadline, call, reply in zip(holds, deadlines, calls, replies, strict=True):
        if not isinstance(reply, Exception):
            _note_state(hold, deadline, call.sent_at, hold.kind.lease_left(reply))
    return [hold for hold, reply in zip(holds, replies, strict=True) if isinstance(reply, Exception)]


def _note_state(hold: Hold, deadline: float, asked_at: float, left_ms: int) -> None:
    now = monotonic()
    # Its owner may have released it meanwhile, or freed it by force.
    if hold not in HOLDS or hold.ending or note_loss(hold, now):
        return
    if left_ms == ABSENT:
        lose(hold, FREED)
        if not hold.owner.is_named:
            # A minority of a RedLock's nodes may still have it.
            clean_up(hold.lock.using, hold.leave_call(), hold.deadline)
        return
    left = math.inf if left_ms == ENDLESS else left_ms / 1000
    until = asked_at + left - hold.kind.drift(hold.lock, min(left, hold.lease))
    if until < deadline == hold.deadline:
        hold.deadline = until  # this process's clock stood still for a while
        watch(hold)


def _are_confirmed(holds: Sequence[Hold]) -> bool:
    by_alias: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        by_alias[hold.lock.using].append(hold)
    unanswered = [run_sync(_ask_about(same)) for same in by_alias.values()]
    return not any(unanswered)


def _is_meant(hold: Hold, heard: set[tuple[str, str]]) -> bool:
    channel = forced_channel(hold.lock)
    return (channel, hold.lock.key) in heard or (hold.subscription is not None and (channel, "") in heard)


def _watcher_of(hold: Hold) -> ForcedReleaseWatcher:
    watcher: ForcedReleaseWatcher = worker(hold.lock.using).jobs[ForcedReleaseWatcher]
    return watcher


def watch_forced_releases() -> None:
    """Let the watchdog use the watcher."""
    FORCED_RELEASES.listen = lambda hold: _watcher_of(hold).add(hold)
    FORCED_RELEASES.how_freed = lambda hold: _watcher_of(hold).how_freed(hold)
    FORCED_RELEASES.confirm = _are_confirmed
