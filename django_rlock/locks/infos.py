"""Values about locks: holders, waiters, processes and deadlocks. Durations are in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from django.db.models import TextChoices
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from django_rlock._core.text import printable
from django_rlock._redis.keys import is_kept
from django_rlock.exceptions import KEPT_HOLDER

CLIENT_LENGTH = 36
"""The length of a client id, with which each owner id begins."""


class LockState(TextChoices):
    """The state that an operator should see. If several apply, it is the first in this order."""

    DEADLOCK = "deadlock", _("deadlock")
    """The holder waits for another lock whose holder waits, directly or indirectly, for this lock."""
    NO_EXPIRY = "no-expiry", _("no expiry")
    """The lock has no expiry: only a release frees it."""
    SILENT = "silent", _("holder silent")
    """The holder's process has stopped refreshing its report: it was killed, paused or disconnected."""
    UNKNOWN = "unknown", _("holder unknown")
    """No report names the owner: a Java client holds the lock, or it has been held for less than a second."""
    HOT = "hot", _("hot")
    """Processes acquire and release the lock within milliseconds; the list shows it even while it is free."""
    HELD = "held", _("held")
    QUEUED = "queued", _("queued")
    """The lock is free, but a message of a Celery task has reserved its key."""


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration_parts(seconds: float | None) -> list[tuple[str, str]]:
    """Numbers and their units; empty for None."""
    if seconds is None:
        return []
    if seconds < 60:
        return [(f"{seconds:.1f}", "s")]
    whole = int(seconds)
    index = next(index for index, (size, _unit) in enumerate(_UNITS) if whole >= size)
    (size, unit), (small_size, small_unit) = _UNITS[index : index + 2]
    return [(str(whole // size), unit), (str(whole % size // small_size), small_unit)]


def duration_text(seconds: float | None) -> str:
    """Seconds for people: ``7.1 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``; ``–`` for None."""
    return " ".join(f"{number} {unit}" for number, unit in duration_parts(seconds)) or "–"


def rate_number(per_second: float) -> str:
    """A rate for people, without its unit."""
    return f"{per_second:.{0 if per_second >= 10 else 1}f}"


def local_time(timestamp: float | None) -> datetime | None:
    """A time of the server's clock, in the project's time zone; None for None and for a value that is not a time."""
    try:
        return None if timestamp is None else localtime(datetime.fromtimestamp(timestamp, UTC))
    except (ValueError, OverflowError, OSError):  # a value that no process of ours has written
        return None


def clock_text(timestamp: float | None, has_seconds: bool = True) -> str:
    """The time of the day, as in logs: ``12:50:03``."""
    found = local_time(timestamp)
    return "–" if found is None else found.strftime("%H:%M:%S" if has_seconds else "%H:%M")


def doing(context: Mapping[str, str], role: str) -> str:
    """The request, task or command that uses a lock; "" if unknown."""
    task, task_id = context.get("task", ""), context.get("task_id", "")
    command = role if role.startswith("command ") else ""
    return context.get("route", "") or f"{task} {task_id}".strip() or command


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """An owner that holds a lock or waits for it; values that no report contains are None or "".

    ``client`` is the client id of the process. ``place`` names the thread or task. ``context`` describes its work:
    ``route`` and ``user`` of a request, ``task`` and ``task_id`` of a Celery task. ``actor`` identifies the thread or
    task in all its holds and waits, while its ``owner`` may change.
    """

    owner: str
    actor: str
    client: str
    host: str | None = None
    pid: int | None = None
    role: str = ""
    place: str = ""
    context: Mapping[str, str] = field(default_factory=dict)

    @property
    def process_text(self) -> str:
        """For example ``web-2 pid 311``."""
        if is_kept(self.owner):
            return KEPT_HOLDER
        return f"{self.host} pid {self.pid}" if self.host else f"owner {self.short_owner}"

    @property
    def short_owner(self) -> str:
        """The shortened owner id, for display: it distinguishes owners, but does not suffice to release the lock."""
        # A name that the caller chose, or the mark of a lock that is kept after its release.
        if len(self.owner) <= CLIENT_LENGTH:
            return self.owner[:8] + "…" * (len(self.owner) > 8)
        return f"{self.client[:8]}…{self.owner[CLIENT_LENGTH:].partition(':')[2].partition(':')[0]}"

    @property
    def short_actor(self) -> str:
        """The shortened id of the thread or task, for display and links."""
        client, slash, number = self.actor.rpartition("/")
        return f"{client[:8]}-{number}" if slash and client == self.client else self.short_owner

    @property
    def short_client(self) -> str:
        """The shortened client id, for links."""
        return self.client[:8]

    @property
    def doing(self) -> str:
        """The request, task or command that uses the lock; "" if unknown."""
        return doing(self.context, self.role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Party):
    """An owner that holds a lock ``count`` times.

    ``held_for`` is None if unknown; ``since`` is the start by the server's clock. ``heard_ago`` is the age of the last
    heartbeat of its process, None without a report; ``silent`` is whether that is too old for a living process.
    """

    count: int
    held_for: float | None = None
    since: float | None = None
    heard_ago: float | None = None
    silent: bool = False

    @property
    def held_for_text(self) -> str:
        return duration_text(self.held_for)

    def __str__(self) -> str:
        """For example ``web-2 pid 311, POST /buy/42/, for 7.1 s``."""
        held_for = "" if self.held_for is None else f"for {self.held_for:.1f} s"
        return printable(", ".join(filter(None, [self.process_text, self.doing, held_for])))


_NO_ONE = Holder(owner="", actor="", client="", count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter(Party):
    """An owner that waits; ``waited`` is None if unknown, ``since`` is the start by the server's clock."""

    waited: float | None = None
    since: float | None = None

    @property
    def waited_text(self) -> str:
        return duration_text(self.waited)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingProcess(Waiter):
    """A process with ``count`` waiters of a lock. The other attributes describe the waiter with the longest wait."""

    count: int

    @classmethod
    def of(cls, waiters: Sequence[Waiter]) -> WaitingProcess:
        first = max(waiters, key=lambda waiter: waiter.waited or 0.0)
        known = {field.name: getattr(first, field.name) for field in fields(Waiter)}
        return cls(**known | {"place": "", "count": len(waiters)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process that has a report. ``started`` is a time of the server's clock; ``heard_ago`` is the age of its last
    heartbeat, and ``silent`` is whether that is too old for a living process. ``holds`` and ``waits`` are its numbers
    of reported holds and waits."""

    client: str
    host: str
    pid: int | None
    role: str
    version: str
    started: float | None
    heard_ago: float
    silent: bool
    holds: int
    waits: int

    @property
    def short_client(self) -> str:
        return self.client[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """``waiter`` waits for the lock ``name`` of the alias ``using``, which ``holder`` holds."""

    waiter: Waiter
    holder: Holder
    using: str
    name: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """An identity that stays the same in the next reading."""
        return self.waiter.actor, self.using, self.name, self.holder.actor


@dataclass(frozen=True, slots=True)
class Step:
    """One owner of a deadlock: the lock that it holds and the previous owner waits for, and the lock that it waits
    for."""

    party: Waiter
    holds: Edge
    waits_for: Edge

    def __str__(self) -> str:
        who = ", ".join(filter(None, [self.party.process_text, self.party.place, self.party.doing]))
        return printable(f"{who} holds {self.holds.name}, waits for {self.waits_for.name}")


@dataclass(frozen=True, slots=True, eq=False)
class Deadlock:
    """Owners that wait for each other: the holder of each edge is the waiter of the next edge; after the last edge
    comes the first."""

    edges: tuple[Edge, ...]

    @property
    def steps(self) -> list[Step]:
        before = (self.edges[-1], *self.edges)
        return [Step(edge.waiter, holds, edge) for holds, edge in zip(before, self.edges, strict=False)]

    @property
    def locks(self) -> set[tuple[str, str]]:
        """The alias and name of each lock."""
        return {(edge.using, edge.name) for edge in self.edges}

    def as_list(self) -> list[dict[str, str]]:
        """Plain values, for JSON; without whole owner ids."""
        return [
            {
                "owner": step.party.short_owner,
                "process": step.party.process_text,
                "place": step.party.place,
                "doing": step.party.doing,
                "holds": step.holds.name,
                "holds_using": step.holds.using,
                "waits_for": step.waits_for.name,
                "waits_for_using": step.waits_for.using,
            }
            for step in self.steps
        ]


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Which owners wait for which others, and the deadlocks among them."""

    edges: tuple[Edge, ...]
    deadlocks: tuple[Deadlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """A held lock, as the server has it at this moment.

    ``remaining_lease`` is None if the lock has no expiry; ``until`` is the time of the expiry by the server's clock.
    ``lease`` is the lease that the holder requested, and ``kind`` the kind of its lock object; they are None and "" if
    no report names them. ``waiters`` lists the first few waiters, in their order if the kind has an order; ``waiting``
    counts all known waiters; ``crowds`` lists their processes, the largest first, if any process has several waiters.
    For a RedLock, ``nodes`` maps each node to the owner there, "" if the lock is free there, None if the node is
    unreachable. ``deadlock`` is the deadlock that the lock is part of, if any. If processes acquire the lock many times
    a second, ``rate`` is the number per second, and ``recent`` lists the last holders, the latest first; such holds are
    too short to be reported. ``queued`` lists the messages of Celery tasks that have a reservation of the lock, the
    oldest first; only functions that read single locks by name fill it.
    """

    name: str
    key: str
    using: str
    kind: str
    holders: tuple[Holder, ...]
    state: LockState
    remaining_lease: float | None
    until: float | None
    lease: float | None
    waiters: tuple[Waiter, ...]
    waiting: int
    nodes: Mapping[str, str | None] = field(default_factory=dict)
    deadlock: Deadlock | None = None
    rate: float | None = None
    recent: tuple[Party, ...] = ()
    queued: tuple[QueuedMessage, ...] = ()
    crowds: tuple[WaitingProcess, ...] = ()

    @property
    def is_hot(self) -> bool:
        """Whether the lock is acquired so often that the current holder will be gone before anyone reads it."""
        return self.rate is not None and self.held_for is None

    @property
    def named(self) -> tuple[Party, ...]:
        """The parties to name in a list: the holder, or the recent holders of a hot lock."""
        return self.recent if self.is_hot and self.recent else (self.holder,)

    @property
    def rate_text(self) -> str:
        """For example ``120/s``."""
        return "" if self.rate is None else f"{rate_number(self.rate)}/s"

    @property
    def votes(self) -> int:
        """The number of nodes on which the holder has the lock."""
        return sum(owner == self.holder.owner for owner in self.nodes.values())

    @property
    def quorum_text(self) -> str:
        """For example ``quorum 2/3``; "" for a lock on one server."""
        return f"quorum {self.votes}/{len(self.nodes)}" if self.nodes else ""

    @property
    def holder(self) -> Holder:
        """The holder; of several holders, the one with the longest hold. If only waiters are known, an unknown
        holder."""
        if len(self.holders) == 1:
            return self.holders[0]
        return max(self.holders, key=lambda holder: holder.held_for or 0.0, default=_NO_ONE)

    @property
    def is_held(self) -> bool:
        """Whether an owner holds the lock: some locks only have waiters."""
        return bool(self.holders)

    @property
    def held_for(self) -> float | None:
        return self.holder.held_for

    @property
    def host(self) -> str | None:
        """The holder's."""
        return self.holder.host

    @property
    def process(self) -> tuple[str, int]:
        """Host and process id of the holder; "" and 0 if unknown."""
        return self.holder.host or "", self.holder.pid or 0

    @property
    def doing(self) -> str:
        """The holder's work; see ``Party.doing``."""
        return self.holder.doing

    @property
    def hosts(self) -> set[str | None]:
        """The hosts of all holders."""
        return {holder.host for holder in self.holders}

    @property
    def longest_wait(self) -> tuple[float, float] | None:
        """The longest wait in seconds, and the time when it began; None if no report names a waiter."""
        known = ((waiter.waited, waiter.since) for waiter in self.waiters)
        return max(
            ((waited, since) for waited, since in known if waited is not None and since is not None), default=None
        )

    def is_held_by(self, actor: str) -> bool:
        """Whether a thread or task with this shortened id holds the lock."""
        return any(holder.short_actor == actor for holder in self.holders)

    def involves(self, client: str) -> bool:
        """Whether a process with this shortened client id holds the lock or waits for it."""
        return any(party.short_client == client for party in (*self.holders, *self.waiters))

    @property
    def words(self) -> Iterator[str]:
        """The texts that a search compares."""
        yield from (self.name, self.kind)
        for party in (*self.holders, *self.waiters):
            yield from (party.host or "", str(party.pid or ""), party.place, party.owner, *party.context.values())

    def in_deadlock(self, circle: Deadlock) -> LockInfo:
        """The same lock, as part of a deadlock."""
        return replace(self, state=LockState.DEADLOCK, deadlock=circle)

    @property
    def time_left_text(self) -> str:
        return duration_text(self.remaining_lease)

    @property
    def other_holders(self) -> int:
        return max(0, len(self.holders) - 1)  # a hot lock is often free

    @property
    def count(self) -> int:
        """The sum of the holders' counts."""
        return sum(holder.count for holder in self.holders)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return values | {
            "state": self.state.value,
            "holders": [_plain(holder) for holder in self.holders],
            "waiters": [_plain(waiter) for waiter in self.waiters],
            "nodes": dict(self.nodes),
            "recent": [_plain(party) for party in self.recent],
            "crowds": [_plain(party) for party in self.crowds],
            "deadlock": self.deadlock and self.deadlock.as_list(),
            "queued": [message.as_dict() for message in self.queued],
        }


_FIELDS = [field.name for field in fields(LockInfo)]


def _plain(party: Party) -> dict[str, Any]:
    # Unlike ``asdict``, this does not search the values for dataclasses, which takes several times as long.
    return {field.name: getattr(party, field.name) for field in fields(party)}


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that has reserved a lock's key: further messages with its key are not sent.

    ``since`` is the time when it was sent, by the server's clock; ``waited`` is the time since then, and ``left`` the
    time for which its reservation is still kept, both in seconds. ``sender`` is host and process id. ``is_sent`` is
    False while its sender is about to send it.
    """

    name: str
    using: str
    task: str
    task_id: str
    queue: str
    sender: str
    since: float
    waited: float
    left: float
    is_sent: bool
    key: str
    value: str

    @property
    def row(self) -> list[str]:
        """The cells of tables, in the order of ``HEADINGS``."""
        return [
            self.task,
            self.task_id,
            self.queue or "–",
            duration_text(self.waited),
            self.sender,
            duration_text(self.left),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in {"key", "value"}}
