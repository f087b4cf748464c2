"""The flow of a forced release: a lock is freed whoever holds it, and its caller's own holds end without a loss."""

from __future__ import annotations

import logging
from typing import Any

from django_rlock import signals
from django_rlock._core.callbacks import log
from django_rlock._transport.calls import REMEMBERED, ScriptCall
from django_rlock._transport.driver import Driver
from django_rlock._transport.identity import Owner, new_request
from django_rlock._transport.worker import clean_up
from django_rlock.locks.callers import in_turn
from django_rlock.locks.holds import HOLDS, NEWCOMERS
from django_rlock.locks.kinds import AbstractLock, force_release_call, retire_call
from django_rlock.locks.options import RELEASE_PATIENCE
from django_rlock.locks.records import Hold
from django_rlock.locks.statistics import note_freed, operator
from django_rlock.locks.watchdog import free_behind, note_loss, watch

logger = logging.getLogger("django_rlock.locks")


@in_turn
async def free_by_force(lock: AbstractLock, driver: Driver, caller: Owner, owner: str | None, reason: str) -> bool:
    own = _forced_holds(lock, caller, owner, driver.now())
    renewed = [hold.renewed for hold in own]
    freed = False
    try:
        _expect_the_end(own)
        request = new_request()
        reply = await _run_forced(lock, driver, force_release_call(lock, owner, request, _how(reason)), request)
        freed = bool(reply[1] == 1)
    finally:
        for hold, was_renewed in zip(own, renewed, strict=True):
            _note_forced(hold, freed, was_renewed)
    if freed:
        log(
            logger, logging.WARNING, "Lock %r (%r) was freed by force: %r",
            lock.name, lock.key, reason or "no reason given",
        )  # fmt: skip
        note_freed(lock, owner, reason, caller.place)
        NEWCOMERS.counted(True)
        signals.lock_force_released.tell(lock, owner=owner, reason=reason)
    return freed


def _how(reason: str) -> str:
    """What a holder is told of its loss."""
    by, why, _ = operator.get() or ("", reason, "")
    return (f"{by} freed it by force" if by else "another owner freed it by force") + (f": {why}" if why else "")


async def _run_forced(lock: AbstractLock, driver: Driver, call: ScriptCall, request: str) -> list[Any]:
    """Send a forced release and return its reply; no copy of it may free the next holder."""
    retire = retire_call(lock, request)
    until = driver.now() + RELEASE_PATIENCE
    try:
        reply = await driver.run(call, until)
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
    holds = [hold for scope in _scopes(lock) if (hold := HOLDS.get(lock, caller, scope)) is not None]
    if owner:
        holds = [hold for hold in holds if hold.lock._kind.field(hold.owner_id) == lock._kind.field(owner)]
    return [hold for hold in holds if not note_loss(hold, now)]


def _note_forced(hold: Hold, freed: bool, renewed: bool) -> None:
    if freed:
        hold.count = 0
        HOLDS.remove(hold)
        hold.owner.renew_name()
        free_behind(hold, hold.deadline)
        HOLDS.uncover_lost(hold)
    else:
        hold.renewed, hold.ending = renewed, False
        watch(hold)


def _expect_the_end(holds: list[Hold]) -> None:
    """A caller or a renewal that finds the lock gone, while its own owner frees it by force, must report no loss."""
    for hold in holds:
        hold.ending = True
        hold.renewed = False


def _scopes(lock: AbstractLock) -> tuple[str, ...]:
    """The scopes in which a forced release ends holds of the name: all, unless the lock is one side only."""
    return (lock._kind.scope,) if lock._kind.scope else ("", "read", "write")
