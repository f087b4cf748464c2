"""The permits of an expirable semaphore: what an acquire took, by ids."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django_rlock import keys, scripts
from django_rlock.drivers.base import ScriptCall, monotonic
from django_rlock.exceptions import LockLostError, LockTimeoutError, PermitNotHeldError
from django_rlock.locks.counters import REMEMBERED_MS, Request, checked_number, hidden_behind
from django_rlock.locks.durations import milliseconds
from django_rlock.locks.holds import Hold
from django_rlock.locks.hooks import LockHooks
from django_rlock.locks.semaphore import NO_PERMIT_LEFT

if TYPE_CHECKING:
    from django_rlock.locks.expirable import PermitExpirableSemaphore

MOST_AT_ONCE = 10_000
"""Permits of one acquire; the server does nothing else while it writes them down."""
_ID = re.compile(r"[0-9a-f]{32}")


class Permit:
    """What one ``acquire`` of a ``PermitExpirableSemaphore`` took: one permit, or several at once.

    ``ids`` are their ids, 32 hexadecimal digits each, by which any process may give them back. ``deadline`` is when the
    lease ends that it was taken with, in monotonic seconds. ``given_back`` is whether it was released by this object.
    """

    __slots__ = ("__weakref__", "_holds", "deadline", "given_back", "ids", "semaphore")

    def __init__(
        self, semaphore: PermitExpirableSemaphore, ids: tuple[str, ...], deadline: float, holds: Sequence[Hold]
    ) -> None:
        self.semaphore = semaphore
        self.ids = ids
        self.deadline = deadline
        self.given_back = False
        self._holds = holds

    def __repr__(self) -> str:
        return f"<Permit {', '.join(self.ids)} of {self.semaphore!r}>"

    @property
    def id(self) -> str:
        """The id of a single permit. ValueError where it is several."""
        return single_id(self)

    @property
    def lost(self) -> bool:
        """Whether its lease has ended or its renewal failed, so that others may have it; asks nobody.

        It knows the lease that it was taken with, or renewed to by this process.
        """
        now = monotonic()
        return any(hold.is_lost(now) for hold in self._holds) if self._holds else now >= self.deadline

    def check(self) -> None:
        """LockLostError when it is lost; asks nobody."""
        if self.lost:
            raise self.lost_error()

    def lost_error(self) -> LockLostError:
        reasons = (hold.lost or hold.lease_ended() for hold in self._holds if hold.is_lost(monotonic()))
        return LockLostError(self.semaphore.name, reason=next(reasons, "the lease of its permit ended"))

    def release(self) -> None:
        """Give it back. PermitNotHeldError when that was done before, or its lease has ended."""
        self.semaphore.release(self)

    async def arelease(self) -> None:
        await self.semaphore.arelease(self)


class PermitHold(Hold):
    """A permit that is renewed for as long as somebody keeps its Permit: whoever lost that cannot give it back."""

    __slots__ = ("_permit",)

    def __init__(self, semaphore: PermitExpirableSemaphore, each: str, now: float) -> None:
        super().__init__(semaphore, each, each, now)
        self.place = "a Permit"

    def belongs_to(self, permit: Permit) -> None:
        self._permit = weakref.ref(permit)

    @property
    def owner_ended(self) -> bool:
        return self._permit() is None


class PermitBlock:
    """Takes permits for one ``with`` or ``async with``."""

    __slots__ = ("_options", "_permit", "_permits", "_semaphore")

    _permit: Permit

    def __init__(self, semaphore: PermitExpirableSemaphore, permits: int, options: dict[str, Any]) -> None:
        self._semaphore = semaphore
        self._permits = permits
        self._options = options

    def __enter__(self) -> Permit:
        started = monotonic()
        return self._entered(self._semaphore.acquire(self._permits, **self._options), started)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with hidden_behind(error, self._semaphore.name):
            self._left(self._semaphore.try_release(self._permit))

    async def __aenter__(self) -> Permit:
        started = monotonic()
        return self._entered(await self._semaphore.aacquire(self._permits, **self._options), started)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with hidden_behind(error, self._semaphore.name):
            self._left(await self._semaphore.atry_release(self._permit))

    def _entered(self, permit: Permit | None, started: float) -> Permit:
        if permit is None:
            raise LockTimeoutError(self._semaphore.name, waited=monotonic() - started, holder=NO_PERMIT_LEFT)
        self._permit = permit
        return permit

    def _left(self, released: int) -> None:
        if not released:
            permit = self._permit
            raise PermitNotHeldError(self._semaphore.name, permit.ids) if permit.given_back else permit.lost_error()


def checked_ids(permits: Permit | str | Iterable[str]) -> tuple[str, ...]:
    """The ids, each once."""
    if isinstance(permits, Permit):
        return permits.ids
    ids = dict.fromkeys([permits] if isinstance(permits, str) else permits)
    for each in ids:
        if not _ID.fullmatch(str(each)):
            raise ValueError(f"A permit's id is 32 lower-case hexadecimal digits, not {each!r}.")
    return tuple(ids)


def single_id(permit: Permit | str) -> str:
    """The id of what must be one permit."""
    ids = checked_ids(permit)
    if len(ids) != 1:
        raise ValueError(f"These are {len(ids)} permits, where one is asked for; take one of their ids.")
    return ids[0]


def packed(ids: tuple[str, ...]) -> bytes:
    return bytes.fromhex("".join(ids))


class PermitRequest(Request):
    """Permits with ids; the ids are the request's name."""

    __slots__ = ("ids", "lease")

    kind = "permit"

    def __init__(self, semaphore: PermitExpirableSemaphore, permits: int, lease: float | None) -> None:
        super().__init__(semaphore, permits)
        self.ids = tuple(os.urandom(16).hex() for _ in range(permits))
        self.lease = lease

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        lease_ms = 0 if self.lease is None else milliseconds(self.lease)
        all_keys = *permit_keys(self.key), keys.requests_key(self.key)
        return self._call(scripts.PERMIT_ACQUIRE, all_keys, packed(self.ids), lease_ms)

    def leave_call(self, owner: str) -> ScriptCall:
        return leave_call(self, self.ids)


def leave_call(hooks: LockHooks, ids: tuple[str, ...]) -> ScriptCall:
    all_keys = *permit_keys(hooks.key), keys.requests_key(hooks.key)
    return ScriptCall(hooks.name, scripts.PERMIT_LEAVE, all_keys, (packed(ids), REMEMBERED_MS))


def permit_keys(key: str) -> tuple[str, str, str]:
    return key, keys.permits_key(key), keys.semaphore_channel(key)


def checked_amount(permits: int) -> int:
    """The number itself, if so many can be taken at once."""
    if checked_number("permits", permits, 1) > MOST_AT_ONCE:
        raise ValueError(f"permits must be {MOST_AT_ONCE} at once at most, not {permits}.")
    return permits
