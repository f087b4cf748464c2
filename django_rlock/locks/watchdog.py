"""Renews what this process holds, and reports losses, in rounds of the alias's background thread.

Holds are in a heap, ordered by the time of their next check. A caller hands over the key of a hold when it is taken or
its lease changes. Most are released before the next round, and cost it one lookup.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django_rlock._core import callbacks, threads
from django_rlock._core.callbacks import log
from django_rlock._core.clock import has_jumped, monotonic, wall_offset
from django_rlock._core.process import on_restore
from django_rlock._core.text import printable
from django_rlock._transport.calls import ScriptCall, run_sync
from django_rlock._transport.registry import background_driver
from django_rlock._transport.worker import RETRY, WORKERS, BackgroundWorker, Schedule, clean_up, worker
from django_rlock.exceptions import LockLostError
from django_rlock.locks.holds import HOLDS, NEWCOMERS, WAITS
from django_rlock.locks.records import CodeLine, Hold, Key
from django_rlock.locks.statistics import count_hold, note_lost
from django_rlock.settings import get_settings
from django_rlock.signals import lock_lost

logger = logging.getLogger("django_rlock.watchdog")

JOB_CHECK = 10.0
"""How often a hold that is not renewed is checked for the end of the job that took it, in seconds."""
REMEMBER_LOST = 60.0
"""How long a lost hold outside a block is remembered, in seconds, so that its release can report the loss."""
RENEWED_TOGETHER = 1 / 12
"""Holds that are due within this share of the watchdog time are renewed in one round."""
PAUSE = 1 / 300
"""The pause between two rounds of renewals that are not late, as a share of the watchdog time."""
LONG_HOLD = 3600.0
"""After how many seconds a hold without a ``max_hold_time`` is named in the log, once."""
AT_ONCE = 10
"""How many holds are renewed before other jobs and other threads can run."""
LATE_AT_ONCE = 20 * AT_ONCE
"""The same for renewals that are late: a round takes long where many greenlets run before the next step of this one."""
UNSURE = "a clock has jumped, and the server has not confirmed the hold since"
SURE_WITHIN = 1.0
"""How long a caller waits for the server to confirm its holds after a clock has jumped, in seconds."""
RESTORED = "the memory of the process was restored from an image, of which there may be other copies"
FREED = "another owner or an operator freed it, or the server lost it"


class ForcedReleases:
    """The watcher of forced releases; see ``forced.watch_forced_releases()``."""

    listen: Callable[[Hold], object] = staticmethod(lambda _hold: None)
    """Called with a hold that was taken, or whose lease has changed."""
    how_freed: Callable[[Hold], str | None] = staticmethod(lambda _hold: None)
    """How a hold was freed by force, if that is known."""
    confirm: Callable[[Sequence[Hold]], bool] = staticmethod(lambda _holds: False)
    """Query the servers about holds; returns whether all of them have replied."""


FORCED_RELEASES = ForcedReleases()


class Renewals:
    """The holds of an alias, by the time when they are due.

    ``clocks`` is the distance of the clocks at which no hold is in doubt.
    """

    def __init__(self, worker: BackgroundWorker) -> None:
        self._worker = worker
        self.inbox: deque[Key] = deque()
        self.losses: deque[Hold] = deque()
        self._due = Schedule[Hold](lambda at, hold: hold.planned == at)  # otherwise it was planned anew since
        self._in_hand: list[Hold] = []  # by the round that goes on, and not planned again yet
        self._line: CodeLine | None = None
        self.clocks = wall_offset()

    def round(self, now: float) -> float:
        self._take_in(now)
        self._report_losses()
        self._plan_left(now)
        in_hand = self._in_hand = self._collect(now)
        if in_hand:
            horizon = self._horizon(now)
            if due := [hold for hold in in_hand if self._is_due(hold, now, horizon)]:
                run_sync(self._renew(due))
                self._report_losses()
        if self._in_hand is in_hand:
            self._in_hand = []
        return self._next_round(now)

    def _next_round(self, now: float) -> float:
        """When the next hold is due. Renewals that are not late wait a little, since to wake up costs like many."""
        if (first := self._due.first()) is None:
            return math.inf
        at, hold = first
        if at <= now or not hold.renewed:
            return at
        return max(at, now + self._pause())

    def _take_in(self, now: float) -> None:
        if self.inbox:
            NEWCOMERS.counted(False)
        for _ in range(len(self.inbox)):
            # Released ones are no longer in the table: most are gone before a round comes.
            hold = HOLDS.at(self.inbox.popleft())
            if hold is not None:
                # An overdue hold is renewed at once, unlike a hold whose renewal has just failed.
                is_overdue = hold.renewed and hold.lost is None and hold.renew_at() <= now
                self._plan(hold, now if is_overdue else _next_look(hold, now))
                FORCED_RELEASES.listen(hold)
                NEWCOMERS.notify(hold)
                # Many holds were acquired at one line. They share one object for the line.
                line = self._line
                if hold.line == line:
                    hold.line = line
                else:
                    self._line = hold.line

    def _plan(self, hold: Hold, at: float) -> None:
        if at != hold.planned:
            hold.planned = at
            if at < math.inf:
                self._due.add(at, hold)

    def _plan_left(self, now: float) -> None:
        """Plan the holds of a round that failed, or in which the thread hung that this one has replaced."""
        for hold in self._in_hand:
            self._plan(hold, now)

    def _collect(self, now: float) -> list[Hold]:
        """The holds to check now."""
        first_due = self._due.first_due()
        if first_due > now:
            return []
        horizon = self._horizon(now)
        most = AT_ONCE if first_due > now - self._pause() else LATE_AT_ONCE
        checked: list[Hold] = []
        while len(checked) < most and (entry := self._due.take(horizon)):
            at, hold = entry
            if at > now and not hold.renewed:  # it can only expire, at its time
                self._due.add(at, hold)
                break
            hold.planned = math.nan
            if hold in HOLDS:
                checked.append(hold)
        return checked

    def _horizon(self, now: float) -> float:
        """Holds that are due before this time are renewed together with a hold that is due now."""
        return now + RENEWED_TOGETHER * get_settings(self._worker.using).watchdog_timeout

    def _pause(self) -> float:
        return PAUSE * get_settings(self._worker.using).watchdog_timeout

    def _is_due(self, hold: Hold, now: float, horizon: float) -> bool:
        """Whether to renew a hold now; if not, its next check is planned."""
        if hold.lost is not None:
            # A thread or task that is gone cannot be notified.
            is_old = hold.scoped <= 0 and now > hold.deadline + max(REMEMBER_LOST, hold.lease)
            if hold.owner_ended or is_old:
                HOLDS.remove_beside_owner(hold)
                return False
        elif not note_loss(hold, now) and hold.renewed and hold.renew_at() <= horizon and _may_renew(hold, now):
            return True
        elif not hold.renewed and hold.is_left:
            HOLDS.remove_beside_owner(hold)  # a lease that the project has chosen runs on, for nobody
            return False
        self._plan(hold, _next_look(hold, now))
        return False

    async def _renew(self, holds: list[Hold]) -> None:
        driver = background_driver(self._worker.using)
        leases = [hold.lease for hold in holds]
        calls = [hold.renew_call(lease) for hold, lease in zip(holds, leases, strict=True)]
        replies = await driver.run_all(calls)
        for hold, lease, call, reply in zip(holds, leases, calls, replies, strict=True):
            now = driver.now()
            note_renewal(hold, lease, call, reply, now)
            self._plan(hold, _next_look(hold, now))

    def _report_losses(self) -> None:
        while self.losses:
            hold = self.losses.popleft()
            if not hold.reported:
                hold.reported = True
                _report_loss(hold)

    def at_exit(self) -> None:
        """Free the renewed holds when the interpreter exits; a lease chosen by a caller runs on."""
        mine = [hold for hold in HOLDS.snapshot() if hold.lock.using == self._worker.using]
        # Otherwise the locks of a process that ends inside a block would stay taken until their leases end.
        leaving = [hold for hold in mine if hold.renewed and hold.lost is None]
        for hold in leaving:
            HOLDS.remove_beside_owner(hold)
        calls = [hold.keep_call() or hold.leave_call() for hold in leaving]
        run_sync(background_driver(self._worker.using).run_all(calls))


def watch(hold: Hold) -> None:
    """Let the watchdog renew a hold, or notice its end: it was just taken, or its lease has changed."""
    its = WORKERS.value[hold.lock.using]
    its.jobs[Renewals].inbox.append(hold.key)
    confirmed_at = hold.deadline - hold.runs_for
    # As renew_at() and wake_by(), without calls.
    if (confirmed_at + hold.runs_for / 3 if hold.renewed else hold.deadline) < its.wakes_at:
        its.wake()
    # Each acquire checks that the thread lives. The time of the command saves a call to the clock.
    if confirmed_at > its.late_at:
        its.check(confirmed_at, hold.runs_for if hold.is_unconfirmed else None)


def watch_group(keys: Iterable[Key], first: Hold) -> None:
    """The same for locks that were just taken together, the first of which is ``first``."""
    its = worker(first.lock.using)
    its.jobs[Renewals].inbox.extend(keys)
    its.wake_by(first.renew_at() if first.renewed else first.deadline)
    if first.since > its.late_at:
        its.check(first.since)


def note_renewal(hold: Hold, lease: float, call: ScriptCall, reply: Any, now: float) -> None:
    """Handle the server's reply to a renewal."""
    if hold not in HOLDS or not hold.renewed or hold.lease != lease:
        return  # released, or given another lease, while the command was under way
    if note_loss(hold, now):
        return  # callers may have seen it as lost, so a late reply must not revive it
    # Not lost yet: the lease still runs, and another renewal may succeed. An outage is logged once for each hold.
    level = logging.DEBUG if hold.suspect else logging.ERROR
    hold.suspect = isinstance(reply, Exception)
    if hold.suspect:
        hold.variables.copy().run(
            log, logger, level, "%s %r could not be renewed; it is retried until its lease ends: %s",
            hold.noun.capitalize(), hold.lock.name, reply,
        )  # fmt: skip
    elif reply[1] == 1:
        hold.lease_from(call.sent_at, lease, renewed=True)
    else:
        lose(hold, FREED)


def _may_renew(hold: Hold, now: float) -> bool:
    # Renewing what nobody can release would keep the lock taken forever.
    if hold.is_left:
        hold.variables.copy().run(tell_left, logger, hold, f"A job of thread {hold.caller_name!r}")
        hold.renewed = False
        HOLDS.remove_beside_owner(hold)
        clean_up(hold.lock.using, hold.keep_call() or hold.leave_call(), hold.deadline)
    elif hold.owner_ended:
        hold.variables.copy().run(
            log, logger, logging.WARNING,
            "%s %r is still held by %s (%s), which has ended without releasing it; it is no longer renewed.",
            hold.noun.capitalize(), hold.lock.name, hold.caller_name, hold.owner_id,
        )  # fmt: skip
        hold.renewed = False
    else:
        _limit(hold, now - hold.since)
    return hold.renewed


def tell_left(to: logging.Logger, hold: Hold, whose: str) -> None:
    """Log that a job has left a lock held, which is released now; ``whose`` is the job's name."""
    log(
        to, logging.WARNING,
        "%s has ended and still held lock %r, acquired at %s; it is released now. Use 'with', or release it in "
        "'finally'. For a hold that is to last longer, use owner=, and hand_over() if another process releases it.",
        whose, hold.lock.name, hold.taken_at,
    )  # fmt: skip


def _limit(hold: Hold, held_for: float) -> None:
    """End the renewal of a hold after its ``max_hold_time``. Without one, log once that nothing ends an old hold."""
    limit = hold.max_hold_time
    if held_for < (LONG_HOLD if limit is None else limit) or (limit is None and hold.overdue):
        return
    hold.overdue = True
    if limit is None:
        outcome = "is renewed forever unless it is released; max_hold_time= or MAX_HOLD_TIME sets a limit"
    else:
        hold.renewed = False
        outcome = "has reached its max_hold_time, and is no longer renewed"
    hold.variables.copy().run(
        log, logger, logging.WARNING, "%s %r, acquired at %s by %s (%s), has been held for %.0f s: it %s.",
        hold.noun.capitalize(), hold.lock.name, hold.taken_at, hold.caller_name or "a named owner", hold.owner_id,
        held_for, outcome,
    )  # fmt: skip


def _next_look(hold: Hold, now: float) -> float:
    if hold.lost is not None:
        return now if hold.owner_ended else now + REMEMBER_LOST
    if not hold.renewed:
        return hold.deadline if hold.job is None else min(hold.deadline, now + JOB_CHECK)
    return hold.renew_at() if hold.renew_at() > now else min(now + RETRY, hold.deadline)


# --- losses ----------------------------------------------------------------------------------------------------------


def note_loss(hold: Hold, now: float) -> bool:
    """Whether the hold is lost; if its lease has just ended, that is reported."""
    if hold.lost is None and now >= hold.deadline:
        if hold.renewed and not hold.owner.is_named:
            # Renewals may have reached the server although their replies did not arrive.
            clean_up(hold.lock.using, hold.leave_call(), hold.deadline + hold.lease)
        lose(hold, hold.lease_ended())
    return hold.lost is not None


def refuse_lost(hold: Hold, now: float) -> None:
    """Raise LockLostError if the hold is lost."""
    if note_loss(hold, now):
        raise hold.lost_error()


def undo_late_copies(hold: Hold, ended: float) -> None:
    """Undo holds that late copies of its acquire may take after its end, until the lease of such a copy has ended."""
    undo = hold.kind.undo(hold.lock, hold.owner, hold.asker or hold.owner_id) if hold.late_lease else None
    if undo is not None:
        clean_up(hold.lock.using, undo, ended + hold.late_lease, again=True)


def lose(hold: Hold, reason: str) -> None:
    """Mark a hold as lost. The background thread reports it to the log, to the receivers of ``lock_lost`` and to the
    lock's callback; once, even if the owner and that thread notice it at the same time.
    """
    its = worker(hold.lock.using)
    if reason == FREED:
        reason = FORCED_RELEASES.how_freed(hold) or reason
    hold.lost = hold.lost or reason
    undo_late_copies(hold, monotonic())
    if hold.is_unconfirmed:
        # A server that has become the primary may not know of the grant, and may still have its ticket in the queue.
        clean_up(hold.lock.using, hold.leave_call(), hold.deadline)
    its.jobs[Renewals].losses.append(hold)
    its.wake()


def sure_of(holds: Iterable[Hold]) -> bool:
    """Whether these holds can be believed. Where a clock has jumped, their servers are asked; False if they do not
    answer within SURE_WITHIN seconds.
    """
    doubted = [
        hold for hold in holds if not hold.lost and has_jumped(WORKERS.value[hold.lock.using].jobs[Renewals].clocks)
    ]
    return not doubted or threads.within(SURE_WITHIN, FORCED_RELEASES.confirm, doubted) is True


def check_sure(holds: Sequence[Hold]) -> None:
    """Raise LockLostError unless these holds can be believed."""
    if not sure_of(holds):
        raise LockLostError(holds[0].lock.name, UNSURE, holds[0].noun)


def _report_loss(hold: Hold) -> None:
    lock = hold.lock
    count_hold(hold, monotonic())
    note_lost(hold)
    NEWCOMERS.counted(True)
    WAITS.hurry(lock)
    variables = hold.variables.copy()
    variables.run(
        log, logger, logging.WARNING, "%s %r (%r) was lost while held by %s: %s.",
        hold.noun.capitalize(), lock.name, lock.key, hold.owner_id, hold.lost,
    )  # fmt: skip
    variables.run(callbacks.post, _call_back, hold)


def _call_back(hold: Hold) -> None:
    """Notify the project, in the thread for callbacks."""
    lock = hold.lock
    lock_lost.notify(lock, owner=hold.owner_id, reason=hold.lost)
    if lock.on_lost is not None:
        try:
            lock.on_lost(lock)
        except Exception:
            logger.exception("The on_lost callback of %s %r failed.", hold.noun, printable(lock.name))


def _lose_all() -> None:
    """Lose the holds of the process from whose memory this one was restored: all copies would have them."""
    for hold in HOLDS.snapshot():
        lose(hold, RESTORED)


on_restore("holds", _lose_all)
