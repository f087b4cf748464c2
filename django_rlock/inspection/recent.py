"""A cache of locks that this process has just read: open pages, which refresh themselves, share readings until a
change is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from django_rlock.clock import monotonic
from django_rlock.inspection.reading import State
from django_rlock.inspection.sources import Server
from django_rlock.process import Owned
from django_rlock.scripts import ENDLESS

MAX_AGE = 5.0
"""For how long the reading of a lock counts, in seconds; shorter where leases are: see ``_lasts``."""
MAX_KEPT = 5000
"""Locks that are kept."""

Reported = Mapping[str, object]
"""What reports say of locks, by key; None for a lock that changes too fast to be kept."""


class _Seen(NamedTuple):
    """A lock as it was at a time of this process's clock, and what reports said of it."""

    state: State
    reported: object
    at: float


_seen: Owned[dict[tuple[str, str], _Seen]] = Owned("reports", dict)
"""By alias and key."""


def read_states(server: Server, using: str, reported: Reported, is_refresh: bool = False) -> dict[str, State]:
    """Those of some locks that are held. A refresh reads only what may have changed."""
    kept = _unchanged(server, using, reported) if is_refresh else {}
    asked_at = monotonic()
    found = server.read_states(sorted(reported.keys() - kept.keys()))
    if len(_seen.value) > MAX_KEPT:
        _seen.value.clear()
    for key in reported.keys() - kept.keys():
        if key in found:
            _seen.value[using, key] = _Seen(found[key], reported[key], asked_at)
        else:
            _seen.value.pop((using, key), None)
    return kept | found


def _unchanged(server: Server, using: str, reported: Reported) -> dict[str, State]:
    """The locks that were read a moment ago, if reports say the same of them and all are still there with their queues.

    The last is asked by one command for all. When it finds fewer or more of them, none counts as unchanged.
    """
    now = monotonic()
    found = {
        key: seen for key in reported if (seen := _seen.value.get((using, key))) and _counts(seen, reported[key], now)
    }
    if not found or server.count_present([*found]) != sum(seen.state.present for seen in found.values()):
        return {}
    return {key: _aged(seen.state, now - seen.at) for key, seen in found.items()}


def _counts(seen: _Seen, reported: object, now: float) -> bool:
    return reported is not None and reported == seen.reported and now - seen.at < _lasts(seen.state)


def _lasts(state: State) -> float:
    """For how long a reading counts. Leases are renewed when a third is over: what is shown of the time left must not
    look as if that had failed."""
    return MAX_AGE if state.pttl == ENDLESS else min(MAX_AGE, state.pttl / 6000)


def _aged(state: State, seconds: float) -> State:
    return state if state.pttl == ENDLESS else replace(state, pttl=max(state.pttl - round(1000 * seconds), 1))
