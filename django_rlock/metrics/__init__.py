"""The table of metrics, from which the exporters in this package make their instruments; and breadcrumbs for Sentry.

Labels have few values, however many locks there are: templates, but never names, owners or ids. Signals are recorded in
the thread for callbacks, because exporters take mutexes. A caller must neither wait for them while it takes a lock, nor
leave them locked when it is interrupted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_rlock._core.callbacks import post
from django_rlock._core.text import printable
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.kinds import Named
from django_rlock.locks.statistics import lock_waited
from django_rlock.signals import (
    LockSignal,
    lock_acquired,
    lock_force_released,
    lock_lost,
    lock_released,
    lock_timed_out,
    lock_unavailable,
    task_deduplicated,
    task_deferred,
    task_skipped,
)

LABELS = ("template", "kind", "alias")
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""The upper bounds of histograms, in seconds; they include the defaults of VIEW_WAIT_TIME, SLOW_HOLD and
WATCHDOG_TIMEOUT."""

Record = Callable[[Mapping[str, str], float], object]
"""Records a value with labels, in the order of the event's labels."""


@dataclass(frozen=True)
class Event:
    """A metric made from signals: a counter, or a histogram of the signals' keyword ``seconds``.

    ``begins`` is a signal that makes the counter start at 0: Prometheus sees no increase in a counter that first
    appears with its first event.
    """

    name: str
    text: str
    signals: Sequence[LockSignal]
    seconds: str | None = None
    labels: tuple[str, ...] = LABELS
    begins: LockSignal | None = None

    @property
    def sources(self) -> set[LockSignal]:
        """The signals that are recorded."""
        return {*self.signals, *([self.begins] if self.begins else [])}

    def value(self, given: Mapping[str, Any]) -> float:
        """The value to record for a signal with these keywords."""
        if given["signal"] is self.begins:
            return 0
        return 1 if self.seconds is None else given[self.seconds]


@dataclass
class Level:
    """A gauge: a number of locks in this process, read from the tables on request."""

    name: str
    text: str
    locks: Callable[[], Iterable[Named]]
    _last: dict[tuple[str, ...], int] = field(default_factory=dict)

    def read(self) -> dict[tuple[str, ...], int]:
        """The numbers by the values of LABELS; 0 for values that have appeared before."""
        now: Counter[tuple[str, ...]] = Counter(
            (printable(lock.template), lock.kind, lock.using) for lock in self.locks()
        )
        # A gauge that vanished would keep its last value in dashboards.
        self._last = {**dict.fromkeys(self._last, 0), **now}
        return self._last


_ACQUIRES = lock_acquired, lock_timed_out, lock_unavailable
_BY_OUTCOME = *LABELS, "outcome"

EVENTS = (
    Event("rlock.acquisitions", "Attempts to take a lock, by outcome.", _ACQUIRES, labels=_BY_OUTCOME),
    Event("rlock.wait", "How long attempts to take a lock waited.", _ACQUIRES, "waited", labels=_BY_OUTCOME),
    Event("rlock.hold", "How long locks were held, until they were released.", [lock_released], "held"),
    Event("rlock.lost", "Holds that were lost before they were released.", [lock_lost], begins=lock_acquired),
    Event("rlock.force_released", "Locks that this process freed by force.", [lock_force_released]),
    Event(
        "rlock.tasks_not_run",
        "Messages of a LockedTask that were delivered but did not run, or were not sent, by outcome.",
        [task_skipped, task_deferred, task_deduplicated],
        labels=_BY_OUTCOME,
    ),
)
LEVELS = (
    Level("rlock.held", "Locks that this process holds.", HOLDS.locks),
    Level("rlock.waiting", "Waits for a lock in this process.", lambda: [wait.lock for wait in WAITS.snapshot()]),
)


def feed(record_of: Callable[[Event], Record]) -> None:
    """Record the signals of each event from now on, with the recorder made for it."""
    records = [(event, record_of(event)) for event in EVENTS]
    for signal in {signal for event in EVENTS for signal in event.sources}:
        own = [(event, record) for event, record in records if signal in event.sources]
        signal.connect(_receiver(own), weak=False)


def _receiver(records: Sequence[tuple[Event, Record]]) -> Callable[..., None]:
    def receive(**given: Any) -> None:
        post(_record, records, given)

    return receive


def _record(records: Sequence[tuple[Event, Record]], given: Mapping[str, Any]) -> None:
    for event, record in records:
        record({label: printable(given[label]) for label in event.labels}, event.value(given))


# --- breadcrumbs ------------------------------------------------------------------------------------------------------

# An error's event in Sentry names the locks that were waited for, lost or force-released before.
#
# The caller's thread adds them, so that an error that follows at once has them. ``add_breadcrumb()`` takes no mutex
# that an interrupted caller could leave locked, and does nothing before ``sentry_sdk.init()``.

BREADCRUMBS = "django_rlock.breadcrumbs"
"""The receivers' id."""
_MESSAGES = {
    "acquired": ("info", "Waited {waited:.3f} s for lock {name!r}"),
    "timed_out": ("warning", "Lock {name!r} was still held after {waited:.3f} s"),
    "unavailable": ("error", "Lock {name!r} was unavailable for {waited:.3f} s: {reason}"),
    "lost": ("error", "Lock {name!r} was lost: {reason}"),
    "force_released": ("warning", "Lock {name!r} was freed by force: {reason}"),
}
"""The level and the text for each outcome."""
_DATA = "template", "kind", "alias", "waited", "reason"


def leave_breadcrumbs() -> None:
    """Leave breadcrumbs from now on."""
    for signal in lock_waited, lock_timed_out, lock_unavailable, lock_lost, lock_force_released:
        signal.connect(_add_breadcrumb, dispatch_uid=BREADCRUMBS)


def _add_breadcrumb(**given: Any) -> None:
    sentry = sys.modules.get("sentry_sdk")
    if sentry is None:
        return
    level, message = _MESSAGES[given["outcome"]]
    shown = {"name": given["lock"].name, **{key: given[key] for key in _DATA if key in given}}
    data = {key: printable(value) if isinstance(value, str) else value for key, value in shown.items()}
    sentry.add_breadcrumb(category="lock", level=level, message=message.format(**data), data=data)
