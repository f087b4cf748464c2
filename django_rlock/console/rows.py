"""The content of a row of a list: a lock as reported, the same with its current state, and as a page shows it."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django_rlock._core.clock import monotonic
from django_rlock._monitoring.documents import HEARTBEAT, MAX_NAMED, Entry, HotEntry, Report, actor_of
from django_rlock._redis.keys import is_kept
from django_rlock._redis.scripts import ENDLESS
from django_rlock.console.reading import MAX_PARTIES, State
from django_rlock.locks.infos import (
    CLIENT_LENGTH,
    Deadlock,
    Holder,
    LockInfo,
    LockState,
    Party,
    Waiter,
    WaitingProcess,
    doing,
)
from django_rlock.settings import get_settings

# --- locks as reported ------------------------------------------------------------------------------------------------

# Locks as reported. A list counts, sorts and filters thousands of locks by a few values, and shows fifty of them.

Entries = Sequence[Entry]
_HELD, _HOT, _SILENT, _UNKNOWN = LockState.HELD, LockState.HOT, LockState.SILENT, LockState.UNKNOWN


class ByLock:
    """Reported holds or waits, by lock and owner. Most locks have only one entry, which is stored without a mapping."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._last = {entry.key: entry for entry in entries}
        self._several: dict[str, dict[str, Entry]] = {}
        # No lock has several entries, as usual: nothing else is needed.
        if len(self._last) == len(entries):
            return
        for entry in entries:
            if entry is not self._last[entry.key]:
                self._several.setdefault(entry.key, {})[entry.owner] = entry
        for key, others in self._several.items():
            others[self._last[key].owner] = self._last[key]

    @property
    def keys(self) -> Set[str]:
        return self._last.keys()

    def single(self) -> dict[str, Entry]:
        """The locks with a single entry, by key."""
        if not self._several:
            return self._last
        return {key: entry for key, entry in self._last.items() if key not in self._several}

    def of(self, key: str) -> Entries:
        """The entries of one lock."""
        if key in self._several:
            return [*self._several[key].values()]
        return (self._last[key],) if key in self._last else ()

    def by_owner(self, key: str) -> Mapping[str, Entry]:
        return {entry.owner: entry for entry in self.of(key)}


class Reported:
    """A light stand-in for LockInfo: what lists need of every lock is computed here; the rest builds the LockInfo on
    demand, as ``info``.

    ``entry`` is the longest hold, and the only hold if ``holds`` is None; without holds it is the longest wait; it is
    None for a hot lock without entries. ``report`` is the report of the holder's process. ``silent`` is whether the
    process of any holder is silent.
    """

    __slots__ = (
        "_builder", "_holds", "_info", "entry", "held_for", "is_held", "key", "state", "waiting", "waits",
    )  # fmt: skip

    def __init__(
        self,
        builder: Builder,
        key: str,
        entry: Entry | None,
        holds: Entries | None = None,
        waits: Entries = (),
        silent: bool = False,
    ) -> None:
        self._builder = builder
        self._info: LockInfo | None = None
        self.key = key
        self.entry = entry
        self.waits = waits
        self.waiting = len(waits)
        self._holds = holds
        self.is_held = holds is None or bool(holds)
        self.held_for: float | None = None
        if entry and self.is_held:
            self.state = _SILENT if silent else _HELD
            if entry.since is not None:
                self.held_for = age if (age := builder.now - entry.since) > 0.0 else 0.0
        else:
            self.state = _HOT if builder.is_hot(key) else _UNKNOWN

    @property
    def info(self) -> LockInfo:
        if self._info is None:
            self._info = self._builder.whole(self.key)
        return self._info

    def __getattr__(self, name: str) -> Any:
        return getattr(self.info, name)

    @property
    def using(self) -> str:
        return self._builder.using

    @property
    def name(self) -> str:
        return self.key.removeprefix(self._builder.prefix)

    @property
    def report(self) -> Report | None:
        return self._builder.reports[self.entry.client] if self.entry and self.is_held else None

    @property
    def kind(self) -> str:
        return self.entry.kind if self.entry else ""

    @property
    def host(self) -> str | None:
        return self.report.host if self.report else None

    @property
    def process(self) -> tuple[str, int]:
        return (self.report.host, self.report.pid or 0) if self.report else ("", 0)

    @property
    def doing(self) -> str:
        return doing(self.entry.context, self.report.role) if self.entry and self.report else ""

    @property
    def count(self) -> int:
        return sum(entry.holds for entry in self.holds)

    @property
    def remaining_lease(self) -> float:
        return max(map(self._builder.left, self.holds), default=0.0)

    @property
    def holds(self) -> Entries:
        if self._holds is None:
            return (self.entry,) if self.entry else ()
        return self._holds

    @property
    def longest_wait(self) -> tuple[float, float] | None:
        entry = longest(self.waits)
        if entry is None or entry.since is None:
            return None
        return self._builder.age(entry) or 0.0, entry.since

    @property
    def hosts(self) -> set[str]:
        return {self._builder.reports[entry.client].host for entry in self.holds}

    @property
    def holding_actors(self) -> set[str]:
        return {entry.actor for entry in self.holds}

    @property
    def waiting_actors(self) -> set[str]:
        return {entry.actor for entry in self.waits}

    def is_held_by(self, actor: str) -> bool:
        beginning = actor[:8]  # a cheaper comparison, which excludes most actors
        return any(
            entry.short_actor == actor
            for entry in self.holds
            if entry.client.startswith(beginning) or entry.owner.startswith(beginning)
        )

    def involves(self, client: str) -> bool:
        return any(entry.client[:8] == client for entry in (*self.holds, *self.waits))

    @property
    def words(self) -> Iterator[str]:
        yield from (self.name, self.kind)
        for entry in (*self.holds, *self.waits):
            report = self._builder.reports[entry.client]
            yield from (report.host, str(report.pid or ""), entry.caller_name, entry.owner, *entry.context.values())

    def in_deadlock(self, circle: Deadlock) -> LockInfo:
        return self.info.in_deadlock(circle)


def longest(entries: Entries) -> Entry | None:
    """The entry that began first; None if there are no entries."""
    return entries[0] if len(entries) == 1 else min(entries, key=_since, default=None)


def _since(entry: Entry) -> float:
    return math.inf if entry.since is None else entry.since


# --- locks with their current state -----------------------------------------------------------------------------------

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
        # A silent process has left these to others, so they must not look like the locks of a dead holder.
        given = [each for report in self.reports.values() if report.client not in self._silent for each in report.given]
        self._given = {(each.key, each.owner): each for each in sorted(given, key=lambda each: each.since or 0.0)}
        self._hot: dict[str, list[tuple[HotEntry, Report]]] = defaultdict(list)
        for report in reports:  # all reports: the own_report() of this process does not contain hot locks
            for hot in report.hot if report.client not in self._silent else ():
                self._hot[hot.key].append((hot, report))

    def keys(self) -> set[str]:
        """The keys of this alias that a report names."""
        named = self._holds.keys | self._waits.keys | self._hot.keys() | {key for key, _ in self._given}
        return {key for key in named if key.startswith(self.prefix)}

    def reported(self) -> list[Reported]:
        """The locks of this alias as reported, in no order."""
        # The usual lock has one hold, no waiters, and a living holder: no list of its entries is made.
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
        """The hot locks among some free locks: locks that are acquired many times a second."""
        return self.infos({key: _FREE for key in keys if self.is_hot(key)})

    def report_of(self, key: str) -> object:
        """All reported values of a lock, for comparison; None for a hot lock, which changes constantly."""
        return None if self.is_hot(key) else ([*self._holds.of(key)], [*self._waits.of(key)])

    def is_hot(self, key: str) -> bool:
        return key in self._hot

    def infos(self, states: Mapping[str, State]) -> list[LockInfo]:
        return [self._info(key, state) for key, state in states.items()]

    def whole(self, key: str) -> LockInfo:
        """A lock as reported, with all its holds and waits."""
        left = {entry.owner: (entry.holds, self.left(entry)) for entry in self._holds.of(key)}
        holds = {owner: count for owner, (count, seconds) in left.items() if seconds > 0}
        most = max((seconds for _, seconds in left.values()), default=0.0)
        return self._info(key, State(holds, int(1000 * max(most, 0.0)), (), 0))

    def age(self, entry: Entry) -> float | None:
        """How long a hold or wait has lasted, in seconds; None if unknown."""
        return None if entry.since is None else max(self.now - entry.since, 0.0)

    def _filtered(self, key: str) -> Iterator[Reported]:
        """A lock without the holds and waits that have ended with their processes; nothing if none remains."""
        holds = [entry for entry in self._holds.of(key) if self.left(entry) > 0]
        waits = self._outside(self._waits.of(key), (entry.owner for entry in holds))
        if holds or waits or self.is_hot(key):
            silent = any(entry.client in self._silent for entry in holds)
            yield Reported(self, key, longest(holds or waits), holds, waits, silent)

    def left(self, entry: Entry) -> float:
        """The remaining lease as reported, in seconds. After a process has ended, no renewals are assumed."""
        lease = entry.lease or self._lease
        # The last renewal may have come just before the process fell silent.
        return min(self.reports[entry.client].heartbeat + SILENT_AFTER + lease - self.now, lease)

    def _outside(self, waits: Iterable[Entry], others: Iterable[str]) -> list[Entry]:
        """The waits of owners that live and are not among ``others``."""
        known = set(others)
        return [entry for entry in waits if entry.client not in self._silent and entry.owner not in known]

    def _info(self, key: str, state: State) -> LockInfo:
        holds, waits = self._holds.by_owner(key), self._waits.by_owner(key)
        if self._given:
            given = {owner: self._given[key, owner] for owner in state.holds if (key, owner) in self._given}
            holds = given | {**holds}  # a process that has entered since holds it
        holders = tuple([self._holder(owner, count, holds.get(owner)) for owner, count in state.holds.items()])
        # Kind and lease are those of the first holder that a report names.
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
        """The last holders of a hot lock, the latest first."""
        holds = [(*holder, report) for hot, report in reported for holder in hot.holders]
        return tuple(
            Party(
                owner="",
                actor=actor,
                client=report.client,
                host=report.host,
                pid=report.pid,
                role=report.role,
                place=caller_name,
                context=context,
            )
            for _, actor, caller_name, context, report in sorted(holds, key=lambda hold: -hold[0])[:MAX_NAMED]
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
        # An owner that has the lock by now may still be reported as a waiter.
        others = self._outside(waits.values(), (*state.queue, *state.holds))
        # Kinds without a queue have no order; the longest wait comes first.
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
        # An entry that is too young for a report belongs to an owner that may have another entry, which names its work.
        bare = actor_of(owner)
        return {
            "owner": owner,
            "actor": entry.actor if entry else self._actors.get(bare, bare),
            "client": report.client if report else "" if is_kept(owner) else owner[:CLIENT_LENGTH],
            "host": report.host if report else None,
            "pid": report.pid if report else None,
            "role": report.role if report else "",
            "place": entry.caller_name if entry else "",
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


# --- on a page --------------------------------------------------------------------------------------------------------

# Locks as pages show them, without whole owner ids.


@dataclass(frozen=True, slots=True)
class Row:
    """A lock as a page shows it."""

    lock: LockInfo

    @property
    def object_id(self) -> str:
        """The lock's name in the admin's URLs and log."""
        return f"{self.lock.using}/{self.lock.name}"

    @property
    def keeps_waiting(self) -> bool:
        """Whether owners wait behind a hold that is longer than the alias's SLOW_HOLD."""
        return bool(self.lock.waiting) and (self.lock.held_for or 0.0) > get_settings(self.lock.using).slow_hold

    @property
    def full_lease(self) -> float:
        """The maximum of the meter for the time left, in seconds."""
        lease = self.lock.lease or get_settings(self.lock.using).watchdog_timeout
        return max(lease, self.lock.remaining_lease or 0.0)

    @property
    def low_lease(self) -> float:
        """The time left, in seconds, below which the holder has missed a renewal, which is due after each third of the
        lease."""
        return self.full_lease / 3

    @property
    def nodes(self) -> list[tuple[str, str | None, bool]]:
        """Each node of a RedLock, the owner there (see ``short_node_owner``), and whether that owner is the holder."""
        owner = self.lock.holder.owner
        return [(node, short_node_owner(other), other == owner) for node, other in self.lock.nodes.items()]

    @property
    def command(self) -> str:
        """The command that frees the lock in a shell, as long as the same owner holds it."""
        words = ["rlock_release", "--using", self.lock.using, "--owner", self.lock.holder.owner, "--", self.lock.name]
        return " ".join(map(_shell_word, words))


def public_dict(lock: LockInfo) -> dict[str, Any]:
    """Plain values without whole owner ids, which a browser does not need."""
    document = lock.as_dict()
    for kind in ("holders", "waiters", "recent", "crowds"):
        parties: tuple[Party, ...] = getattr(lock, kind)
        for entry, party in zip(document[kind], parties, strict=True):
            entry |= {"owner": party.short_owner, "client": party.client[:8], "doing": party.doing}
            del entry["actor"]  # contains the whole client id
    document["nodes"] = {node: short_node_owner(owner) for node, owner in lock.nodes.items()}
    return document


def _shell_word(word: str) -> str:
    """A word quoted for a shell; control characters become escapes, which a terminal does not execute."""
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", r"\\").replace("'", r"\'")
    return "$'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + "'"


def short_node_owner(owner: str | None) -> str | None:
    """The shortened owner id on a node; "" if the lock is free there, None if the node is unreachable."""
    return Party(owner=owner, actor=owner, client=owner[:CLIENT_LENGTH]).short_owner if owner else owner
