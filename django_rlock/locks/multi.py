"""Several locks as one: all of them, or none."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from django_rlock import keys, scripts
from django_rlock.drivers.base import Driver, ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.drivers.sync import defer
from django_rlock.exceptions import LockLostError, LockNotOwnedError, LockUnavailableError, RLockError
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.base import BaseLock
from django_rlock.locks.durations import Duration, milliseconds
from django_rlock.locks.flows import RELEASE_PATIENCE
from django_rlock.locks.holds import HOLDS, Hold
from django_rlock.settings import get_settings

if TYPE_CHECKING:
    from django_rlock.inspection import LockInfo

T = TypeVar("T")

logger = logging.getLogger("django_rlock.locks")

MOST_TOGETHER = 1000
"""How many locks one script takes or frees; a server does nothing else meanwhile."""
_FREE, _ENDLESS = -2, -1


class MultiLock(BaseLock):
    """Several locks, of any kinds and aliases, that are taken all or none::

        with MultiLock(FairLock("account:1"), FairLock("account:2"), wait_time=3):
            ...

    ``rlock("account:1", "account:2")`` makes one as well. The order of the arguments does not matter, so two of them
    cannot block each other for ever: one that finds a member taken gives the others back before it waits, and waits in
    that member's own queue. Plain, spin and fair locks that share a server (in a cluster: a slot) are taken by one
    script and freed by one; others one after another. A member named twice counts once.

    Each member is a hold of its own: renewed, re-entered and lost by itself. The whole counts as lost when one is; its
    release gives back the rest all the same. With a lease time all leases end no sooner than that after the last
    member was taken. ``wait_time``, ``lease_time`` and ``owner`` are the whole's, and those of the members are ignored.
    """

    __slots__ = ("_parts",)

    kind = "multi"

    def __init__(
        self,
        *locks: BaseLock,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        owner: str | None = None,
    ) -> None:
        self._parts = _sorted_parts(locks)
        name = ", ".join(part.name for part in self._parts)
        using = self._parts[0].using
        super().__init__(name, wait_time=wait_time, lease_time=lease_time, using=using, owner=owner)

    @property
    def parts(self) -> tuple[BaseLock, ...]:
        return self._parts

    def info(self) -> LockInfo | None:
        """The first member that anybody holds; None when all are free."""
        return next((info for part in self._parts if (info := part.info())), None)

    async def ainfo(self) -> LockInfo | None:
        for part in self._parts:
            if info := await part.ainfo():
                return info
        return None

    # --- taking ------------------------------------------------------------------------------------------------------

    async def _take(
        self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None, scoped: int = 0
    ) -> Attempt | None:
        until = None if wait is None else driver.now() + wait
        attempt = _AllOrNone(driver, owner, lease, scoped, until)
        failed = await attempt.take(self._parts)
        while failed is not None and (until is None or driver.now() < until):
            # Nothing is held meanwhile. The one that was waited for is kept while the others are tried.
            awaited = next(part for part in self._parts if part is failed.lock)
            failed = await attempt.wait_for(awaited)
            if failed is None:
                failed = await attempt.take([part for part in self._parts if part is not awaited])
        return failed

    # --- giving back -------------------------------------------------------------------------------------------------

    async def _give_back(self, driver: Driver, owner: Owner | str) -> None:
        if isinstance(owner, Owner) and not any(HOLDS.get(part, owner) for part in self._parts):
            raise LockNotOwnedError(self.name, owner=owner.name)
        failures = await _give_back_all(driver, owner, self._parts)
        if failures:
            # That the work was not protected matters more than that Redis was away.
            raise next((each for each in failures if isinstance(each, LockLostError)), failures[0])

    async def _extend(self, driver: Driver, owner: Owner | str, lease_time: Duration) -> None:
        for part in self._parts:
            await part._extend(driver.at(part.using), owner, lease_time)  # noqa: SLF001 - of the same class

    async def _force_release(self, driver: Driver, owner: str | None, reason: str) -> bool:
        freed = [await part._force_release(driver.at(part.using), owner, reason) for part in self._parts]  # noqa: SLF001
        return any(freed)

    async def _ask_state(self, driver: Driver, owner: Owner | str) -> tuple[int, int]:
        states = [await part._ask_state(driver.at(part.using), owner) for part in self._parts]  # noqa: SLF001
        lefts = {left for _, left in states} - {_FREE}
        ending = lefts - {_ENDLESS}
        left = min(ending) if ending else min(lefts, default=_FREE)
        return min(count for count, _ in states), left


class _AllOrNone:
    """One owner's attempt at several locks; ``taken`` are those that it holds by now."""

    def __init__(
        self, driver: Driver, owner: Owner | str, lease: float | None, scoped: int, until: float | None
    ) -> None:
        self.driver = driver
        self.owner = owner
        self.lease = lease
        self.scoped = scoped
        self.until = until
        self.taken: list[BaseLock] = []

    async def wait_for(self, lock: BaseLock) -> Attempt | None:
        """Take one lock, waiting for it; answers the attempt when the time was up."""
        left = None if self.until is None else max(self.until - self.driver.now(), 0.0)
        failed = await self._take_alone(lock, left)
        if failed is None:
            self.taken.append(lock)
        return failed

    async def take(self, locks: Sequence[BaseLock]) -> Attempt | None:
        """Take the locks and keep those taken before, or give all back; answers the attempt that failed."""
        try:
            for group in self._groups(locks):
                failed = await (self._take_together(group) if len(group) > 1 else self._take_alone(group[0], 0))
                if failed is not None:
                    await self._undo()
                    return failed
                self.taken += group
            await self._level_leases()
        except BaseException as error:
            if isinstance(error, RLockError) and isinstance(self.owner, str):
                await self._undo()  # a name chosen by the caller is not for the background: see _release_later
            self._drop()
            raise
        return None

    def _groups(self, locks: Iterable[BaseLock]) -> list[list[BaseLock]]:
        groups: dict[object, list[BaseLock]] = {}
        place_of = _places(self.driver)
        for lock in locks:
            # What the owner holds already is entered again, which depends on how often it does.
            together = lock.joins and HOLDS.get(lock, self.owner) is None
            groups.setdefault(place_of(lock) if together else id(lock), []).append(lock)
        return [part for group in groups.values() for part in _sliced(group)]

    async def _take_alone(self, lock: BaseLock, wait: float | None) -> Attempt | None:
        driver = self.driver.at(lock.using)
        return await lock._take(driver, self.owner, wait, self.lease, self.scoped)  # noqa: SLF001 - of its family

    async def _take_together(self, locks: Sequence[BaseLock]) -> Attempt | None:
        driver, owner = self.driver.at(locks[0].using), self.owner
        name = owner if isinstance(owner, str) else owner.name
        seconds = locks[0].settings.watchdog_timeout if self.lease is None else self.lease
        call = acquire_call(locks, name, seconds)
        try:
            reply = await driver.take(call, self.until, lambda: release_call(locks, name))
            if reply[1] == b"OK":
                self._note_taken(locks, name, call.sent_at, seconds)
                return None
        except BaseException:
            for lock in locks:
                HOLDS.restore(lock, owner, None)
            locks[0]._abandon(driver, owner, release_call(locks, name), seconds)  # noqa: SLF001 - of its family
            raise
        failed = Attempt(locks[reply[2] - 1], driver, owner, name, seconds, self.until)
        failed.left_ms = reply[1]
        return failed

    def _note_taken(self, locks: Iterable[BaseLock], name: str, sent_at: float, seconds: float) -> None:
        for lock in locks:
            hold = Hold(lock, self.owner, name, sent_at)
            lock._put_hold(hold, seconds, self.lease is None, self.scoped)  # noqa: SLF001 - of its family
            lock._tell_acquired(name, 1, 0.0)  # noqa: SLF001

    async def _level_leases(self) -> None:
        """Give those that were taken first as long as the last one has; renewed ones need no exact lease."""
        if self.lease is None:
            return
        holds = [hold for lock in self.taken if (hold := HOLDS.get(lock, self.owner)) and not hold.renewed]
        latest = max((hold.deadline for hold in holds), default=0.0)
        for hold in holds:
            if hold.deadline < min(latest, self.driver.now() + self.lease):
                await hold.lock._extend_hold(self.driver.at(hold.lock.using), hold, self.lease)  # type: ignore[attr-defined]  # noqa: SLF001

    async def _undo(self) -> None:
        """Give back what was taken, and wait until it is."""
        taken, self.taken = self.taken, []  # one that is interrupted sees to the rest itself
        for lock in taken:
            if hold := HOLDS.get(lock, self.owner):
                hold.scoped -= self.scoped
        for failure in await _give_back_all(self.driver, self.owner, taken):
            logger.warning("While giving back one of several locks: %s", failure)

    def _drop(self) -> None:
        """Give back what was taken, in the background."""
        for lock in self.taken:
            if hold := HOLDS.get(lock, self.owner):
                hold.scoped -= self.scoped
                hold.count -= 1
                lock._release_later(hold, self.owner)  # noqa: SLF001 - of its family
        self.taken = []


def acquire_call(locks: Sequence[BaseLock], owner: str, lease: float) -> ScriptCall:
    """Takes locks of one alias, or none: answers OK, or the remaining lease in ms and the place of one that is taken.

    ValueError for locks of several aliases: one script runs on one server.
    """
    claim = milliseconds(locks[0].settings.claim_time)
    return _call(scripts.MULTI_ACQUIRE, locks, owner, milliseconds(lease), claim)


def release_call(locks: Sequence[BaseLock], owner: str) -> ScriptCall:
    """Frees locks of one alias; answers for each 1, or 0 when the owner does not hold it. Errors as acquire_call."""
    return _call(scripts.MULTI_RELEASE, locks, owner, milliseconds(locks[0].settings.claim_time))


def _call(script: scripts.Script, locks: Sequence[BaseLock], *args: str | int) -> ScriptCall:
    if len({lock.using for lock in locks}) > 1:
        aliases = ", ".join(sorted({lock.using for lock in locks}))
        raise ValueError(f"One script cannot take locks of several aliases ({aliases}); use a MultiLock of them.")
    prefix = locks[0].settings.key_prefix  # the property lock.key asks for it each time
    # First the states of all, then the queues of all, and so on.
    all_keys = itertools.chain.from_iterable(zip(*[keys.fair_keys(prefix + lock.name) for lock in locks], strict=True))
    return ScriptCall(", ".join([lock.name for lock in locks]), script, tuple(all_keys), args)


async def _give_back_all(driver: Driver, owner: Owner | str, locks: Collection[BaseLock]) -> list[RLockError]:
    """Give back one hold of each lock; answers what went wrong. An interruption leaves the rest to the background."""
    failures: list[RLockError] = []
    rest = set(locks)
    try:
        for group in _held_groups(driver, owner, locks):
            rest.difference_update(group)  # from here on it sees to an interruption itself
            try:
                first = next(iter(group))
                if len(group) > 1:
                    failures += await _free_together(driver.at(first.using), owner, group)
                else:
                    await first._give_back(driver.at(first.using), owner)  # noqa: SLF001 - of its family
            except RLockError as failure:
                failures.append(failure)
    except BaseException:
        for lock in rest:
            if (hold := HOLDS.get(lock, owner)) is not None:
                hold.count -= 1
                lock._release_later(hold, owner)  # noqa: SLF001
        raise
    return failures


Held = dict[BaseLock, Hold | None]


def _held_groups(driver: Driver, owner: Owner | str, locks: Iterable[BaseLock]) -> list[Held]:
    groups: dict[object, Held] = {}
    place_of, now = _places(driver), driver.now()
    for lock in locks:
        hold = HOLDS.get(lock, owner)
        ends = hold is not None and hold.count == 1 and not hold.lost_below and not hold.is_lost(now)
        group = (*place_of(lock), hold.owner) if hold is not None and ends and lock.joins else id(lock)
        groups.setdefault(group, {})[lock] = hold
    return [dict(part) for group in groups.values() for part in _sliced(list(group.items()))]


async def _free_together(driver: Driver, owner: Owner | str, held: Held) -> list[RLockError]:
    locks, holds = list(held), [hold for hold in held.values() if hold is not None]
    deadline = min(hold.deadline for hold in holds)
    call = release_call(locks, holds[0].owner)
    for hold in holds:
        hold.count = 0
        HOLDS.remove(hold)  # before the command, so that no renewal starts
    try:
        reply = await driver.run(call, min(deadline, driver.now() + RELEASE_PATIENCE))
    except BaseException as error:
        if isinstance(owner, Owner):
            owner.renew_name()
            defer(locks[0].using, call, max(hold.deadline for hold in holds))
        if isinstance(error, LockUnavailableError):
            raise locks[0]._release_failed(error, deadline - driver.now()) from error  # noqa: SLF001
        raise
    return _note_freed(locks, holds, call, reply[1], driver.now())


def _note_freed(
    locks: Iterable[BaseLock], holds: Iterable[Hold], call: ScriptCall, owned: Iterable[int], now: float
) -> list[RLockError]:
    failures: list[RLockError] = []
    for lock, hold, was_owned in zip(locks, holds, owned, strict=True):
        try:
            lock._note_released(hold, call, was_owned == 1, now)  # noqa: SLF001 - of its family
        except RLockError as failure:
            failures.append(failure)
    return failures


def _places(driver: Driver) -> Callable[[BaseLock], tuple[str, object]]:
    """Tells where a lock lives: alias and place. What depends on the alias alone is looked up once."""

    @cache
    def alias(using: str) -> tuple[Callable[[str], object], str]:
        return driver.at(using).place, get_settings(using).key_prefix

    def place_of(lock: BaseLock) -> tuple[str, object]:
        find, prefix = alias(lock.using)
        return lock.using, find(prefix + lock.name)

    return place_of


def _sliced(group: list[T]) -> list[list[T]]:
    return [group[start : start + MOST_TOGETHER] for start in range(0, len(group), MOST_TOGETHER)]


def _sorted_parts(locks: Iterable[Any]) -> tuple[BaseLock, ...]:
    parts: dict[tuple[str, str, str], BaseLock] = {}
    for lock in locks:
        if not isinstance(lock, BaseLock):
            raise TypeError(f"A MultiLock is made of locks, not of {lock!r}; rlock('a', 'b') makes one of names.")
        for part in lock.parts:
            parts.setdefault((part.using, part.name, part.scope), part)
    if not parts:
        raise ValueError("A MultiLock needs at least one lock.")
    # Of the two sides of a read-write lock the writing one first: a reader is not let in to write.
    return tuple(parts[place] for place in sorted(parts, key=lambda place: (*place[:2], place[2] != "write")))
