"""Locks that were taken by one script: one record for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from django_rlock.drivers.identity import Owner
from django_rlock.locks.hold import Hold, Key, context, key_of

if TYPE_CHECKING:
    from django_rlock.locks.groups import LockGroup
    from django_rlock.locks.hooks import Renewable


class GroupHold:
    """Locks that one script took for an owner: one record for all, until one of them is needed on its own.

    Then each becomes a ``Hold`` of its own, permanently, with the times of this record. Any thread may cause that.
    Attributes are those of ``Hold``; ``keys`` are the table's keys for it. Kinds with a clock drift are not grouped.
    """

    __slots__ = (
        "_split",
        "context",
        "deadline",
        "group",
        "keys",
        "late_lease",
        "lease",
        "owner",
        "renewed",
        "scoped",
        "since",
        "wire_name",
    )

    def __init__(self, group: LockGroup, owner: Owner, wire_name: str, now: float, lease: float) -> None:
        self.group = group
        self.owner = owner
        self.wire_name = wire_name
        self.keys: Sequence[Key] = group.keys_of(owner)
        self.context = context.get()
        self.since = now
        self.lease = lease
        self.deadline = now + lease
        self.late_lease = 0.0
        self.renewed = False
        self.scoped = 0
        self._split: dict[str, dict[Key, Hold]] = {}

    @classmethod
    def joined(cls, group: LockGroup, holds: Sequence[Hold]) -> Self:
        """Join holds of a group's locks, which have the same wire name, into one record again."""
        first = holds[0]
        held = cls(group, first.owner, first.wire_name, min(hold.since for hold in holds), first.lease)
        held.deadline = min(hold.deadline for hold in holds)
        held.late_lease = max(hold.late_lease for hold in holds)
        held._split["members"] = members = {hold.key: hold for hold in holds}
        held.keys = tuple(members)
        return held

    @property
    def members(self) -> dict[Key, Hold]:
        """Its holds, one for each lock."""
        # If two threads get here at once, both get what one of them made.
        return self._split.get("members") or self._split.setdefault("members", self._make_members())

    @property
    def is_whole(self) -> bool:
        """Whether none of its locks has been needed on its own."""
        return not self._split

    @property
    def renewing(self) -> bool:
        """Whether a renewal of one of its locks is under way."""
        return not self.is_whole and any(hold.renewing for hold in self.members.values())

    def renew_at(self) -> float:
        """When the watchdog should renew it: after a third of its lease."""
        return self.deadline - self.lease * 2 / 3

    def is_lost(self, now: float) -> bool:
        """Whether it has outlived its lease; other losses are recorded in its members."""
        return now >= self.deadline

    def _make_members(self) -> dict[Key, Hold]:
        return {hold.key: hold for hold in map(self._make_member, self.group.locks)}

    def _make_member(self, lock: Renewable) -> Hold:
        hold = Hold(key_of(lock, self.owner), lock, self.owner, self.wire_name, self.since)
        hold.context = self.context
        hold.lease_from(self.since, self.lease, self.renewed)
        hold.scoped = self.scoped
        hold.late_lease = self.late_lease
        return hold
