"""Puts what reports tell beside what the locks are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django_rlock.inspection.infos import CLIENT_LENGTH, Holder, LockInfo, LockState, Waiter
from django_rlock.inspection.reading import MAX_PARTIES, NO_EXPIRY, Entry, Report, State
from django_rlock.reports import BEAT
from django_rlock.settings import get_settings

SILENT_AFTER = 3 * BEAT
"""The age of a process's last beat from which it counts as silent, in seconds."""


class Builder:
    """Makes the infos of one alias's locks from the reports of all processes, at the server's time
    ``now``."""

    def __init__(self, using: str, now: float, reports: Iterable[Report]) -> None:
        self._using = using
        self._prefix = get_settings(using).key_prefix
        self._now = now
        self._reports: dict[str, Report] = {}
        self._holds: dict[tuple[str, str], tuple[Entry, Report]] = {}
        self._waits: dict[str, dict[str, tuple[Entry, Report]]] = {}
        for report in reports:
            self._add(report)

    def keys(self) -> set[str]:
        """The keys of this alias that a report names."""
        keys = {key for key, _ in self._holds} | self._waits.keys()
        return {key for key in keys if key.startswith(self._prefix)}

    def infos(self, states: Mapping[str, State]) -> list[LockInfo]:
        return [self._info(key, state) for key, state in states.items()]

    def _add(self, report: Report) -> None:
        self._reports[report.client] = report
        self._holds.update({(entry.key, entry.owner): (entry, report) for entry in report.holds})
        for entry in report.waits:
            self._waits.setdefault(entry.key, {})[entry.owner] = entry, report

    def _info(self, key: str, state: State) -> LockInfo:
        holders = tuple(self._holder(key, owner, count) for owner, count in state.holds.items())
        holds = [self._holds[key, owner][0] for owner in state.holds if (key, owner) in self._holds]
        waits = [entry for entry, _ in self._waits.get(key, {}).values()]
        waiters = self._waiters(key, state)
        return LockInfo(
            name=key.removeprefix(self._prefix),
            key=key,
            using=self._using,
            kind=next((entry.kind for entry in (*holds, *waits)), ""),
            holders=holders,
            state=_state(state, holders),
            remaining_lease=None if state.pttl == NO_EXPIRY else state.pttl / 1000,
            lease=next((entry.lease for entry in holds), None),
            waiters=waiters,
            waiting=max(state.waiting, len(waiters)),
            nodes=state.nodes,
        )

    def _holder(self, key: str, owner: str, count: int) -> Holder:
        entry, report = self._holds.get((key, owner), (None, self._reports.get(owner[:CLIENT_LENGTH])))
        heard_ago = None if report is None else max(self._now - report.beat, 0.0)
        return Holder(
            **_party(owner, entry, report),
            count=count,
            held_for=self._age(entry),
            heard_ago=heard_ago,
            silent=heard_ago is not None and heard_ago > SILENT_AFTER,
        )

    def _waiters(self, key: str, state: State) -> tuple[Waiter, ...]:
        """The queue in its order, then those that only reports name, the longest waiting first."""
        told = self._waits.get(key, {})
        others = [
            (entry.since or 0.0, owner)
            for owner, (entry, report) in told.items()
            if owner not in state.queue and owner not in state.holds and self._now - report.beat <= SILENT_AFTER
        ]
        owners = [*state.queue, *(owner for _, owner in sorted(others))][:MAX_PARTIES]
        return tuple(
            self._waiter(owner, *told.get(owner, (None, self._reports.get(owner[:CLIENT_LENGTH])))) for owner in owners
        )

    def _waiter(self, owner: str, entry: Entry | None, report: Report | None) -> Waiter:
        return Waiter(**_party(owner, entry, report), waited=self._age(entry))

    def _age(self, entry: Entry | None) -> float | None:
        return None if entry is None or entry.since is None else max(self._now - entry.since, 0.0)


def _party(owner: str, entry: Entry | None, report: Report | None) -> dict[str, Any]:
    return {
        "owner": owner,
        "client": report.client if report else owner[:CLIENT_LENGTH],
        "host": report.host if report else None,
        "pid": report.pid if report else None,
        "role": report.role if report else "",
        "place": entry.place if entry else "",
        "context": dict(entry.context) if entry else {},
    }


def _state(state: State, holders: Iterable[Holder]) -> LockState:
    if state.pttl == NO_EXPIRY:
        return LockState.NO_EXPIRY
    if any(holder.silent for holder in holders):
        return LockState.SILENT
    return LockState.UNKNOWN if all(holder.heard_ago is None for holder in holders) else LockState.HELD
