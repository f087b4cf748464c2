"""What a MultiLock does with its members, without knowing how they do it. This is not public."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from typing import Any, cast

from django_rlock import signals
from django_rlock.callbacks import is_logged
from django_rlock.drivers.base import Driver
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.attempt import Claim
from django_rlock.locks.durations import Duration
from django_rlock.locks.flows import LockFlows, logger
from django_rlock.locks.holds import Hold


def take(lock: LockFlows, driver: Driver, claim: Claim) -> Coroutine[Any, Any, bool]:
    """Take a lock; returns False if it was still taken at the end of the wait. Nothing is reported."""
    return lock._take_in_turn(driver, claim) if claim.owner.is_named else lock._take(driver, claim)


def give_back(lock: LockFlows, driver: Driver, owner: Owner, begun: set[object]) -> Coroutine[Any, Any, None]:
    """Release one hold; raises as ``release`` does. ``begun`` gets the lock when it handles interruptions itself."""
    return lock._give_back(driver, owner, begun)


def extend(lock: LockFlows, driver: Driver, owner: Owner, lease_time: Duration) -> Coroutine[Any, Any, None]:
    """Replace the lease; raises as the lock's ``extend`` does."""
    return lock._prolong(driver, owner, lease_time)


def force_release(
    lock: LockFlows, driver: Driver, caller: Owner, owner: str | None, reason: str
) -> Coroutine[Any, Any, bool]:
    """Free a lock whoever holds it; returns whether it was held."""
    return lock._free_by_force(driver, caller, owner, reason)


def ask_state(lock: LockFlows, driver: Driver, owner: Owner) -> Coroutine[Any, Any, tuple[int, int]]:
    """The owner's holds, and the remaining lease in ms (ABSENT, ENDLESS)."""
    return lock._ask_state(driver, owner)


def extend_hold(hold: Hold, driver: Driver, lease: float) -> Coroutine[Any, Any, None]:
    """Replace the lease of a hold."""
    return _flows_of(hold)._extend_hold(driver, hold, lease)


def release_later(hold: Hold) -> None:
    """Release one of an owner's holds in the background."""
    hold.count -= 1
    _flows_of(hold)._release_later(hold, hold.owner)


def note_released(hold: Hold, call: ScriptCall, owned: bool, now: float) -> None:
    """Handle the result of releasing a hold: whether the server knew its owner as the holder."""
    _flows_of(hold)._note_released(hold, call, owned, now)


def abandon(lock: LockFlows, driver: Driver, owner: Owner, undo: ScriptCall, lease: float) -> None:
    """Clean up after an attempt that the server may still grant."""
    lock._abandon(driver, owner, undo, lease)


def release_failed(lock: LockFlows, error: LockUnavailableError, left: float) -> LockUnavailableError:
    """The error of a failed release, if the lease runs on for ``left`` seconds."""
    return lock._release_failed(error, left)


def tell_taken(locks: Iterable[LockFlows], wire_name: str) -> None:
    """Log and signal that locks were taken."""
    if signals.lock_acquired.receivers or is_logged(logger, logging.DEBUG):
        for lock in locks:
            lock._tell_acquired(wire_name, 1, 0.0)


def tells_of_releases(lock: LockFlows, held: float) -> bool:
    """Whether the release of a lock held for ``held`` seconds is logged or signalled."""
    return bool(signals.lock_released.receivers) or is_logged(logger, lock._release_level(held))


def _flows_of(hold: Hold) -> LockFlows:
    return cast("LockFlows", hold.lock)
