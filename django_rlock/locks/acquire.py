"""The flow that acquires a lock: for a thread or task, for a named owner, and once more for an owner that holds it.

An unknown outcome never leaves a lock without renewal, or one renewed forever. Only what the flow returns as held is
renewed; anything else that may have been granted is undone in the background, under an owner id that is not used again.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from django_rlock import signals
from django_rlock._core import threads
from django_rlock._core.callbacks import is_logged
from django_rlock._core.clock import monotonic
from django_rlock._redis.keys import MOST_KEPT
from django_rlock._redis.scripts import OK
from django_rlock._transport.bridges import whereabouts
from django_rlock._transport.calls import PATIENCE, Driver, ScriptCall
from django_rlock._transport.identity import BRIDGE, Owner
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError
from django_rlock.locks.attempt import Attempt, pause_before_retry, pause_for_replicas
from django_rlock.locks.holds import HOLDS, INSPECTOR, WAITS
from django_rlock.locks.kinds import AbstractLock, Named
from django_rlock.locks.mutex import NAMED_CALLS, a_call, refuse_nested
from django_rlock.locks.places import PLACES
from django_rlock.locks.records import Hold, Key, calling_line, key_of
from django_rlock.locks.release import check_keep, complete_later, note_job, release_at_job_end
from django_rlock.locks.statistics import (
    LONG_WAIT,
    count_wait,
    log_timed_out,
    logger,
    report_acquired,
    report_timed_out,
)
from django_rlock.locks.watchdog import lose, note_loss, refuse_lost, watch
from django_rlock.settings import QUORUM_KIND, AliasSettings, settings_of

HOLDER_WITHIN = 1.0
"""How long an error waits for the name of the lock's holder, in seconds."""
NAME_SHARED_FOR = 1.0
"""How long such a name is used for the errors of other callers, in seconds."""


class AcquireRequest:
    """The parameters of one acquire.

    ``started`` is the monotonic time at which it began; for a named owner, whose calls run one after another, when its
    turn began. ``until`` is when its wait ends (None: never). ``lease`` is how long the lock may be held, in seconds
    (None: until released, renewed by the watchdog). ``scoped`` is 1 if the hold belongs to a block. With ``once`` the
    acquire waits only for an unreachable server, not for another owner. ``logs`` is whether to log that the lock is
    taken; otherwise the caller logs it. ``owner_id`` is the owner id of a MultiLock's attempt, of which this is a part;
    "" for a separate attempt, which draws a new owner id.

    After an acquire that did not succeed, ``failed`` is the attempt.
    """

    __slots__ = ("failed", "lease", "logs", "once", "owner", "owner_id", "scoped", "started", "until")

    failed: Attempt

    def __init__(
        self,
        owner: Owner,
        started: float,
        wait: float | None,
        lease: float | None,
        scoped: int = 0,
        once: bool = False,
        logs: bool = True,
        owner_id: str = "",
    ) -> None:
        self.owner = owner
        self.started = started
        self.until = None if wait is None else started + wait
        self.lease = lease
        self.scoped = scoped
        self.once = once or wait == 0
        self.logs = logs
        self.owner_id = owner_id

    def lease_under(self, options: AliasSettings) -> float:
        """The lease to request from the server, in seconds."""
        return options.watchdog_timeout if self.lease is None else self.lease


@a_call
async def acquire(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> bool:
    """Take the lock, and report a failure once, however often a MultiLock tries its members. Raises LockTimeoutError
    if a block cannot be entered."""
    owner, started = request.owner, request.started  # noted here, because a named owner's turn sets it anew
    if owner.pool or (owner.thread and "task_context" in BRIDGE.__dict__):
        release_at_job_end(lock, owner)
    if lock.at_least is not None:
        check_keep(lock, lock.at_least)
    # The flag is set only if a signal handler, a __del__ method or a receiver of signals interrupts another call. Then
    # the stack is searched.
    before = owner.is_calling and refuse_nested(lock)
    try:
        owner.is_calling = True
        taken = await (
            _take_named(lock, driver, request) if owner.is_named else lock._engine.take(lock, driver, request)
        )
        if not taken:
            request.failed.check_speed()
    except LockUnavailableError as error:
        about = next((part for part in lock.parts if part.name == error.lock_name), lock.parts[0])
        signals.lock_unavailable.notify(about, waited=driver.now() - started, reason=error.reason)
        raise
    finally:
        owner.is_calling = before
    if not taken:
        await _give_up(driver, request, driver.now() - started)
    elif lock.at_least is not None:
        for hold in HOLDS.of_lock(lock, owner):
            hold.keep_for(lock.at_least, driver.now())
    if owner.pool and taken and not request.scoped:
        note_job(lock, owner)
    return taken


async def _give_up(driver: Driver, request: AcquireRequest, waited: float) -> None:
    """Report that the wait has ended. Raises LockTimeoutError if a block cannot be entered."""
    report_timed_out(request.failed, waited)
    lock, left_ms, holder = request.failed.lock, request.failed.left_ms, None
    if request.logs and (request.scoped or is_logged(logger, logging.INFO)):
        holder = await driver.call(lookup_of(lock).result, monotonic() + HOLDER_WITHIN)
    log_timed_out(request.failed, waited, request.logs, holder)
    if request.scoped:
        raise LockTimeoutError(
            lock.name, waited=waited, holder=holder, retry_after=left_ms / 1000 if left_ms >= 0 else None
        )


def lookup_of(lock: Named) -> HolderLookup:
    """The look-up of a lock's holder for a caller that gives up now. It takes several round trips, and a crowd often
    gives up at once; so the look-up for one caller serves all that give up within a second."""
    held = [hold.owner_id for hold in HOLDS.held_against(lock)]
    key = lock.using, lock.name, lock._kind.scope
    known = WAITS.lookups.get(key)
    if known is None or known.began < monotonic() - NAME_SHARED_FOR or known.held != held:
        if len(WAITS.lookups) >= MOST_KEPT:
            WAITS.lookups.clear()
        known = WAITS.lookups[key] = HolderLookup(lock, held)
    return known


class HolderLookup:
    """The description of a lock's holder, which the first caller looks up for the others. ``held`` are the owner ids of
    this process's holds against the lock."""

    __slots__ = ("_ended", "_lock", "_once", "_text", "began", "held")

    def __init__(self, lock: Named, held: Sequence[str]) -> None:
        self._lock = lock
        self._once = threads.SingleInstance()
        self._ended = threads.AutoResetEvent()
        self._text: str | None = None
        self.held = held
        self.began = monotonic()

    def result(self, until: float) -> str | None:
        """The holder in one line, if that is known by the monotonic time ``until``."""
        if monotonic() >= until:  # in asyncio, the threads for such calls were busy
            return self._text
        if self._once.enter():
            try:
                self._text = describe_holder(self._lock)
            finally:
                self._ended.set()
        elif self._ended.wait(until - monotonic()):
            self._ended.set()  # for the next caller
        return self._text


def describe_holder(lock: Named) -> str | None:
    """The holder in one line, with its current place in the code if it is in this process."""
    owner = next((hold.owner for hold in HOLDS.held_against(lock)), None)
    here = None if owner is None else f"owner {owner.owner_id!r}" if owner.is_named else whereabouts(owner)
    return ", in this process: ".join(filter(None, (INSPECTOR.holder(lock), here))) or None


def take_serialized(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> Coroutine[Any, Any, bool]:
    """Take the lock. The calls of a named owner run one after another, in all threads and tasks that use the name."""
    flow = _take_named if request.owner.is_named else lock._engine.take
    return flow(lock, driver, request)


async def _take_named(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> bool:
    until = request.until
    taken = False
    try:
        call = NAMED_CALLS.call(key_of(lock, request.owner))
        with call.running, call:
            if not await call.acquire(lock, driver, until):
                lease = request.lease_under(settings_of(lock.using))
                request.failed = Attempt(lock, driver, request.owner, request.owner.owner_id, lease, until)
                return False
            request.started = driver.now()
            taken = bool(await lock._engine.take(lock, driver, request))
    except BaseException:
        if taken and (hold := HOLDS.get(lock, request.owner)):  # its end was interrupted
            hold.scoped -= request.scoped
            hold.count -= 1
            complete_later(lock, hold, request.owner)
        raise
    return taken


async def take(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> bool:
    """Take the lock; returns False if it was still held at the end of the wait.

    A grant whose lease is over before this returns is undone, and so is a grant that too few replicas confirm
    (REPLICA_ACKS). The lock is then tried again while the wait lasts.
    """
    options = settings_of(lock.using)
    if (options.nodes is None) is (lock.kind == QUORUM_KIND):
        options.check_kind(lock.kind)
    owner, started = request.owner, request.started
    lease = options.watchdog_timeout if request.lease is None else request.lease  # as lease_under(), without a call
    give_up_at = until = request.until
    key: Key = PLACES.value[lock.using], lock.name, lock._kind.scope, owner.serial  # as key_of(), without a call
    outer = HOLDS.table.get(key) if HOLDS.table else None
    # An owner that holds the lock enters again at once, even if others wait: they wait for its last release.
    if outer is not None and not note_loss(outer, started):
        attempt = Attempt(lock, driver, owner, outer.owner_id, lease, until)
        attempt.kind.begin(attempt, started)
        await _enter_again(lock, attempt, outer, request)
        return True
    late = 0
    while True:
        # Each attempt has its own owner id, so no command of another attempt that comes late can touch its hold.
        attempt = Attempt(lock, driver, owner, request.owner_id or owner.new_id(started), lease, until)
        attempt.kind.begin(attempt, started)
        attempt.renewed = request.lease is None
        try:
            # A process that is subscribed to wake-ups may join the queue by its first try, so ``wait`` makes it.
            granted = (request.once or not driver.channels) and await attempt.once()
            if not granted and not request.once:
                granted = await attempt.wait()
            if granted and _note_taken(lock, attempt, request, key, outer, started):
                return True
            if granted or attempt.in_doubt:
                abandon(lock, driver, attempt.undo(), lease)
        except BaseException as error:
            # The server may have executed the command, or may still: an unknown outcome is undone (rule 8 of
            # docs/design/architecture.md).
            HOLDS.restore(key, outer)
            abandon(lock, driver, attempt.undo(), lease, attempt.in_doubt)
            give_up_at = give_up_at or driver.now() + PATIENCE
            if not await pause_for_replicas(error, driver, give_up_at):
                raise
            request.owner_id = ""
            continue
        give_up_at = give_up_at or driver.now() + PATIENCE  # without a limit, as with a server that does not reply
        if not granted or request.once or driver.now() >= give_up_at:
            request.failed = attempt
            return False
        request.owner_id = ""
        late += 1
        await pause_before_retry(driver, late, give_up_at)


def _note_taken(
    lock: AbstractLock, attempt: Attempt, request: AcquireRequest, key: Key, outer: Hold | None, started: float
) -> bool:
    """Record and report a new hold. Returns False, and records nothing, if its lease is over by now."""
    hold = Hold(
        key, lock, attempt.owner, attempt.owner_id, attempt.sent_at, attempt.token,
        attempt.lease, request.lease is None, request.scoped, calling_line(),
    )  # fmt: skip
    if attempt.granted_until is not None:
        hold.granted_until(attempt.granted_until)
    if attempt.granted_at >= hold.deadline:
        return False
    if outer is not None:
        hold.outlives(outer)
    if attempt.in_doubt:  # a copy that arrives after the end of the hold would take the lock
        hold.late_lease = attempt.lease
        hold.asker = attempt.asker
    # The watchdog looks for the hold in the table, so it must be there first.
    HOLDS.put(hold)
    if outer is not None:
        HOLDS.remove(outer)
    watch(hold)
    waited = attempt.sent_at - started
    if waited >= LONG_WAIT and attempt.was_refused:
        count_wait(lock, hold.caller_name, waited)
    report_acquired(lock, hold.owner_id, 1, waited)
    if hold.lost is None and attempt.driver.now() < hold.deadline:
        return True
    note_loss(hold, attempt.driver.now())  # after it was reported as acquired
    HOLDS.restore(key, outer)
    return False


async def _enter_again(lock: AbstractLock, attempt: Attempt, hold: Hold, request: AcquireRequest) -> None:
    driver, until, lease = attempt.driver, attempt.until, attempt.lease
    if hold.lock.using != lock.using:  # the options of the alias that took the lock apply
        lease = request.lease_under(hold.lock._settings)
    # A nested hold never shortens the lease, nor stops the renewal that the outer one relies on.
    lease = max(lease, hold.deadline - driver.now())
    # The count is absolute, so the command may be executed twice (rule 1).
    call = attempt.acquire_call(hold.count + 1, lease)
    reply = await driver.run(call, hold.deadline if until is None else min(until, hold.deadline))
    if hold not in HOLDS:
        # Under a name that threads or tasks share: a release waited for this call, but not as long as it took.
        raise LockUnavailableError(
            lock.name,
            reason="another thread or task with the same owner= released it during this acquire",
            advice="Try again. If the lock is still held on the server, it is free when its lease ends.",
        )
    if reply[1] != OK:
        lose(hold, "it was gone when its owner took it again")
        raise hold.lost_error()
    count, scoped = hold.count, hold.scoped
    try:
        hold.lease_from(call.sent_at, lease, renewed=request.lease is None or hold.renewed)
        hold.count += 1
        hold.scoped += request.scoped
        watch(hold)
        report_acquired(lock, hold.owner_id, hold.count, 0.0)
        refuse_lost(hold, driver.now())
    except BaseException:  # lost, or from a signal handler; for the caller the lock was not re-entered
        hold.count, hold.scoped = count, scoped
        watch(hold)
        raise


def abandon(lock: AbstractLock, driver: Driver, undo: ScriptCall | None, lease: float, in_doubt: bool = True) -> None:
    """Clean up after an attempt that was given up: the server may have granted the lock, or may still grant it.

    It is undone in the background, at any time, because no other attempt has its owner id. A name chosen by
    the caller cannot be changed: only its place in the queue is given up, if the kind has one, and a lock that was
    granted to it ends with its lease.
    """
    if undo is None:
        return
    # Repeat this if the acquire, or a copy of it, may arrive after the first clean-up.
    clean_up(lock.using, undo, driver.now() + lease, again=in_doubt)
