"""Locks that this process takes many times a second: too short for the report's holds, so their rate is reported."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from django_rlock.locks.records import BatchHold, Hold
from django_rlock.locks.statistics import MAX_RECENT
from django_rlock.reports.about import described_context
from django_rlock.settings import get_settings

LEAST_RATE = 1.0
"""How often a process takes a lock at least for it to be hot, per second."""
MAX_HOT = 10
"""How many hot locks a process reports; the hottest."""
MAX_NAMED = 3
"""How many of its last holders, that are different threads or tasks, are named."""
_FEW = 10
"""Of more locks that were taken together, none is counted."""

Held = Hold | BatchHold


class HotLock:
    """A lock and its rate per second; ``recent`` are holds of different owners, the last one first."""

    def __init__(self, using: str, name: str, rate: float, recent: Iterable[Held]) -> None:
        self.using = using
        self._name = name
        self._rate = rate
        self._recent = list(recent)
        self._clock: float | None = None
        self._pair = "", ""

    def field(self, clock: float) -> tuple[str, str]:
        """Its field of the report, and the JSON there, which is the same object while ``clock`` is the same."""
        if clock != self._clock:
            self._clock, self._pair = clock, self._made(clock)
        return self._pair

    def _made(self, clock: float) -> tuple[str, str]:
        key = get_settings(self.using).key_prefix + self._name
        holders = [
            {
                "by": held.owner.serial,
                "at": round(held.since + clock, 3),
                "place": held.owner.place,
                "context": described_context(self.using, held.context),
            }
            for held in self._recent
        ]
        document = {"key": key, "rate": float(f"{self._rate:.3g}"), "holders": holders}
        return f"hot {key}", json.dumps(document, separators=(",", ":"))


def hot_locks(recent: Sequence[Held], since: float, now: float) -> list[HotLock]:
    """The hot locks between two monotonic times, from the last MAX_RECENT holds since then."""
    if len(recent) == MAX_RECENT:
        since = max(since, recent[0].since)  # there were more before
    by_name: dict[tuple[str, str], list[Held]] = defaultdict(list)
    for held in recent:
        for using, name in _names(held):
            by_name[using, name].append(held)
    rates = Counter({lock: len(holds) / (now - since) for lock, holds in by_name.items()})
    return [
        HotLock(*lock, rate, _last_of_each(by_name[lock]))
        for lock, rate in rates.most_common(MAX_HOT)
        if rate >= LEAST_RATE
    ]


def _names(held: Held) -> list[tuple[str, str]]:
    """Alias and name of each lock that was held."""
    if isinstance(held, Hold):
        return [held.key[:2]]
    places = held.group.places if len(held.group.places) <= _FEW else []
    return [(using, name) for using, name, _ in places]


def _last_of_each(holds: list[Held]) -> list[Held]:
    """The last hold of each of the last owners."""
    latest: dict[object, Held] = {}
    for held in reversed(holds):
        latest.setdefault(held.owner.serial, held)
    return list(latest.values())[:MAX_NAMED]
