"""Several locks as one: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Never

from django_rlock.locks import several
from django_rlock.locks.base import BaseLock
from django_rlock.locks.engine import Engine
from django_rlock.locks.groups import Grouping
from django_rlock.locks.kinds import Kind
from django_rlock.locks.options import Duration, unknown_option

if TYPE_CHECKING:
    from django_rlock.locks.infos import LockInfo


class MultiLock(BaseLock, several.SeveralLocks):
    """Several locks, of any kinds and aliases, that are taken together or not at all::

        with MultiLock(FairLock("account:1"), FairLock("account:2"), wait_time=3):
            ...

    ``rlock("account:1", "account:2")`` also makes a MultiLock. The order of the arguments does not matter, and two
    MultiLocks cannot deadlock. If a member is taken, the MultiLock releases the others, waits in that member's own
    queue, and tries the others again. If another member is taken by then, it waits for all members in the order of
    their names and keeps the members it has, so members that are often taken do not starve it. If that takes longer
    than ``KEEP_FOR`` (2) seconds, it releases all and starts again, so that an owner that holds one member and waits
    for another can continue.

    Plain, spin and fair locks that share a server (in a cluster: a slot) are taken by one script and freed by one
    script; other locks one after another. A member named twice counts once.

    Each member is a separate hold, which is renewed, re-entered and lost separately. The MultiLock counts as lost when
    one member is; its release still releases the others. With a lease time, all leases end no earlier than if they had
    begun when the last member was taken. ``wait_time``, ``lease_time``, ``owner``, ``at_least`` and ``until_commit``
    are those of the MultiLock; the members' own are ignored. ``max_hold_time`` replaces the members' own if it is
    given.
    """

    __slots__ = ("_grouping", "_parts")

    kind = "multi"
    _kind = Kind()  # it has no calls of its own
    _engine: ClassVar[Engine] = several

    def __init__(
        self,
        *locks: BaseLock,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        owner: str | None = None,
        max_hold_time: Duration | None = None,
        at_least: Duration | None = None,
        until_commit: bool | str | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option(type(self).__name__, unknown)
        self._parts = _sorted_parts(locks)
        self._grouping: Grouping | None = None
        first = self._parts[0]
        super().__init__(
            first.name,
            wait_time=wait_time,
            lease_time=lease_time,
            using=first.using,
            owner=owner,
            max_hold_time=max_hold_time,
            at_least=at_least,
            until_commit=until_commit,
        )
        if self.max_hold_time is not None:
            self._parts = tuple(_held_for(self.max_hold_time, part) for part in self._parts)
        self.name = ", ".join(part.name for part in self._parts)

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        # Without the settings of this process, which may contain passwords.
        state: Any = super().__getstate__()
        return None, {**state[1], "_grouping": None}

    @property
    def parts(self) -> tuple[BaseLock, ...]:
        return self._parts

    def info(self) -> LockInfo | None:
        """The info of the first member that is held; None when all are free."""
        return next((info for part in self._parts if (info := part.info())), None)

    async def ainfo(self) -> LockInfo | None:
        """As ``info``, in asyncio."""
        for part in self._parts:
            if info := await part.ainfo():
                return info
        return None


def _held_for(seconds: float, part: BaseLock) -> BaseLock:
    """The same lock with this ``max_hold_time``: the caller's own object stays as it is."""
    limited = copy(part)
    limited.max_hold_time = seconds
    return limited


def _sorted_parts(locks: Iterable[Any]) -> tuple[BaseLock, ...]:
    parts: dict[tuple[str, str, str], BaseLock] = {}
    for lock in locks:
        if not isinstance(lock, BaseLock):
            raise TypeError(f"A MultiLock consists of locks, not of {lock!r}; rlock('a', 'b') makes one from names.")
        for part in lock.parts:
            parts.setdefault((part.using, part.name, part._kind.scope), part)
    if not parts:
        raise ValueError("A MultiLock needs at least one lock.")
    # The write side of a read-write lock comes before its read side, because a reader may not acquire the write lock.
    return tuple(parts[place] for place in sorted(parts, key=lambda place: (*place[:2], place[2] != "write")))
