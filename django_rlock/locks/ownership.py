"""Asks the servers whether locks are still held, before an action that cannot be undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django_rlock.drivers.base import run_flow
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.room import AliasDriver, sync_driver
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.durations import RELEASE_PATIENCE
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.locks.watchdog import FREED, lose

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock

_MILLISECOND = 0.001


def ensure_owned(locks: Iterable[BaseLock]) -> None:
    """Ask Redis whether the caller still holds all of these locks: one round trip for each alias.

    Raises LockLostError when one was lost, which is also reported like any loss; LockNotOwnedError when there is no
    hold; LockUnavailableError, within a second or two, when a server is unreachable or no majority confirms a RedLock,
    so that the state is unknown. A loss after the reply goes unnoticed.
    """
    locks = list(locks)
    by_alias: dict[str, list[Hold]] = {}
    for lock in locks:
        lock.check()
        for hold in HOLDS.of_lock(lock, lock._owner(sync_driver(lock.using))):
            by_alias.setdefault(hold.lock.using, []).append(hold)
    for using, holds in by_alias.items():
        run_flow(_ask, (sync_driver(using), holds))
    for lock in locks:
        lock.check()  # a lease may have ended while the reply was on its way


async def _ask(driver: AliasDriver, holds: Sequence[Hold]) -> None:
    now = driver.now()
    calls = [_question(hold, now) for hold in holds]
    # A single call is retried until it has a reply; of many calls, only those without a reply are sent again.
    replies: Sequence[Any] = [None] if len(calls) == 1 else await driver.run_all(calls)
    for hold, call, reply in zip(holds, calls, replies, strict=True):
        known = reply is not None and not isinstance(reply, LockUnavailableError)
        try:
            owned = reply if known else await driver.run(call, now + RELEASE_PATIENCE)
        except BaseException:
            hold.owner.renew_name()
            raise
        if call.sends > 1:
            hold.owner.renew_name()  # late commands must not affect its next hold
        if owned[1] != 1:
            lose(hold, FREED)
            raise hold.lost_error()


def _question(hold: Hold, now: float) -> ScriptCall:
    # For each kind, a renewal shows who owns the lock, and leaves time for COMMIT. A lease chosen by the caller stays.
    lease = hold.lease if hold.renewed else max(hold.deadline - now - _MILLISECOND, _MILLISECOND)
    return hold.renew_call(lease)
