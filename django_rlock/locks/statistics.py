"""Statistics, log records and signals about what this process does with locks."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from django_rlock import signals
from django_rlock._core.callbacks import is_logged, log
from django_rlock._core.clock import monotonic
from django_rlock._core.process import on_fork
from django_rlock.locks.kinds import AbstractLock, Group, Named, group_of
from django_rlock.locks.records import Hold, context
from django_rlock.settings import settings_of

if TYPE_CHECKING:
    from django_rlock.locks.attempt import Attempt

# --- counting ---------------------------------------------------------------------------------------------------------

# Statistics about locks, for the reports, counted where the events happen.
#
# Callers count without a mutex: by single C calls, or by a comparison whose race is harmless. Only the
# reporter's thread takes anything out. The number of names is unlimited, so locks are counted by template; without a
# template, by the prefix of their names.

MAX_GROUPS = 50
"""How many groups are counted; the locks of further groups are counted together, for each alias."""
MAX_RECENT = 500
FEW = 10
"""Of the locks that were taken together, only so many are among the last holds."""
MAX_EVENTS = 50
LONG_WAIT = 0.001
"""Shorter waits are not worth counting, in seconds."""
_LONG_SPAN = 0.01
"""Holds and waits from this length on are not lost among more than MAX_RECENT short ones, in seconds."""
_MAX_LONG_SPAN = 2000
_MAX_NAMES = 1000


class Span(NamedTuple):
    """A "hold" of a lock, or a "wait" for one, which ended after ``seconds``; or a hold that was "lost", or "freed" by
    force. ``at`` is the monotonic time of that, ``group`` the group of locks in which it is counted.

    ``failure`` is why a hold was lost or freed, "" for a wait that ended without the lock; it is None for a hold or
    wait that ended as intended. ``place`` and ``context`` describe the owner, as in ``Hold``; of a forced release, the
    operator's code. ``owner`` is the owner id that lost the lock, "" for any holder; ``by`` is the operator, if any,
    and ``whom`` describes the holder.
    """

    what: str
    group: Group
    name: str
    at: float
    seconds: float
    place: str
    context: dict[str, str] | None
    failure: str | None = None
    owner: str = ""
    by: str = ""
    whom: str = ""

    @property
    def using(self) -> str:
        return self.group[0]


class Count:
    """Counts calls of ``add``, by any threads."""

    __slots__ = ("_taken", "add")

    def __init__(self) -> None:
        self.add = itertools.count().__next__
        self._taken = 0

    def take(self) -> int:
        """How often ``add`` was called since the last ``take``. For one thread only."""
        number = self.add()
        new, self._taken = number - self._taken, number + 1
        return new


class LockStatistics:
    """The locks of one group: successful attempts, and attempts that gave up."""

    __slots__ = ("acquired", "gave_up", "group")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.acquired = Count()
        self.gave_up = Count()


class Statistics:
    """All groups of this process, and what has ended since the reporter looked: the last holds, the last waits, all
    long ones, and the losses and forced releases."""

    def __init__(self) -> None:
        self.groups: dict[Group, LockStatistics] = {}
        self.recent: deque[Hold] = deque(maxlen=MAX_RECENT)
        self.waits: deque[Span] = deque(maxlen=MAX_RECENT)
        self.long: deque[Hold | Span] = deque(maxlen=_MAX_LONG_SPAN)
        self.events: deque[Span] = deque(maxlen=MAX_EVENTS)
        self._by_name: dict[str, LockStatistics] = {}

    def of(self, lock: Named) -> LockStatistics:
        """The statistics of a lock's group."""
        if lock.template:
            return self.at((lock.using, lock.template, ""))  # as group_of() makes it
        # To find it by the lock's own name is faster than to make the group's.
        counters = self._by_name.get(lock.name)
        if counters is None or counters.group[0] != lock.using:
            counters = self.at(group_of(lock))
            if len(self._by_name) >= _MAX_NAMES:
                self._by_name.clear()
            self._by_name[lock.name] = counters
        return counters

    def at(self, group: Group) -> LockStatistics:
        """The statistics of a group; if there are too many groups, the statistics of other locks."""
        counters = self.groups.get(group)
        if counters is None:
            if len(self.groups) >= MAX_GROUPS:
                group = group[0], "", ""
            counters = self.groups.setdefault(group, LockStatistics(group))
        return counters

    def forget(self, group: Group) -> None:
        """Forget a group without events for a long time."""
        self.groups.pop(group, None)
        self._by_name.clear()

    def clear(self) -> None:
        self.groups.clear()
        self._by_name.clear()
        self.recent.clear()
        self.waits.clear()
        self.long.clear()
        self.events.clear()


STATISTICS = Statistics()
operator: ContextVar[tuple[str, str, str] | None] = ContextVar("rlock_operator", default=None)
"""The operator that frees locks by force in this context, the reason, and a description of the holder."""


def count_hold(hold: Hold, now: float) -> None:
    """Count a hold that ends now."""
    hold.ended = now
    STATISTICS.recent.append(hold)
    if now - hold.since >= _LONG_SPAN:
        STATISTICS.long.append(hold)
    STATISTICS.of(hold.lock).acquired.add()


def count_together(holds: Sequence[Hold], groups: Iterable[Group], now: float) -> None:
    """Count locks that were taken together and are released now, once for each of their groups."""
    for hold in holds:
        hold.ended = now
    STATISTICS.recent.extend(holds[:FEW])
    if now - holds[0].since >= _LONG_SPAN:
        STATISTICS.long.extend(holds[:FEW])
    for group in groups:
        STATISTICS.at(group).acquired.add()


def count_wait(lock: Named, caller_name: str, waited: float, failure: str | None = None) -> None:
    """Count a wait that has ended after ``waited`` seconds."""
    group = STATISTICS.of(lock).group
    span = Span("wait", group, lock.name, monotonic(), waited, caller_name, context.get(), failure)
    STATISTICS.waits.append(span)
    if waited >= _LONG_SPAN:
        STATISTICS.long.append(span)


def note_lost(hold: Hold) -> None:
    """Record a hold that was lost."""
    group, name, now = group_of(hold.lock), hold.lock.name, monotonic()
    STATISTICS.events.append(
        Span("lost", group, name, now, 0.0, hold.caller_name, hold.context, hold.lost or "", hold.owner_id)
    )


def note_freed(lock: Named, owner: str | None, reason: str, caller_name: str) -> None:
    """Record a lock that was freed by force, by the ``operator`` or by the code at hand."""
    by, why, whom = operator.get() or ("", reason, "")
    group, name, now = group_of(lock), lock.name, monotonic()
    STATISTICS.events.append(
        Span("freed", group, name, now, 0.0, caller_name, context.get(), why, owner or "", by, whom)
    )


on_fork("holds", STATISTICS.clear)

# --- logs and signals -------------------------------------------------------------------------------------------------

# Log records and signals about locks that are taken, released or given up.

logger = logging.getLogger("django_rlock.locks")


SLOW_WAIT = 0.1
"""The shortest successful wait that ``lock_waited`` reports, in seconds."""
lock_waited = signals.LockSignal("acquired")
"""As ``lock_acquired``, but only after a SLOW_WAIT: its receivers, such as breadcrumbs, cost other acquires nothing."""


def report_acquired(lock: AbstractLock, owner_id: str, count: int, waited: float) -> None:
    if logger.getEffectiveLevel() <= logging.DEBUG:  # hardly ever, and calling ``log`` takes longer than this
        log(logger, logging.DEBUG, "Acquired %r as %s (%d), after %.3f s.", lock.name, owner_id, count, waited)
    if signals.lock_acquired.receivers:
        outcome = signals.lock_acquired.outcome if count == 1 else "reentered"
        signals.lock_acquired.notify(lock, owner=owner_id, count=count, waited=waited, outcome=outcome)
    if waited >= SLOW_WAIT:
        lock_waited.notify(lock, waited=waited)


def report_taken(locks: Iterable[AbstractLock], owner_id: str) -> None:
    """Log and signal that locks were taken."""
    if signals.lock_acquired.receivers or is_logged(logger, logging.DEBUG):
        for lock in locks:
            report_acquired(lock, owner_id, 1, 0.0)


def reports_release(lock: AbstractLock, held: float) -> bool:
    """Whether the release of a lock held for ``held`` seconds is logged or signalled."""
    level = logging.DEBUG if held < settings_of(lock.using).slow_hold else logging.WARNING
    return bool(signals.lock_released.receivers) or is_logged(logger, level)


def report_released(lock: Named, hold: Hold, now: float) -> None:
    held = now - hold.since
    level = logging.DEBUG if held < settings_of(lock.using).slow_hold else logging.WARNING  # as reports_release()
    if logger.getEffectiveLevel() <= level:
        log(logger, level, "Released %r as %s, after %.3f s.", lock.name, hold.owner_id, held)
    if signals.lock_released.receivers:
        signals.lock_released.notify(lock, owner=hold.owner_id, held=held)


def report_timed_out(failed: Attempt, waited: float) -> None:
    lock = failed.lock
    STATISTICS.of(lock).gave_up.add()
    in_queue = waited if failed.tries > 1 else 0.0
    count_wait(lock, failed.owner.caller_name, in_queue, failure="")
    signals.lock_timed_out.notify(lock, owner=failed.owner_id, waited=waited)


def log_timed_out(failed: Attempt, waited: float, is_news: bool, holder: str | None) -> None:
    level = logging.INFO if is_news else logging.DEBUG
    if is_logged(logger, level):
        taken = f"held by {holder}" if holder else "taken"
        log(logger, level, "Lock %r is %s; %s gave up after %.3f s.", failed.lock.name, taken, _asker(failed), waited)


def _asker(failed: Attempt) -> str:
    """Who asked for a lock: the work and its user, the thread or task, and the owner id."""
    about: Mapping[str, str] = (context.get() or {}) if settings_of(failed.lock.using).record_context else {}
    work = " ".join([about[key] for key in ("route", "task", "task_id") if about.get(key)])
    user = f"user {about['user']}" if about.get("user") else ""
    return ", ".join(filter(None, [work, user, failed.owner.caller_name, failed.owner_id]))
