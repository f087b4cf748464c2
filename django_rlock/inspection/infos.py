"""What is known about a lock that is held: who holds it, since when, and who waits. Durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

CLIENT_LENGTH = 36
"""An owner's first characters are its process's client id."""


class LockState(TextChoices):
    """What an operator should know first. Where several are true, the first in this order."""

    NO_EXPIRY = "no-expiry", _("no expiry")
    """Nothing but a release frees it."""
    SILENT = "silent", _("holder silent")
    """Its process has a report but stopped to renew it: killed, paused, or cut off."""
    UNKNOWN = "unknown", _("holder unknown")
    """No report names its owner: a Java client, or held for less than a second."""
    HELD = "held", _("held")


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration_text(seconds: float | None) -> str:
    """Seconds for people: ``7.1 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``; ``–`` for None."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    index = next(index for index, (size, _unit) in enumerate(_UNITS) if whole >= size)
    (size, unit), (small_size, small_unit) = _UNITS[index : index + 2]
    return f"{whole // size} {unit} {whole % size // small_size} {small_unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Somebody who holds a lock or waits for it; None and "" stand for what no report tells.

    ``client`` is the process's id. ``place`` is the thread or task. ``context`` is what it does: ``route``
    and ``user`` of a request, ``task`` and ``task_id`` of a Celery task.
    """

    owner: str
    client: str
    host: str | None = None
    pid: int | None = None
    role: str = ""
    place: str = ""
    context: Mapping[str, str] = field(default_factory=dict)

    @property
    def short_owner(self) -> str:
        """The owner for people: enough to tell two apart, not enough to release the lock."""
        if len(self.owner) <= CLIENT_LENGTH:
            return self.owner[:8] + "…" * (len(self.owner) > 8)
        return f"{self.client[:8]}…{self.owner[CLIENT_LENGTH:].partition(':')[2].partition(':')[0]}"

    @property
    def doing(self) -> str:
        """The request, the task or the command in which it uses the lock; "" when unknown."""
        task, task_id = self.context.get("task", ""), self.context.get("task_id", "")
        command = self.role if self.role.startswith("command ") else ""
        return self.context.get("route", "") or f"{task} {task_id}".strip() or command


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Party):
    """An owner that holds a lock ``count`` times.

    ``held_for`` is None when unknown. ``heard_ago`` is the age of its process's last beat, None without a
    report; ``silent`` says that it is too old for a process that lives.
    """

    count: int
    held_for: float | None = None
    heard_ago: float | None = None
    silent: bool = False

    @property
    def held_for_text(self) -> str:
        return duration_text(self.held_for)

    @property
    def heard_ago_text(self) -> str:
        return duration_text(self.heard_ago)

    def __str__(self) -> str:
        """As in ``web-2 pid 311, POST /buy/42/, for 7.1 s``."""
        process = f"{self.host} pid {self.pid}" if self.host else f"owner {self.short_owner}"
        held_for = "" if self.held_for is None else f"for {self.held_for:.1f} s"
        return ", ".join(filter(None, [process, self.doing, held_for]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter(Party):
    """An owner that waits; ``waited`` is None when unknown."""

    waited: float | None = None

    @property
    def waited_text(self) -> str:
        return duration_text(self.waited)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """A lock that is held, as the server has it at this moment.

    ``remaining_lease`` is None when it never ends. ``lease`` is what the holder asked for, and ``kind`` the
    kind of its lock object; None and "" when no report tells. ``waiters`` are the first of them, in the order
    in which they will be served where the kind keeps one; ``waiting`` counts all that are known. Of a RedLock
    ``nodes`` maps each node to the owner there, "" where it is free, None where nobody can be asked.
    """

    name: str
    key: str
    using: str
    kind: str
    holders: tuple[Holder, ...]
    state: LockState
    remaining_lease: float | None
    lease: float | None
    waiters: tuple[Waiter, ...]
    waiting: int
    nodes: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def quorum_text(self) -> str:
        """On how many of its nodes the holder has it, as in ``quorum 2/3``; "" for a lock of one server."""
        have = sum(owner == self.holder.owner for owner in self.nodes.values())
        return f"quorum {have}/{len(self.nodes)}" if self.nodes else ""

    @property
    def holder(self) -> Holder:
        """The holder; of several, the one that has held it for longest."""
        return max(self.holders, key=lambda holder: holder.held_for or 0.0)

    @property
    def held_for(self) -> float | None:
        return self.holder.held_for

    @property
    def time_left_text(self) -> str:
        return duration_text(self.remaining_lease)

    @property
    def other_holders(self) -> int:
        return len(self.holders) - 1

    @property
    def count(self) -> int:
        """Holds of all holders together."""
        return sum(holder.count for holder in self.holders)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"state": self.state.value}
