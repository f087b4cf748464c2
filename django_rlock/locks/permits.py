"""The permits of an expirable semaphore, identified by ids."""

from __future__ import annotations

import math
import os
import re
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from django_rlock._core import threads
from django_rlock._core.clock import has_jumped, monotonic, wall_offset
from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import Driver, ScriptCall
from django_rlock._transport.identity import NamedOwner, must_not_block
from django_rlock.exceptions import LockLostError, LockTimeoutError, LockUnavailableError, PermitNotHeldError
from django_rlock.locks.counters import REMEMBERED_MS, Request, Requests, checked_number, hidden_behind
from django_rlock.locks.kinds import call_for, retire_call, settled_keys
from django_rlock.locks.options import RELEASE_PATIENCE, milliseconds
from django_rlock.locks.records import Hold, key_of
from django_rlock.locks.semaphore import BaseSemaphore, timed_out
from django_rlock.locks.watchdog import ANSWER_WITHIN, sure_of

MOST_AT_ONCE = 10_000
"""How many permits one acquire may take; writing them blocks the server."""
_ID = re.compile(r"[0-9a-f]{32}")


class PermitSemaphore(BaseSemaphore):
    """The part of a semaphore that its permits use; ``PermitExpirableSemaphore`` describes it."""

    __slots__ = ()

    def acquire(self, permits: int = 1, **options: Any) -> Permit | None:
        """Take permits; returns None if there are not enough after the wait."""
        raise NotImplementedError

    async def aacquire(self, permits: int = 1, **options: Any) -> Permit | None:
        """As ``acquire``, in asyncio."""
        raise NotImplementedError

    def release(self, permits: Permit | str | Iterable[str]) -> None:
        """Release permits. Raises PermitNotHeldError if one of them is not held."""
        raise NotImplementedError

    async def arelease(self, permits: Permit | str | Iterable[str]) -> None:
        """As ``release``, in asyncio."""
        raise NotImplementedError

    def try_release(self, permits: Permit | str | Iterable[str]) -> int:
        """Release the permits that are held; returns their number."""
        raise NotImplementedError

    async def atry_release(self, permits: Permit | str | Iterable[str]) -> int:
        """As ``try_release``, in asyncio."""
        raise NotImplementedError

    def lease_time(self, permit: Permit | str) -> float | None:
        """Ask for the remaining lease of a permit, in seconds."""
        raise NotImplementedError

    def _release_later(self, permit: Permit) -> None:
        """Let the background thread release a permit."""
        raise NotImplementedError


class Permit:
    """One or more permits that one ``acquire`` of a ``PermitExpirableSemaphore`` took.

    ``ids`` are the permits' ids, 32 hexadecimal digits each; any process may release them by id. ``deadline`` is when
    the lease ends that they were taken with, in monotonic seconds. ``given_back`` is whether this object was released.

    It can be pickled for another process of this machine, which then sees the lease as it is now; this process
    continues to renew it. Send the ids to other machines, whose monotonic clocks differ.
    """

    __slots__ = ("__weakref__", "_clocks", "_holds", "deadline", "given_back", "ids", "semaphore")

    def __init__(
        self, semaphore: PermitSemaphore, ids: tuple[str, ...], deadline: float, holds: Sequence[Hold]
    ) -> None:
        self.semaphore = semaphore
        self.ids = ids
        self.deadline = deadline
        self.given_back = False
        self._holds = holds
        self._clocks = wall_offset()

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        deadline = min((hold.deadline for hold in self._holds), default=self.deadline)
        given_back = self.given_back
        state = {"semaphore": self.semaphore, "ids": self.ids, "deadline": deadline, "given_back": given_back}
        return None, {**state, "_holds": (), "_clocks": self._clocks}

    def __repr__(self) -> str:
        return f"<Permit {', '.join(self.ids)} of {self.semaphore!r}>"

    @property
    def id(self) -> str:
        """The id of a single permit. Raises ValueError if there are several."""
        return single_id(self)

    @property
    def lost(self) -> bool:
        """Whether its lease has ended or its renewal failed, so that others may have it.

        It considers the lease that it was taken with, or to which this process renewed it. Sends no command, unless a
        clock has jumped: then Redis is asked, and it counts as lost if it does not reply within a second.
        """
        if self._holds:
            return not sure_of(self._holds) or any(hold.is_lost(monotonic()) for hold in self._holds)
        return monotonic() >= self.deadline or (has_jumped(self._clocks) and not self._is_confirmed())

    def _is_confirmed(self) -> bool:
        """Whether the server says that its lease, which is not renewed, still runs."""
        try:
            return threads.within(ANSWER_WITHIN, self._ask) is True and monotonic() < self.deadline
        except PermitNotHeldError:
            self.deadline = -math.inf
        except LockUnavailableError:
            pass
        return False

    def _ask(self) -> bool:
        clocks, asked_at = wall_offset(), monotonic()
        leases = [self.semaphore.lease_time(each) for each in self.ids]
        self.deadline = min(
            self.deadline, asked_at + min((left for left in leases if left is not None), default=math.inf)
        )
        self._clocks = clocks
        return True

    def check(self) -> None:
        """Raise LockLostError when it is lost; commands as for ``lost``."""
        if self.lost:
            raise self.lost_error()

    def lost_error(self) -> LockLostError:
        reasons = (hold.lost or hold.lease_ended() for hold in self._holds if hold.is_lost(monotonic()))
        return LockLostError(self.semaphore.name, next(reasons, "its lease ended"), PermitHold.noun)

    def release(self) -> None:
        """Release it. Raises PermitNotHeldError if it was released before, or its lease has ended."""
        self.semaphore.release(self)

    async def arelease(self) -> None:
        await self.semaphore.arelease(self)


class PermitHold(Hold):
    """A permit that is renewed while its Permit object exists: without that object it cannot be released."""

    __slots__ = ("_permit",)

    noun = "permit of semaphore"

    def __init__(self, semaphore: PermitSemaphore, each: str, now: float) -> None:
        owner = NamedOwner(each)
        super().__init__(key_of(semaphore, owner), semaphore, owner, each, now)
        self.caller_name = "a Permit"

    def belongs_to(self, permit: Permit) -> None:
        self._permit = weakref.ref(permit)

    @property
    def owner_ended(self) -> bool:
        return self._permit() is None


class PermitBlock:
    """Takes permits for one ``with`` or ``async with`` block."""

    __slots__ = ("_options", "_permit", "_permits", "_semaphore")

    _permit: Permit

    def __init__(self, semaphore: PermitSemaphore, permits: int, options: dict[str, Any]) -> None:
        self._semaphore = semaphore
        self._permits = permits
        self._options = options

    def __enter__(self) -> Permit:
        started = monotonic()
        permit = self._semaphore.acquire(self._permits, **self._options)
        if permit is None:
            raise self._timed_out(started)
        self._permit = permit  # a plain assignment: a call could be interrupted, and leave it taken
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if must_not_block():  # a generator that other code entered is dropped here
            self._semaphore._release_later(self._permit)
            return
        with hidden_behind(error, self._semaphore.name):
            self._left(self._semaphore.try_release(self._permit))

    async def __aenter__(self) -> Permit:
        started = monotonic()
        permit = await self._semaphore.aacquire(self._permits, **self._options)
        if permit is None:
            raise self._timed_out(started)
        self._permit = permit
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with hidden_behind(error, self._semaphore.name):
            self._left(await self._semaphore.atry_release(self._permit))

    def _timed_out(self, started: float) -> LockTimeoutError:
        return timed_out(self._semaphore, monotonic() - started)

    def _left(self, released: int) -> None:
        if not released:
            permit = self._permit
            raise PermitNotHeldError(self._semaphore.name, permit.ids) if permit.given_back else permit.lost_error()


def checked_ids(permits: Permit | str | Iterable[str]) -> tuple[str, ...]:
    """The ids, without duplicates."""
    if isinstance(permits, Permit):
        return permits.ids
    ids = dict.fromkeys([permits] if isinstance(permits, str) else permits)
    for each in ids:
        if not _ID.fullmatch(str(each)):
            raise ValueError(f"A permit's id is 32 lower-case hexadecimal digits, not {each!r}.")
    return tuple(ids)


def single_id(permit: Permit | str) -> str:
    """The id of a single permit. Raises ValueError for none or several."""
    ids = checked_ids(permit)
    if len(ids) != 1:
        raise ValueError(f"Expected one permit, not {len(ids)}; give one of their ids.")
    return ids[0]


def packed(ids: tuple[str, ...]) -> bytes:
    return bytes.fromhex("".join(ids))


class Permits(Requests):
    """Permits with leases. A held permit is identified by an id instead of an owner's name."""

    scope = "permit"
    hears_forced = False

    def acquire(
        self, lock: Any, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        lease_ms = 0 if lock.lease is None else milliseconds(lock.lease)
        all_keys = *permit_keys(lock.key), keys.requests_key(lock.key)
        return call_for(lock, scripts.PERMIT_ACQUIRE, all_keys, packed(lock.ids), lease_ms)

    def leave(self, lock: Any, asker: str) -> ScriptCall:
        """A request's permits; or, for the watchdog, the one permit with this id."""
        all_keys = *permit_keys(lock.key), keys.requests_key(lock.key)
        ids = lock.ids if isinstance(lock, PermitRequest) else (asker,)
        return call_for(lock, scripts.PERMIT_LEAVE, all_keys, packed(ids), REMEMBERED_MS)

    def lease(self, lock: Any, owner_id: str, lease: float, mode: int) -> ScriptCall:
        lease_ms = 0 if lease == math.inf else milliseconds(lease)
        all_keys = *permit_keys(lock.key), *settled_keys(lock, owner_id, mode)
        return call_for(lock, scripts.PERMIT_RENEW, all_keys, packed((owner_id,)), lease_ms, mode)

    def state(self, lock: Any, owner_id: str) -> ScriptCall:
        """Returns how many permits are free, how many are taken, and the remaining lease of this one in ms."""
        return call_for(lock, scripts.PERMIT_STATE, permit_keys(lock.key), packed((owner_id,)))

    def lease_left(self, reply: list[Any]) -> int:
        left: int = reply[3]
        return left


PERMITS = Permits()


class PermitRequest(Request):
    """A request for permits with ids; the ids identify the request."""

    __slots__ = ("ids", "lease")

    kind = "permit"
    _kind = PERMITS

    def __init__(self, semaphore: PermitSemaphore, permits: int, lease: float | None) -> None:
        super().__init__(semaphore, permits)
        self.ids = tuple(os.urandom(16).hex() for _ in range(permits))
        self.lease = lease

    async def retire_copies(self, driver: Driver, taken: bool) -> None:
        await super().retire_copies(driver, taken)
        if taken:  # before the permit can be released
            await driver.run(retire_call(self, bytes.fromhex(self.ids[0])), driver.now() + RELEASE_PATIENCE)


def permit_keys(key: str) -> tuple[str, str, str]:
    return key, keys.permits_key(key), keys.semaphore_channel(key)


def checked_amount(permits: int) -> int:
    """Return the number, if that many permits can be taken at once."""
    if checked_number("permits", permits, 1) > MOST_AT_ONCE:
        raise ValueError(f"permits must be at most {MOST_AT_ONCE} in one call, not {permits}.")
    return permits
