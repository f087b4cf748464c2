"""The flows of all kinds: take, release, extend, query; each is a coroutine over a driver.

Waiting is in ``attempt``, the forced release in ``forced``. An unknown outcome never leaves a lock without renewal, or
one renewed forever. Only what a flow returns as held is renewed; anything else that may have been granted is undone in
the background, under an owner id that is not used again.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

from django_rlock import signals
from django_rlock._core.callbacks import post
from django_rlock._redis.scripts import OK
from django_rlock._transport.bridges import whereabouts
from django_rlock._transport.calls import PATIENCE, Driver, ScriptCall, run_flow
from django_rlock._transport.identity import BRIDGE, Owner
from django_rlock._transport.registry import sync_driver
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError
from django_rlock.locks import forced
from django_rlock.locks.attempt import AcquireRequest, Attempt
from django_rlock.locks.batches import BatchHold
from django_rlock.locks.callers import (
    NAMED_CALLS,
    a_call,
    give_back_at_job_end,
    refuse_nested,
    serialize,
    serialized,
)
from django_rlock.locks.holds import HOLDS, INSPECTOR, not_owned, owner_id_of
from django_rlock.locks.kinds import EXTEND, RENEW, SETTLE, AbstractLock, Named, holders_call
from django_rlock.locks.options import RELEASE_PATIENCE, Duration, lease_seconds
from django_rlock.locks.records import Hold, Key, Terms, calling_line, key_of
from django_rlock.locks.statistics import (
    LONG_WAIT,
    count_hold,
    count_wait,
    report_acquired,
    report_released,
    report_timed_out,
)
from django_rlock.locks.watchdog import FREED, free_behind, lose, note_loss, watch
from django_rlock.settings import QUORUM_KIND, settings_of

logger = logging.getLogger("django_rlock.locks")


class Engine(Protocol):
    """The flows of a lock: this module, or ``MultiEngine`` for a MultiLock. This module also handles the members of a
    MultiLock, so the protocol omits flows that only a single lock needs."""

    def take(self, lock: Any, driver: Driver, request: AcquireRequest, /) -> Coroutine[Any, Any, bool]: ...
    def give_back(self, lock: Any, driver: Driver, owner: Owner, blocks: int = 0, /) -> Coroutine[Any, Any, None]: ...
    def leave_block(self, lock: Any, owner: Owner, /) -> None: ...
    def prolong(self, lock: Any, driver: Driver, owner: Owner, lease: Duration, /) -> Coroutine[Any, Any, None]: ...
    def free_by_force(
        self, lock: Any, driver: Driver, caller: Owner, owner: str | None, reason: str, /
    ) -> Coroutine[Any, Any, bool]: ...
    def ask_state(self, lock: Any, driver: Driver, owner: Owner, /) -> Coroutine[Any, Any, tuple[int, int]]: ...
    def ask_holders(self, lock: Any, driver: Driver, /) -> Coroutine[Any, Any, list[str]]: ...


@a_call
async def ask_for(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> bool:
    """Take the lock, and report a failure once, however often a MultiLock tries its members. Raises LockTimeoutError
    if a block cannot be entered."""
    started, owner = driver.now(), request.owner
    if owner.in_pool or (owner.thread and hasattr(BRIDGE, "task_context")):
        give_back_at_job_end(lock, owner)
    if lock.at_least is not None:
        check_keep(lock, lock.at_least)
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
        waited = driver.now() - started
        report_timed_out(request.failed, waited, request.logs)
        if request.scoped:
            raise await _timed_out(driver, request, waited)
    elif lock.at_least is not None:
        for hold in HOLDS.of_lock(lock, owner):
            hold.keep_for(lock.at_least, driver.now())
    return taken


async def _timed_out(driver: Driver, request: AcquireRequest, waited: float) -> LockTimeoutError:
    lock, left_ms = request.failed.lock, request.failed.left_ms
    holder = await driver.call(describe_holder, lock) if request.logs else None
    return LockTimeoutError(
        lock.name, waited=waited, holder=holder, retry_after=left_ms / 1000 if left_ms >= 0 else None
    )


def describe_holder(lock: Named) -> str | None:
    """The holder in one line, with its current place in the code if it is in this process."""
    here = next((whereabouts(each.owner) for each in HOLDS.held_against(lock)), None)
    return ", in this process: ".join(filter(None, (INSPECTOR.holder(lock), here))) or None


def check_keep(lock: AbstractLock, seconds: float) -> None:
    """Raise ValueError if the lock cannot be kept for that time after its release."""
    for part in lock.parts:
        part._kind.check_keep(part, seconds)


def take_serialized(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> Coroutine[Any, Any, bool]:
    """Take the lock. The calls of a named owner run one after another, in all threads and tasks that use the name."""
    flow = _take_named if request.owner.is_named else lock._engine.take
    return flow(lock, driver, request)


async def _take_named(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> bool:
    until = request.until(driver.now())
    taken = False
    try:
        with NAMED_CALLS.join(key_of(lock, request.owner)) as call:
            if not await call.acquire(lock, driver, until):
                lease = request.lease_under(settings_of(lock.using))
                request.failed = Attempt(lock, driver, request.owner, request.owner.owner_id, lease, until)
                return False
            if until is not None:
                request.wait = max(until - driver.now(), 0.0)
            taken = bool(await lock._engine.take(lock, driver, request))
    except BaseException:
        if taken and (hold := HOLDS.get(lock, request.owner)):  # its end was interrupted
            hold.scoped -= request.scoped
            hold.count -= 1
            _finish_later(lock, hold, request.owner)
        raise
    return taken


async def take(lock: AbstractLock, driver: Driver, request: AcquireRequest) -> bool:
    """Take the lock; returns False if it was still taken at the end of the wait.

    A grant whose lease is over before this returns is undone, and the lock is tried again while the wait lasts.
    """
    options = settings_of(lock.using)
    if (options.nodes is None) is (lock.kind == QUORUM_KIND):
        options.check_kind(lock.kind)
    owner, started, lease = request.owner, driver.now(), request.lease_under(options)
    key = key_of(lock, owner)
    outer = HOLDS.at(key) if HOLDS.table else None
    give_up_at = until = request.until(started)
    if outer is not None and not note_loss(outer, started):
        attempt = Attempt(lock, driver, owner, outer.owner_id, lease, until)
        attempt.kind.begin(attempt, started)
        await _enter_again(lock, attempt, outer, request)
        return True
    while True:
        # After a loss the owner has a new owner id, so late clean-up of the old hold cannot touch the new one.
        attempt = Attempt(lock, driver, owner, owner.owner_id, lease, until)
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
                abandon(lock, driver, owner, attempt.undo(), lease)
        except BaseException:
            HOLDS.restore(key, outer)
            abandon(lock, driver, owner, attempt.undo(), lease, attempt.in_doubt)
            raise
        give_up_at = give_up_at or driver.now() + PATIENCE  # without a limit, as with a server that does not reply
        if not granted or request.once or driver.now() >= give_up_at:
            request.failed = attempt
            return False


def _note_taken(
    lock: AbstractLock, attempt: Attempt, request: AcquireRequest, key: Key, outer: Hold | None, started: float
) -> bool:
    """Record and report a new hold. Returns False, and records nothing, if its lease is over by now."""
    hold = Hold(key, lock, attempt.owner, attempt.owner_id, attempt.sent_at, attempt.token)
    hold.lease_from(hold.since, attempt.lease, renewed=request.lease is None)
    if attempt.granted_until is not None:
        hold.granted_until(attempt.granted_until)
    if attempt.granted_at >= hold.deadline:
        return False
    if outer is not None:
        hold.outlives(outer)
    if attempt.in_doubt:
        expect_copies(hold, attempt.lease)
        hold.asker = attempt.asker
    hold.scoped += request.scoped
    hold.line = calling_line()
    HOLDS.put(hold)
    watch(hold)
    waited = attempt.sent_at - started
    if waited >= LONG_WAIT and attempt.was_refused:
        count_wait(lock, hold.key, hold.caller_name, waited)
    report_acquired(lock, hold.owner_id, 1, waited)
    if hold.lost is None and attempt.driver.now() < hold.deadline:
        return True
    note_loss(hold, attempt.driver.now())  # after it was reported as acquired
    HOLDS.restore(key, outer)
    return False


async def _enter_again(lock: AbstractLock, attempt: Attempt, hold: Hold, request: AcquireRequest) -> None:
    driver, until = attempt.driver, attempt.until
    # A nested hold never shortens the lease, nor stops the renewal that the outer one relies on.
    lease = max(attempt.lease, hold.deadline - driver.now())
    call = attempt.acquire_call(hold.count + 1, lease)
    try:
        reply = await driver.run(call, hold.deadline if until is None else min(until, hold.deadline))
    except BaseException:
        hold.owner.renew_name()
        raise
    if call.sends > 1:
        hold.owner.renew_name()
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
        _refuse_lost(hold, driver.now())
    except BaseException:  # lost, or from a signal handler; for the caller the lock was not re-entered
        hold.count, hold.scoped = count, scoped
        watch(hold)
        raise


def _refuse_lost(hold: Hold, now: float) -> None:
    if note_loss(hold, now):
        raise hold.lost_error()


def abandon(
    lock: AbstractLock, driver: Driver, owner: Owner, undo: ScriptCall | None, lease: float, in_doubt: bool = True
) -> None:
    """Clean up after an attempt that was given up: the server may have granted the lock, or may still grant it.

    It is undone in the background, at any time, because the owner never uses that owner id again. A name chosen by
    the caller cannot be changed: only its place in the queue is given up, if the kind has one, and a lock that was
    granted to it ends with its lease.
    """
    if undo is None:
        return
    owner.renew_name()
    # Repeat this if the acquire, or a copy of it, may arrive after the first clean-up.
    clean_up(lock.using, undo, driver.now() + lease, again=in_doubt)


def give_back(
    lock: AbstractLock, driver: Driver, owner: Owner, blocks: int = 0, begun: set[object] | None = None
) -> Coroutine[Any, Any, None]:
    """Release one hold; ``blocks`` is 1 if a block ends with it. Once the release has started, it adds the lock to
    ``begun``, and handles interruptions from then on."""
    if owner.is_named:
        if blocks:
            leave_block(lock, owner)
        return serialize(lock, driver, owner, partial(_give_back, lock, driver, owner, 0, begun))
    return _give_back(lock, driver, owner, blocks, begun)


@a_call
async def _give_back(lock: AbstractLock, driver: Driver, owner: Owner, blocks: int, begun: set[object] | None) -> None:
    hold = HOLDS.get(lock, owner)
    if hold is not None:
        hold.scoped -= blocks
    before = owner.is_calling and refuse_nested(lock)
    if hold is None:
        await _give_back_unknown(lock, driver, owner)
        return
    now = driver.now()
    if (hold.lost is not None or now >= hold.deadline) and note_loss(hold, now):
        _drop_lost(hold)
        raise hold.lost_error()
    try:
        owner.is_calling = True
        hold.count -= 1
        if begun is not None:
            begun.add(lock)
        if hold.count == 0:
            HOLDS.remove(hold)  # before the command, so that no renewal starts
        kind = lock._kind  # it may be another than that of the object which took the lock
        call = hold.keep_call() if hold.kept_until and hold.count == 0 else None
        call = call or kind.release(lock, hold.owner_id, hold.count, hold.lease)
        reply = await driver.run(call, min(hold.deadline, now + RELEASE_PATIENCE))
    except BaseException as error:
        _finish_later(lock, hold, owner)
        if isinstance(error, LockUnavailableError):
            raise release_failed(lock, error, hold.deadline - driver.now()) from error
        raise
    finally:
        owner.is_calling = before
        if hold.lost_below:
            HOLDS.uncover_lost(hold)
    note_released(lock, hold, call, reply[1] == 1, driver.now())
    if hold.count:
        hold.lease_from(call.sent_at, hold.lease, hold.renewed)
        watch(hold)


def note_released(lock: Named, hold: Hold, call: ScriptCall, owned: bool, now: float) -> None:
    """Handle the server's reply to a release."""
    if hold.renewing or call.sends > 1:
        hold.owner.renew_name()  # late commands must not affect its next hold
    # "Not yours", to a last release that was sent twice: the first copy did it. After an inner one it is held.
    was_executed = hold.count == 0 and call.sends > 1 and now < hold.deadline
    if not owned and not was_executed:
        lose(hold, FREED)
        raise hold.lost_error()
    if hold.count == 0:
        if hold.late_lease:
            free_behind(hold, now)
        count_hold(hold, now)
        report_released(lock, hold, now)


async def _give_back_unknown(lock: AbstractLock, driver: Driver, owner: Owner) -> None:
    """Release a lock of which this process has no hold: a named owner may have taken it in another process."""
    if owner.is_named:
        if lock.at_least is None:
            call = lock._kind.release(lock, owner.owner_id, 0, lock._settings.watchdog_timeout)
        else:
            call = lock._kind.keep(lock, owner.owner_id, lock.at_least)
        reply = await driver.run(call, driver.now() + RELEASE_PATIENCE)
        if reply[1] == 1:
            return
    raise not_owned(lock, owner)


def _finish_later(lock: Named, hold: Hold, owner: Owner) -> None:
    owner.renew_name()
    if hold.count == 0:
        HOLDS.remove(hold)
    # A name chosen by the caller cannot be changed, and a late release would free its next hold: the lease ends it.
    if hold.count == 0 and not owner.is_named:
        call = hold.keep_call() or lock._kind.release(lock, hold.owner_id, 0, hold.lease)
        clean_up(lock.using, call, hold.deadline)
        free_behind(hold, hold.deadline)
    HOLDS.uncover_lost(hold)


def release_later(hold: Hold) -> None:
    """Release one of an owner's holds in the background."""
    hold.count -= 1
    _finish_later(hold.lock, hold, hold.owner)


def release_failed(lock: Named, error: LockUnavailableError, left: float) -> LockUnavailableError:
    return LockUnavailableError(
        lock.name,
        reason=f"it could not be released: {error.reason}",
        advice=f"It was held until now; it frees itself in {max(left, 0):.1f} s, if not before.",
    )


def _drop_lost(hold: Hold) -> None:
    """End one level of a lost hold, after its error was raised there."""
    hold.count -= 1
    if hold.count <= 0:
        HOLDS.remove(hold)
        HOLDS.uncover_lost(hold)


def leave_later(lock: AbstractLock, owner: Owner) -> None:
    """Leave a block in code that must not wait for the server: the background thread releases the lock."""
    if owner.is_named:  # another thread or task with the name may release first
        post(run_flow, lock._exit, (sync_driver(lock.using), owner, InterruptedError()))
        return
    for part in lock.parts:
        if hold := HOLDS.get(part, owner):
            hold.scoped -= 1
            release_later(hold)


def leave_block(lock: AbstractLock, owner: Owner) -> None:
    if hold := HOLDS.get(lock, owner):
        hold.scoped -= 1


@serialized
async def prolong(lock: AbstractLock, driver: Driver, owner: Owner, lease_time: Duration) -> None:
    lease = lease_seconds(lease_time)
    if lease is None:
        raise ValueError("extend() needs a lease_time in seconds.")
    lock._kind.check_lease(lock, lease)
    hold = HOLDS.get(lock, owner)
    if hold is not None:
        await extend_hold(lock, driver, hold, lease)
    elif not owner.is_named or not await _extend_unknown(lock, driver, owner.owner_id, lease):
        raise not_owned(lock, owner)


async def extend_hold(lock: Named, driver: Driver, hold: Hold, lease: float) -> None:
    _refuse_lost(hold, driver.now())
    call = hold.lease_call(lease, RENEW if hold.owner.is_named else EXTEND)
    terms, started = hold.terms, driver.now()
    try:
        hold.renewed = False  # or the watchdog would shorten the new lease
        reply = await _run_extension(driver, call, hold, lease)
        if reply[1] != 0:
            hold.lease_from(call.sent_at, lease, renewed=False)
            watch(hold)
    except BaseException:
        _doubt_extension(lock, hold, terms, started + hold.runs(lease))
        watch(hold)
        raise
    if reply[1] == 0:
        lose(hold, "it was gone when its lease was to be extended")
    _refuse_lost(hold, driver.now())


async def _run_extension(driver: Driver, call: ScriptCall, hold: Hold, lease: float) -> list[Any]:
    """Send an extension and return its reply; no copy of it may shorten a lease chosen later."""
    until = driver.now() + RELEASE_PATIENCE
    reply = await driver.run(call, until)
    if call.sends > 1 and not hold.owner.is_named:
        await driver.run(hold.lease_call(lease, SETTLE), until)
    return reply


def _doubt_extension(lock: Named, hold: Hold, terms: Terms, ends: float) -> None:
    """Handle an extension that may have been executed, or may be late. Under a name chosen by the caller it only
    prolongs the lease."""
    hold.restore(terms)
    if not hold.owner.is_named:
        hold.owner.renew_name()
        hold.deadline = min(hold.deadline, ends)
        clean_up(lock.using, hold.lease_call(hold.lease, SETTLE), hold.deadline)


async def _extend_unknown(lock: AbstractLock, driver: Driver, owner_id: str, lease: float) -> bool:
    """Extend the hold of a named owner that another process took."""
    call = lock._kind.lease(lock, owner_id, lease, RENEW)
    reply = await driver.run(call, driver.now() + RELEASE_PATIENCE)
    return bool(reply[1])


free_by_force = forced.free_by_force


async def ask_state(lock: AbstractLock, driver: Driver, owner: Owner) -> tuple[int, int]:
    reply = await driver.run(lock._kind.state(lock, owner_id_of(lock, owner)), driver.now())
    count, left_ms = reply[1], reply[2]
    hold = HOLDS.get(lock, owner)
    if count and hold is not None:
        count = hold.count  # a late copy of a re-entry or an inner release may have rewritten the server's
    return count, left_ms


async def ask_holders(lock: AbstractLock, driver: Driver) -> list[str]:
    reply = await driver.run(holders_call(lock), driver.now())
    ending = lock._kind.field("")
    return [field.decode(errors="backslashreplace").removesuffix(ending) for field in reply[1]]


def expect_copies(hold: Hold | BatchHold, lease: float) -> None:
    """Record that a hold's acquire was sent more than once: a copy that arrives after its end would take the lock."""
    hold.late_lease = lease
    hold.owner.renew_name()
