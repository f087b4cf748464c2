"""Gauges of the locks of all processes, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from django_rlock._monitoring.listing import Overview
from django_rlock.locks.infos import LockState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""


def exposition(overview: Overview) -> str:
    """All gauges of an overview of all locks, by alias."""
    return "".join(line + "\n" for line in _lines(overview))


def _lines(overview: Overview) -> Iterator[str]:
    states: Counter[tuple[str, str]] = Counter()
    waiting: Counter[str] = Counter()
    longest: dict[str, float] = defaultdict(float)
    for lock in overview.listed:
        states[lock.using, lock.state] += 1
        waiting[lock.using] += lock.waiting
        if lock.waiting and lock.longest_wait:
            longest[lock.using] = max(longest[lock.using], lock.longest_wait[0])
    aliases = [alias for alias, _ in overview.summary.aliases]
    by_state = [
        ({"alias": alias, "state": state}, states[alias, state]) for alias in aliases for state in LockState.values
    ]
    yield from _gauge("rlock_locks", "locks by their most urgent state", by_state)
    yield from _gauge("rlock_waiters", "owners that wait", (({"alias": each}, waiting[each]) for each in aliases))
    about = "the longest current wait"
    yield from _gauge("rlock_longest_wait_seconds", about, (({"alias": each}, longest[each]) for each in aliases))
    yield from _gauge("rlock_deadlocks", "circles of owners that wait for each other", [({}, len(overview.deadlocks))])
    yield from _gauge("rlock_processes", "processes that hold locks or wait", [({}, len(overview.processes))])
    unread = [({"alias": using}, 1.0) for using, _ in overview.problems]
    yield from _gauge("rlock_unread", "1 for an alias that could not be read", unread)


def _gauge(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
