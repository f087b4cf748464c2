"""What the log and the receivers of signals hear of locks that are taken, released or given up."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django_rlock import signals
from django_rlock.callbacks import is_logged, log
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.kinds import Named
from django_rlock.locks.records import Hold, key_of
from django_rlock.locks.statistics import count_given_up, count_wait
from django_rlock.settings import settings_of

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock

logger = logging.getLogger("django_rlock.locks")


def tell_acquired(lock: BaseLock, owner_id: str, count: int, waited: float) -> None:
    log(logger, logging.DEBUG, "Acquired %r as %s (%d), after %.3f s.", lock.name, owner_id, count, waited)
    if signals.lock_acquired.receivers:
        outcome = signals.lock_acquired.outcome if count == 1 else "reentered"
        signals.lock_acquired.tell(lock, owner=owner_id, count=count, waited=waited, outcome=outcome)


def tell_taken(locks: Iterable[BaseLock], owner_id: str) -> None:
    """Log and signal that locks were taken."""
    if signals.lock_acquired.receivers or is_logged(logger, logging.DEBUG):
        for lock in locks:
            tell_acquired(lock, owner_id, 1, 0.0)


def tells_of_releases(lock: BaseLock, held: float) -> bool:
    """Whether the release of a lock held for ``held`` seconds is logged or signalled."""
    return bool(signals.lock_released.receivers) or is_logged(logger, release_level(lock, held))


def tell_released(lock: Named, hold: Hold, now: float) -> None:
    held = now - hold.since
    log(logger, release_level(lock, held), "Released %r as %s, after %.3f s.", lock.name, hold.owner_id, held)
    if signals.lock_released.receivers:
        signals.lock_released.tell(lock, owner=hold.owner_id, held=held)


def release_level(lock: Named, held: float) -> int:
    return logging.DEBUG if held < settings_of(lock.using).slow_hold else logging.WARNING


def tell_timed_out(failed: Attempt, waited: float, is_news: bool) -> None:
    lock = failed.lock
    count_given_up(lock)
    count_wait(lock, key_of(lock, failed.owner), failed.owner.place, waited)
    level = logging.INFO if is_news else logging.DEBUG
    log(logger, level, "Lock %r is taken; %s gave up after %.3f s.", lock.name, failed.owner_id, waited)
    signals.lock_timed_out.tell(lock, owner=failed.owner_id, waited=waited)
