"""Combines reports with the current state of locks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from django_rlock.clock import monotonic
from django_rlock.inspection.infos import (
    CLIENT_LENGTH,
    Holder,
    LockInfo,
    LockState,
    Party,
    Waiter,
    WaitingProcess,
)
from django_rlock.inspection.parsing import Entry, HotEntry, Report, actor_of
from django_rlock.inspection.reading import MAX_PARTIES, State
from django_rlock.inspection.reported import ByLock, Reported, longest
from django_rlock.keys import is_kept
from django_rlock.reports import HEARTBEAT
from django_rlock.reports.hot import MAX_NAMED
from django_rlock.scripts import ENDLESS
from django_rlock.settings import get_settings

_FREE = State({}, 0, (), 0)
SILENT_AFTER = 3 * HEARTBEAT
"""The age of a process's last heartbeat from which it counts as silent, in seconds."""


class Builder:
    """Makes the infos of one alias's locks from the reports of all processes, at the server's time
    ``now``."""

    def __init__(self, using: str, now: float, reports: Collection[Report]) -> None:
        self.using = using
        self.prefix = get_settings(using).key_prefix
        self.reports = {report.client: report for report in reports}
        self._lease = get_settings(using).watchdog_timeout
        self.now = now
        self._clock = now - monotonic()
        self._silent = {report.client for report in self.reports.values() if now - report.heartbeat > SILENT_AFTER}
        self._holds = ByLock([entry for report in self.reports.values() for entry in report.holds])
        self._waits = ByLock([entry for report in self.reports.values() for entry in report.waits])
        self._hot: dict[str, list[tuple[HotEntry, Report]]] = defaultdict(list)
        for report in reports:  # not only the later of two of this process, which says nothing of hot locks
            for hot in report.hot if report.client not in self._silent else ():
                self._hot[hot.key].append((hot, report))

    def keys(self) -> set[str]:
        """The keys of this alias that a report names."""
        named = self._holds.keys | self._waits.keys | self._hot.keys()
        return {key for key in named if key.startswith(self.prefix)}

    def reported(self) -> list[Reported]:
        """The locks of this alias as reported, in no order."""
        single = {} if self._silent else self._holds.single()
        waited_for, prefix = self._waits.keys, self.prefix
        found = [
            Reported(self, key, entry)
            for key, entry in single.items()
            if key not in waited_for and key.startswith(prefix)
        ]
        others = (self._holds.keys - single.keys()) | waited_for | (self._hot.keys() - single.keys())
        return found + [lock for key in others if key.startswith(prefix) for lock in self._filtered(key)]

    def hot(self, keys: Iterable[str]) -> list[LockInfo]:
        """Those of some free locks that are taken many times a second."""
        return self.infos({key: _FREE for key in keys if self.is_hot(key)})

    def report_of(self, key: str) -> object:
        """All that is reported of a lock, to be compared; None for a hot one, which changes all the time."""
        return None if self.is_hot(key) else ([*self._holds.of(key)], [*self._waits.of(key)])

    def is_hot(self, key: str) -> bool:
        return key in self._hot

    def infos(self, states: Mapping[str, State]) -> list[LockInfo]:
        return [self._info(key, state) for key, state in states.items()]

    def whole(self, key: str) -> LockInfo:
        """All that is reported of a lock."""
        left = {entry.owner: (entry.holds, self.left(entry)) for entry in self._holds.of(key)}
        holds = {owner: count for owner, (count, seconds) in left.items() if seconds > 0}
        most = max((seconds for _, seconds in left.values()), default=0.0)
        return self._info(key, State(holds, int(1000 * max(most, 0.0)), (), 0))

    def age(self, entry: Entry) -> float | None:
        """How long a hold or wait has lasted, in seconds; None when that is not known."""
        return None if entry.since is None else max(self.now - entry.since, 0.0)

    def _filtered(self, key: str) -> Iterator[Reported]:
        """A lock without the holds and waits that have ended with their processes, if any is left."""
        holds = [entry for entry in self._holds.of(key) if self.left(entry) > 0]
        waits = self._outside(self._waits.of(key), (entry.owner for entry in holds))
        if holds or waits or self.is_hot(key):
            silent = any(entry.client in self._silent for entry in holds)
            yield Reported(self, key, longest(holds or waits), holds, waits, silent)

    def left(self, entry: Entry) -> float:
        """What is left of a lease as reported, in seconds: renewals have ended with their process."""
        lease = entry.lease or self._lease
        return min(self.reports[entry.client].heartbeat + SILENT_AFTER + lease - self.now, lease)

    def _outside(self, waits: Iterable[Entry], others: Iterable[str]) -> list[Entry]:
        """The waits of owners that live and are not among ``others``."""
        known = set(others)
        return [entry for entry in waits if entry.client not in self._silent and entry.owner not in known]

    def _info(self, key: str, state: State) -> LockInfo:
        holds, waits = self._holds.by_owner(key), self._waits.by_owner(key)
        holders = tuple([self._holder(owner, count, holds.get(owner)) for owner, count in state.holds.items()])
        first = next((holds[owner] for owner in state.holds if owner in holds), None)
        waiters = self._waiters(state, waits) if waits or state.queue else []
        left = None if state.pttl == ENDLESS else state.pttl / 1000
        return LockInfo(
            name=key.removeprefix(self.prefix),
            key=key,
            using=self.using,
            kind=first.kind if first else next((entry.kind for entry in waits.values()), ""),
            holders=holders,
            state=_state(state, holders, self.is_hot(key)),
            remaining_lease=left,
            until=None if left is None else self._clock + monotonic() + left,
            lease=first.lease if first else None,
            waiters=tuple(waiters[:MAX_PARTIES]),
            waiting=max(state.waiting, len(waiters)),
            crowds=_crowds(waiters),
            nodes=state.nodes,
            rate=sum(hot.rate for hot, _ in self._hot[key]) if self.is_hot(key) else None,
            recent=self._recent(self._hot.get(key, ())),
        )

    def _recent(self, reported: Iterable[tuple[HotEntry, Report]]) -> tuple[Party, ...]:
        """The last holders of a hot lock, the very last one first."""
        holds = [(*holder, report) for hot, report in reported for holder in hot.holders]
        return tuple(
            Party(
                owner="",
                actor=actor,
                client=report.client,
                host=report.host,
                pid=report.pid,
                role=report.role,
                place=place,
                context=context,
            )
            for _, actor, place, context, report in sorted(holds, key=lambda hold: -hold[0])[:MAX_NAMED]
        )

    def _holder(self, owner: str, count: int, entry: Entry | None) -> Holder:
        report = self._report(owner, entry)
        heard_ago = None if report is None else max(self.now - report.heartbeat, 0.0)
        return Holder(
            **self._party(owner, entry, report),
            count=count,
            held_for=self.age(entry) if entry else None,
            since=entry.since if entry else None,
            heard_ago=heard_ago,
            silent=heard_ago is not None and heard_ago > SILENT_AFTER,
        )

    def _waiters(self, state: State, waits: Mapping[str, Entry]) -> list[Waiter]:
        """The first waiters of the queue in order, then waiters in reports only, with the longest wait first."""
        others = self._outside(waits.values(), (*state.queue, *state.holds))
        others.sort(key=lambda entry: (entry.since or 0.0, entry.owner))
        owners = [*state.queue, *(entry.owner for entry in others)]
        return [self._waiter(owner, waits.get(owner)) for owner in owners]

    def _waiter(self, owner: str, entry: Entry | None) -> Waiter:
        party = self._party(owner, entry, self._report(owner, entry))
        return Waiter(**party, waited=self.age(entry) if entry else None, since=entry.since if entry else None)

    def _report(self, owner: str, entry: Entry | None) -> Report | None:
        return self.reports.get(entry.client if entry else owner[:CLIENT_LENGTH])

    @cached_property
    def _actors(self) -> dict[str, str]:
        entries = (entry for report in self.reports.values() for entry in (*report.holds, *report.waits))
        return {actor_of(entry.owner): entry.actor for entry in entries}

    def _party(self, owner: str, entry: Entry | None, report: Report | None) -> dict[str, Any]:
        # What is too young for a report is its owner's nevertheless, who may have another entry.
        bare = actor_of(owner)
        return {
            "owner": owner,
            "actor": entry.actor if entry else self._actors.get(bare, bare),
            "client": report.client if report else "" if is_kept(owner) else owner[:CLIENT_LENGTH],
            "host": report.host if report else None,
            "pid": report.pid if report else None,
            "role": report.role if report else "",
            "place": entry.place if entry else "",
            "context": entry.context if entry else {},
        }


def _crowds(waiters: Iterable[Waiter]) -> tuple[WaitingProcess, ...]:
    """The processes of waiters, the largest crowd first, if any has more than one."""
    by_process: dict[str, list[Waiter]] = defaultdict(list)
    for waiter in waiters:
        by_process[waiter.client].append(waiter)
    crowds = [WaitingProcess.of(several) for several in by_process.values()]
    if not any(crowd.count > 1 for crowd in crowds):
        return ()
    return tuple(sorted(crowds, key=lambda crowd: -crowd.count)[:MAX_PARTIES])


def _state(state: State, holders: Collection[Holder], is_hot: bool) -> LockState:
    if state.pttl == ENDLESS:
        return LockState.NO_EXPIRY
    if any(holder.silent for holder in holders):
        return LockState.SILENT
    if is_hot and all(holder.held_for is None for holder in holders):
        return LockState.HOT
    is_unknown = all(holder.heard_ago is None and not is_kept(holder.owner) for holder in holders)
    return LockState.UNKNOWN if is_unknown else LockState.HELD
