"""The permits of an expirable semaphore: what an acquire took, by ids."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django_rlock.drivers.base import monotonic
from django_rlock.exceptions import LockLostError, LockTimeoutError
from django_rlock.locks.counters import hidden_behind
from django_rlock.locks.holds import Hold
from django_rlock.locks.semaphore import NO_PERMIT_LEFT

if TYPE_CHECKING:
    from django_rlock.locks.expirable import PermitExpirableSemaphore

_ID = re.compile(r"[0-9a-f]{32}")


class Permit:
    """What one ``acquire`` of a ``PermitExpirableSemaphore`` took: one permit, or several at once.

    ``ids`` are their ids, 32 hexadecimal digits each, by which any process may give them back. ``deadline`` is when the
    lease ends that it was taken with, in monotonic seconds.
    """

    __slots__ = ("__weakref__", "_holds", "deadline", "ids", "semaphore")

    def __init__(
        self, semaphore: PermitExpirableSemaphore, ids: tuple[str, ...], deadline: float, holds: Sequence[Hold]
    ) -> None:
        self.semaphore = semaphore
        self.ids = ids
        self.deadline = deadline
        self._holds = holds

    def __repr__(self) -> str:
        return f"<Permit {', '.join(self.ids)} of {self.semaphore!r}>"

    @property
    def id(self) -> str:
        """The id of a single permit. ValueError where it is several."""
        (only,) = self.ids
        return only

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
            raise self._permit.lost_error()


def checked_ids(permits: Permit | str | Iterable[str]) -> tuple[str, ...]:
    """The ids, each once."""
    if isinstance(permits, Permit):
        return permits.ids
    ids = dict.fromkeys([permits] if isinstance(permits, str) else permits)
    for each in ids:
        if not _ID.fullmatch(str(each)):
            raise ValueError(f"A permit's id is 32 lower-case hexadecimal digits, not {each!r}.")
    return tuple(ids)


def packed(ids: tuple[str, ...]) -> bytes:
    return bytes.fromhex("".join(ids))
