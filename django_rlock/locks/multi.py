"""Several locks as one: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django_rlock.drivers.base import Driver
from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockLostError, LockNotOwnedError, LockUnavailableError
from django_rlock.locks import members
from django_rlock.locks.allornone import AllOrNone
from django_rlock.locks.attempt import Claim
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import Duration
from django_rlock.locks.groups import Grouping, Piece
from django_rlock.locks.holds import HOLDS, key_of
from django_rlock.locks.together import give_back_all, held_of
from django_rlock.scripts import ABSENT, ENDLESS

if TYPE_CHECKING:
    from django_rlock.inspection import LockInfo

KEEP_FOR = 2.0
"""How long a MultiLock keeps some members while it waits for others, in seconds; it doubles with each retry."""


class MultiLock(BaseLock):
    """Several locks, of any kinds and aliases, that are taken together or not at all::

        with MultiLock(FairLock("account:1"), FairLock("account:2"), wait_time=3):
            ...

    ``rlock("account:1", "account:2")`` makes one as well. The order of the arguments does not matter, and two
    MultiLocks cannot deadlock. If a member is taken, the MultiLock releases the others, waits in that member's own
    queue, and tries the others again. If another member is taken by then, it waits for all members in the order of
    their names and keeps those that it has, so members that are often taken do not starve it. If that takes longer than
    ``KEEP_FOR`` (2) seconds, it releases all and starts again, so that an owner that holds one member and waits for
    another can go on.

    Plain, spin and fair locks that share a server (in a cluster: a slot) are taken by one script and freed by one;
    others one after another. A member named twice counts once.

    Each member is a hold of its own, which is renewed, re-entered and lost separately. The MultiLock counts as lost
    when one member is; its release still releases the others. With a lease time, all leases end no earlier than if they
    had begun when the last member was taken. ``wait_time``, ``lease_time``, ``owner`` and ``until_commit`` are those of
    the MultiLock; the members' own are ignored.
    """

    __slots__ = ("_grouping", "_parts")

    kind = "multi"

    def __init__(
        self,
        *locks: BaseLock,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        owner: str | None = None,
        until_commit: bool | str | None = None,
    ) -> None:
        self._parts = _sorted_parts(locks)
        self._grouping: Grouping | None = None
        first = self._parts[0]
        super().__init__(
            first.name,
            wait_time=wait_time,
            lease_time=lease_time,
            using=first.using,
            owner=owner,
            until_commit=until_commit,
        )
        self.name = ", ".join(part.name for part in self._parts)

    @property
    def parts(self) -> tuple[BaseLock, ...]:
        return self._parts

    def info(self) -> LockInfo | None:
        """The info of the first member that is held; None when all are free."""
        return next((info for part in self._parts if (info := part.info())), None)

    async def ainfo(self) -> LockInfo | None:
        for part in self._parts:
            if info := await part.ainfo():
                return info
        return None

    def _not_owned(self, owner: Owner) -> LockNotOwnedError:
        left_by = next(filter(None, map(HOLDS.left_by, self._parts)), None)
        return LockNotOwnedError(self.name, owner=owner.wire_name, left_by=left_by)

    def _part(self, error: LockUnavailableError) -> BaseLock:
        return next((part for part in self._parts if part.name == error.lock_name), self._parts[0])

    # --- taking ------------------------------------------------------------------------------------------------------

    async def _take(self, driver: Driver, claim: Claim) -> bool:
        attempt = AllOrNone(driver, claim, claim.until(driver.now()), self._parts)
        try:
            return await self._take_all(driver, attempt)
        except BaseException as error:
            await attempt.give_up(error)
            raise

    async def _take_all(self, driver: Driver, attempt: AllOrNone) -> bool:
        taken = await attempt.take(self._pieces(driver))
        keep_for = KEEP_FOR
        while not taken and attempt.may_wait():
            # Nothing is held during this wait. The awaited member is kept while the others are tried.
            (awaited,) = [part for part in self._parts if part is attempt.claim.failed.lock]
            if await attempt.wait_for(awaited):
                taken = await attempt.take(
                    Grouping(driver, [part for part in self._parts if part is not awaited]).pieces
                )
            if not taken and attempt.may_wait():
                taken = await attempt.wait_in_order(self._parts, keep_for)
                keep_for *= 2  # it may have been too short for a queue
        return taken

    def _pieces(self, driver: Driver) -> list[Piece]:
        known = self._grouping
        if known is None or not known.holds_good:
            known = self._grouping = Grouping(driver, self._parts)
        return known.pieces

    # --- giving back -------------------------------------------------------------------------------------------------

    async def _give_back(self, driver: Driver, owner: Owner, _begun: set[object] | None = None) -> None:
        if not owner.is_named and HOLDS.has_none([key_of(part, owner) for part in self._parts]):
            raise self._not_owned(owner)
        failures = await give_back_all(driver, owner, self._parts, set())
        if failures:
            # That the work was not protected matters more than that Redis was unreachable.
            raise next((each for each in failures if isinstance(each, LockLostError)), failures[0])

    def _leave_block(self, owner: Owner) -> None:
        for held in held_of(self._parts, owner):
            held.scoped -= 1

    async def _prolong(self, driver: Driver, owner: Owner, lease_time: Duration) -> None:
        for part in self._parts:
            await members.extend(part, driver.at(part.using), owner, lease_time)

    async def _free_by_force(self, driver: Driver, caller: Owner, owner: str | None, reason: str) -> bool:
        freed = [
            await members.force_release(part, driver.at(part.using), caller, owner, reason) for part in self._parts
        ]
        return any(freed)

    async def _ask_state(self, driver: Driver, owner: Owner) -> tuple[int, int]:
        states = [await members.ask_state(part, driver.at(part.using), owner) for part in self._parts]
        lefts = {left for _, left in states} - {ABSENT}
        ending = lefts - {ENDLESS}
        left = min(ending) if ending else min(lefts, default=ABSENT)
        return min(count for count, _ in states), left

    async def _ask_holders(self, driver: Driver) -> list[str]:
        return [owner for part in self._parts for owner in await part._ask_holders(driver.at(part.using))]


def _sorted_parts(locks: Iterable[Any]) -> tuple[BaseLock, ...]:
    parts: dict[tuple[str, str, str], BaseLock] = {}
    for lock in locks:
        if not isinstance(lock, BaseLock):
            raise TypeError(f"A MultiLock consists of locks, not of {lock!r}; rlock('a', 'b') makes one from names.")
        for part in lock.parts:
            parts.setdefault((part.using, part.name, part._scope), part)
    if not parts:
        raise ValueError("A MultiLock needs at least one lock.")
    # The write side of a read-write lock comes before its read side, because a reader may not acquire the write lock.
    return tuple(parts[place] for place in sorted(parts, key=lambda place: (*place[:2], place[2] != "write")))
