"""Renews what this process holds, and beats for what it waits for. Runs in rounds of the background thread."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django_rlock.drivers import background, pubsub
from django_rlock.drivers.base import ScriptCall, run_sync
from django_rlock.drivers.sync import background_driver
from django_rlock.locks.holds import HOLDS, WAITS, Hold, Wait, lose, note_loss

logger = logging.getLogger("django_rlock.watchdog")

REMEMBER_LOST = 60.0
"""How long a lost hold that no block encloses is remembered, in seconds, so that its release can say it was lost."""
_RETRY = 0.5


def renew(now: float) -> float:
    """Renew the holds whose time has come and tell the lost ones; answers when to come again."""
    due: dict[str, list[Hold]] = defaultdict(list)
    for hold in HOLDS.snapshot():
        if hold.lost is not None:
            _forget_some_day(hold, now)
        elif note_loss(hold, now):
            continue
        elif hold.renewed and now >= hold.renew_at and _may_renew(hold, now):
            due[hold.lock.using].append(hold)
    for using, holds in due.items():
        run_sync(_renew_all(using, holds))
    return min((_next_look(hold, now) for hold in HOLDS.snapshot()), default=math.inf)


async def _renew_all(using: str, holds: list[Hold]) -> None:
    driver = background_driver(using)
    leases = [hold.lease for hold in holds]
    calls = [hold.lock.renew_call(hold.owner, lease) for hold, lease in zip(holds, leases, strict=True)]
    for hold, lease, call, reply in zip(holds, leases, calls, await driver.run_all(calls), strict=True):
        _note_renewal(hold, lease, call, reply, driver.now())


def _note_renewal(hold: Hold, lease: float, call: ScriptCall, reply: Any, now: float) -> None:
    if hold not in HOLDS or not hold.renewed or hold.lease != lease:
        return  # released, or given another lease, while the command was under way
    if note_loss(hold, now):
        return  # it may have been seen as lost already, so a reply that came too late does not bring it back
    hold.suspect = isinstance(reply, Exception)
    if hold.suspect:
        logger.error("Lock %r could not be renewed; trying again until its lease ends: %s", hold.lock.name, reply)
    elif reply[1] == 1:
        hold.lease_from(call.sent_at, lease, renewed=True)
    else:
        lose(hold, "another owner or an operator freed it, or the server lost it")


def _may_renew(hold: Hold, now: float) -> bool:
    if hold.owner_ended:
        logger.warning(
            "Lock %r is still held by %s (%s), which has ended without releasing it; it is no longer renewed.",
            hold.lock.name,
            hold.place,
            hold.owner,
        )
        hold.renewed = False
    elif now >= hold.max_until:
        logger.warning("Lock %r was held for its max_hold_time; it is no longer renewed.", hold.lock.name)
        hold.renewed = False
    return hold.renewed


def _forget_some_day(hold: Hold, now: float) -> None:
    if not hold.scoped and now > hold.deadline + max(REMEMBER_LOST, hold.lease):
        HOLDS.remove(hold)


def _next_look(hold: Hold, now: float) -> float:
    if hold.lost is not None:
        return now + REMEMBER_LOST
    if not hold.renewed:
        return hold.deadline
    return hold.renew_at if hold.renew_at > now else min(now + _RETRY, hold.deadline)


def beat(now: float) -> float:
    """Beat for each lock that is due, once however many of this process wait for it; answers when to come again."""
    groups: dict[tuple[str, str, str], list[Wait]] = defaultdict(list)
    for wait in WAITS.snapshot():
        if wait.beat_at < math.inf:
            groups[wait.lock.using, wait.lock.key, wait.lock.kind].append(wait)
    due = [waits for waits in groups.values() if now >= min(wait.beat_at for wait in waits)]
    by_alias: dict[str, list[list[Wait]]] = defaultdict(list)
    for waits in due:
        by_alias[waits[0].lock.using].append(waits)
    for using, lines in by_alias.items():
        run_sync(_beat_all(using, lines))
    return min((wait.beat_at for waits in groups.values() for wait in waits), default=math.inf)


async def _beat_all(using: str, lines: list[list[Wait]]) -> None:
    driver = background_driver(using)
    calls = [waits[0].lock.beat_call(waits[0].owner) for waits in lines]
    for waits, reply in zip(lines, await driver.run_all(calls), strict=True):
        note_beat(waits, reply, driver.now())


def note_beat(waits: list[Wait], reply: Any, now: float) -> None:
    """Wake those that must ask again, and set the time of the next beat."""
    if isinstance(reply, Exception):
        logger.info("No beat for lock %r: %s", waits[0].lock.name, reply)
        _beat_again(waits, now + _RETRY)
        return
    _, known, left_ms, owners = reply
    if not known:
        _wake(waits)  # the server lost the queue, or took this process for dead: all take a ticket again
    else:
        holders = {owner.decode(errors="replace") for owner in owners}
        _wake(wait for wait in waits if wait.owner in holders)  # granted, and the wake-up was lost
    _beat_again(waits, now + waits[0].lock.pauses(left_ms, 1)[1])


def _wake(waits: Iterable[Wait]) -> None:
    for wait in waits:
        wait.waiter.wake()


def _beat_again(waits: list[Wait], at: float) -> None:
    for wait in waits:
        wait.beat_at = at


def _prune(_now: float) -> float:
    pubsub.prune()
    return math.inf


def release_at_exit() -> None:
    """Free the renewed holds of an interpreter that ends; a lease that somebody chose runs on."""
    for hold in HOLDS.snapshot():
        if hold.renewed and hold.lost is None:
            HOLDS.remove(hold)
            driver = background_driver(hold.lock.using)
            run_sync(driver.run(hold.lock.leave_call(hold.owner), until=driver.now()))


background.add_job(renew)
background.add_job(beat)
background.add_job(_prune)
background.add_exit_job(release_at_exit)
