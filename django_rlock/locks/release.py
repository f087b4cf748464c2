"""The flow that releases a lock; and releases that nobody calls: as a block or a pool's job ends, in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, cast

from django_rlock._core.callbacks import log, post
from django_rlock._core.interruptions import Method, guarded
from django_rlock._core.threads import Alive
from django_rlock._transport.bridges import Job, running_job
from django_rlock._transport.calls import Driver, ScriptCall, run_flow
from django_rlock._transport.identity import Owner, current_owner, running_call, thread_owner
from django_rlock._transport.registry import sync_driver
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockUnavailableError, RLockError
from django_rlock.locks.holds import HOLDS, NOTHING, Before, not_owned
from django_rlock.locks.kinds import AbstractLock, Named
from django_rlock.locks.mutex import a_call, refuse_nested, serialize
from django_rlock.locks.options import RELEASE_PATIENCE
from django_rlock.locks.places import PLACES
from django_rlock.locks.records import Hold, Key, key_of
from django_rlock.locks.statistics import count_hold, report_released
from django_rlock.locks.watchdog import FREED, lose, note_loss, tell_left, undo_late_copies, watch

logger = logging.getLogger("django_rlock.locks")

# --- the flow ---------------------------------------------------------------------------------------------------------


def release(
    lock: AbstractLock, driver: Driver, owner: Owner, blocks: int = 0, begun: set[object] | None = None
) -> Coroutine[Any, Any, None]:
    """Release one hold; ``blocks`` is 1 if a block ends with it. Once the release has started, it adds the lock to
    ``begun``, and handles interruptions from then on."""
    if owner.is_named:
        # The block ends now, however long the earlier calls of the name take: another thread may release in between.
        if blocks:
            uncount_block(lock, owner)
        return serialize(lock, driver, owner, partial(_release, lock, driver, owner, 0, begun))
    return _release(lock, driver, owner, blocks, begun)


@a_call
async def _release(lock: AbstractLock, driver: Driver, owner: Owner, blocks: int, begun: set[object] | None) -> None:
    kind = lock._kind  # it may be another than that of the object which took the lock
    # As HOLDS.get(), without calls.
    hold = HOLDS.table.get((PLACES.value[lock.using], lock.name, kind.scope, owner.serial))
    if hold is not None:
        hold.scoped -= blocks
    before = owner.is_calling and refuse_nested(lock)
    if hold is None:
        await _release_unknown(lock, driver, owner)
        return
    now = driver.now()
    if (hold.lost is not None or now >= hold.deadline) and note_loss(hold, now):
        _end_lost_level(hold)
        raise hold.lost_error()
    try:
        owner.is_calling = True
        hold.count -= 1
        if begun is not None:
            begun.add(lock)
        if hold.count == 0:
            HOLDS.remove(hold)  # before the command, so that no renewal starts
        call = hold.keep_call() if hold.kept_until and hold.count == 0 else None
        call = call or kind.release(lock, hold.owner_id, hold.count, hold.lease)
        # After the deadline the lock may have another owner, and there is nothing left to release (rule 7).
        reply = await driver.run(call, min(hold.deadline, now + RELEASE_PATIENCE))
    except BaseException as error:
        complete_later(lock, hold, owner)
        if isinstance(error, LockUnavailableError):
            raise release_failed(lock, error, hold.deadline - driver.now()) from error
        raise
    finally:
        owner.is_calling = before
        if hold.lost_below:
            HOLDS.uncover_lost(hold)
    note_released(lock, hold, call, reply[1] == 1, driver)
    # An inner release set the lease anew on the server, as a renewal does.
    if hold.count and kind.release_renews:
        hold.lease_from(call.sent_at, hold.lease, hold.renewed)
        watch(hold)


def note_released(lock: Named, hold: Hold, call: ScriptCall, owned: bool, driver: Driver) -> None:
    """Handle the server's reply to a release."""
    # "Not yours", to a last release that was sent twice: the first copy did it. After an inner one it is held.
    was_executed = owned or (hold.count == 0 and call.sends > 1 and driver.now() < hold.deadline)
    if not was_executed:
        lose(hold, FREED)
        raise hold.lost_error()
    if hold.count == 0:
        if hold.late_lease:
            undo_late_copies(hold, driver.now())
        count_hold(hold, call.sent_at)
        report_released(lock, hold, call.sent_at)


async def _release_unknown(lock: AbstractLock, driver: Driver, owner: Owner) -> None:
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


def complete_later(lock: Named, hold: Hold, owner: Owner) -> None:
    if hold.count == 0:
        HOLDS.remove(hold)
    # A name chosen by the caller cannot be changed, and a late release would free its next hold: the lease ends it.
    if hold.count == 0 and not owner.is_named:
        call = hold.keep_call() or lock._kind.release(lock, hold.owner_id, 0, hold.lease)
        clean_up(lock.using, call, hold.deadline)
        undo_late_copies(hold, hold.deadline)
    HOLDS.uncover_lost(hold)


def release_later(hold: Hold) -> None:
    """Release one of an owner's holds in the background."""
    hold.count -= 1
    complete_later(hold.lock, hold, hold.owner)


def release_failed(lock: Named, error: LockUnavailableError, left: float) -> LockUnavailableError:
    return LockUnavailableError(
        lock.name,
        reason=f"it could not be released: {error.reason}",
        advice=f"It was held until now; it frees itself in {max(left, 0):.1f} s, if not before.",
    )


def _end_lost_level(hold: Hold) -> None:
    """End one level of a lost hold, after its error was raised there."""
    hold.count -= 1
    if hold.count <= 0:
        HOLDS.remove(hold)
        HOLDS.uncover_lost(hold)


def exit_later(lock: AbstractLock, owner: Owner) -> None:
    """Exit a block in code that must not wait for the server: the background thread releases the lock."""
    if owner.is_named:  # another thread or task with the name may release first
        post(run_flow, lock._exit, (sync_driver(lock.using), owner, InterruptedError()))
        return
    for part in lock.parts:
        if hold := HOLDS.get(part, owner):
            hold.scoped -= 1
            release_later(hold)


def uncount_block(lock: AbstractLock, owner: Owner) -> None:
    if hold := HOLDS.get(lock, owner):
        hold.scoped -= 1


def check_keep(lock: AbstractLock, seconds: float) -> None:
    """Raise ValueError if the lock cannot be kept for that time after its release."""
    for part in lock.parts:
        part._kind.check_keep(part, seconds)


# --- the end of a block -----------------------------------------------------------------------------------------------

# The ends of blocks. A block belongs to the owner that entered it, also if its end runs elsewhere: the end of a dropped
# generator may run in another thread or task. And a block is left even if its ``with`` statement was interrupted before
# it could leave it.
#
# Python looks up ``__exit__`` before it calls ``__enter__``; so that is the time to note the owner.


def released_when_dropped(exit_block: Method) -> Method:
    """Pass the ``owner`` that enters the block to an ``__exit__`` with such a parameter, and make it release the lock
    if it is dropped. The class is a lock, or has a ``lock`` that ``__enter__`` takes.

    A lock with ``owner=`` is not released, because other threads may have entered blocks under the same name.
    """
    return cast("Method", _BlockExit(exit_block))


class _BlockExit:
    _has_lock: bool

    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block
        self._wants_owner = "owner" in signature(exit_block).parameters

    def __set_name__(self, kind: type, _name: str) -> None:
        self._has_lock = hasattr(kind, "lock")

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:  # by contextlib.ExitStack, among others
            return _for(thread_owner(), self._exit_block) if self._wants_owner else self._exit_block
        lock, owner = block.lock if self._has_lock else block, thread_owner()
        around = HOLDS.before(_keys_of(lock, owner), lock._depth) if owner.holds else _NOTHING_HELD
        release = partial(_release_new, lock, owner, around)
        return guarded(self._exit_block, block, release, owner if self._wants_owner else None)


def exited_by_its_owner(exit_block: Method) -> Method:
    """Pass the ``owner`` that enters the block to an ``__aexit__``."""
    return cast("Method", _AsyncBlockExit(exit_block))


class _AsyncBlockExit:
    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:
            return _for(current_owner(), self._exit_block)
        return partial(self._exit_block, block, owner=current_owner())


def _for(owner: Owner, exit_block: Callable[..., object]) -> Callable[..., object]:
    def exit_for(block: Any, *error: Any) -> object:
        return exit_block(block, *error, owner=owner)

    return update_wrapper(exit_for, exit_block)


_NOTHING_HELD: Mapping[Key, Before] = {}


def _keys_of(lock: Any, owner: Owner) -> list[Key]:
    return [key_of(part, owner) for part in lock.parts]


def _release_new(lock: Any, owner: Owner, around: Mapping[Key, Before]) -> None:
    """Release what an interrupted ``with`` statement took beyond what its owner held before (``around``)."""
    keys = _keys_of(lock, owner)
    if HOLDS.has_none(keys) or thread_owner() is not owner:
        return
    # The statement may have been interrupted before it took the lock, or nested in a block that keeps it: only what was
    # taken in addition is released.
    for part, key in zip(lock.parts, keys, strict=True):
        hold, former = HOLDS.at(key), around.get(key, NOTHING)
        if hold is not None and former.is_exceeded(hold, lock._depth(key)[0]):
            exit_interrupted(lock, part, hold, former.blocks)


def exit_interrupted(lock: Any, part: Any, hold: Hold, blocks: int) -> None:
    """Release the hold of a block of the running thread whose ``__exit__`` was interrupted, of one of the lock's parts.

    ``blocks`` is the number of enclosing blocks.
    """
    hold.scoped = blocks + 1
    if part.until_commit != lock.until_commit:
        part = copy(part)
        part.until_commit = lock.until_commit
    run_flow(part._exit, (sync_driver(part.using), hold.owner, InterruptedError()))


# --- the end of a job -------------------------------------------------------------------------------------------------


def release_at_job_end(lock: AbstractLock, owner: Owner) -> None:
    """Before a thread takes a lock that a library gives one job after another: release what a former job has left held,
    and make sure that the end of this job releases locks that are still held.

    Raises RuntimeError if the job consists only of the call that takes the lock.
    """
    if owner.calls and any([call.is_over for call in owner.calls]):  # noqa: C419
        for hold in HOLDS.of(owner):
            if hold.is_left:
                end_left(logger, hold, hold.count, f"A job of thread {hold.caller_name!r}")
    job = running_job(owner)
    if job is None:
        return
    parts = {key_of(part, owner): part for part in lock.parts}
    new = [key for key in parts if key not in job.at_end]
    before = HOLDS.before(new, lock._depth)
    for key in new:
        job.at_end[key] = partial(_release_left, job, lock, parts[key], key, before.get(key, NOTHING))


def _release_left(job: Job, lock: AbstractLock, part: AbstractLock, key: Key, former: Before) -> None:
    count, blocks = lock._depth(key)
    # What a block has taken stays: a generator may be suspended in it, and go on in another job.
    for _ in range(count - former.depth - (blocks - former.blocks)):
        hold = HOLDS.at(key)
        if hold is None or (job.is_of_request and hold.context is not None):
            return  # the middleware releases it at the end of the request
        if former.depth == 0 and not (hold.renewed or hold.scoped):
            HOLDS.remove(hold)  # as end_left(): a lease that the project has chosen runs on, for nobody
            return
        tell_left(logger, hold, f"A job of thread {hold.caller_name!r}")
        exit_interrupted(lock, part, hold, blocks)


def note_job(lock: AbstractLock, owner: Owner) -> None:
    """Note the job that has just taken a lock without a block. If the job leaves it held, the next acquire of its
    thread releases it, or the watchdog."""
    reports_end = owner.job is not None and not owner.job.is_over
    job = None if lock.until_commit or reports_end else running_call()
    if job is None:
        return
    owner.calls = owner.calls or Alive()
    job = next((each for each in owner.calls if each.is_same(job)), job)
    owner.calls.add(job)
    for hold in HOLDS.of_lock(lock, owner):
        if hold.count == 1 and hold.scoped == 0:
            hold.job = job
            if not hold.renewed:
                watch(hold)  # which looks at it before its lease ends


def end_left(to: logging.Logger, hold: Hold, left: int, whose: str) -> None:
    """End what a job named ``whose`` has left held without a block, ``left`` times."""
    lock: Any = hold.lock
    if left == hold.count and (hold.lost is not None or not hold.renewed):
        # A lease that the project has chosen runs on, but the next job does not own the lock.
        HOLDS.remove(hold)
        return
    tell_left(to, hold, whose)
    for _ in range(left):
        if hold in HOLDS:
            try:
                run_flow(lock._release_for, (sync_driver(lock.using), hold.owner))
            except RLockError as failure:
                log(to, logging.WARNING, "After the end of %s: %s", whose, failure)
