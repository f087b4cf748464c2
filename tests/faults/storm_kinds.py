"""Each kind of lock as the storm uses it: taken, re-entered, extended, released and swept."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    LockLostError,
    LockTimeoutError,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
    Semaphore,
    WriteLock,
    rlock,
)
from django_rlock._transport.identity import current_owner
from django_rlock.locks.holds import HOLDS
from tests.faults.storm import BRIEF

PERMIT_MISSED = 0.2
"""A semaphore without a free permit for so long, in seconds, has lost it with a caller who was interrupted."""
T = TypeVar("T")


def asked(question: Callable[[], T]) -> T:
    """The answer, however often connections are cut: a question is not asked again for as long as an acquire is."""
    while True:
        with suppress(LockUnavailableError):
            return question()


class Subject:
    """A name: ``mine`` is what the interrupted thread takes, ``theirs`` what the others take meanwhile."""

    again = True
    """Whether its owner may take it again while it holds it."""
    leased = True
    """Whether it has a lease, which can be extended and is renewed."""
    forced = False
    """Whether its owner has begun to free it by force."""

    def __init__(self, mine: Any, theirs: Any = None, exclusive: bool = True) -> None:
        self.mine = mine
        self.theirs = theirs or mine
        self.exclusive = exclusive
        """Whether only one of the others may have it at a time."""

    def block(self) -> Any:
        """For ``with``."""
        return self.mine

    def brief_block(self) -> Any:
        """For a ``with`` that is given up after ``BRIEF``."""
        brief = copy(self.mine)
        brief.wait_time = BRIEF
        return brief

    def their_block(self) -> Any:
        """For ``with`` and ``async with`` of another owner."""
        return self.theirs

    def blocks_afterwards(self) -> list[Any]:
        """What others enter when it has been given back."""
        return [self.their_block()]

    def acquire(self, **options: Any) -> Any:
        """What ``give_back`` wants to have; something false where it was not granted."""
        return self.mine.acquire(**options)

    async def aacquire(self, **options: Any) -> Any:
        return await self.mine.aacquire(**options)

    def give_back(self, grant: Any) -> None:
        self.mine.release()

    async def agive_back(self, grant: Any) -> None:
        await self.mine.arelease()

    def extend(self, grant: Any, seconds: float) -> None:
        self.mine.extend(seconds)

    async def aextend(self, grant: Any, seconds: float) -> None:
        await self.mine.aextend(seconds)

    def leave(self, grant: Any, seconds: float) -> None:
        self.mine.leave(seconds)

    async def aleave(self, grant: Any, seconds: float) -> None:
        await self.mine.aleave(seconds)

    def force(self) -> None:
        self.forced = True
        self.mine.force_release()

    async def aforce(self) -> None:
        self.forced = True
        await self.mine.aforce_release()

    def lease(self, grant: Any) -> float:
        """How much of it the server counts as left, in seconds."""
        return asked(self.mine.remaining_lease) or 0.0

    def owned(self) -> bool:
        return asked(self.mine.owned)

    def await_sent(self) -> None:
        """Wait until the server has executed what an interrupted call has sent.

        A busy server may read connections in another order than that in which they were written to. When it replies, it
        has executed whatever came before the question.
        """
        asked(self.mine.locked)

    def note_interrupted(self, error: BaseException) -> None:
        """An action was interrupted where the error was raised."""

    def sweep(self, down_to: int = 0) -> None:
        """Release what the running thread was left with, when something interrupted it before its own release, and what
        tasks were that have ended.
        """
        for part in self.mine.parts:
            owner = part._named_owner or current_owner()
            while (hold := HOLDS.get(part, owner)) is not None and hold.count > down_to:
                self._release(part)
            for hold in HOLDS.snapshot():
                if hold.owner_ended and hold.lock.name == part.name:
                    part.force_release(hold.owner_id)

    def _release(self, part: Any) -> None:
        try:
            part.release()
        except LockLostError:
            if not self.forced:  # an interrupted release by force had freed it
                raise


class Named(Subject):
    """A lock whose owner has a name. Afterwards others take it under that name too."""

    def blocks_afterwards(self) -> list[Any]:
        return [self.their_block(), self.block()]

    def sweep(self, down_to: int = 0) -> None:
        """Free it as well: what an interrupted call took under a name stays until its lease ends."""
        super().sweep(down_to)
        self.await_sent()
        self.mine.force_release(self.mine.owner)


class Counted(Subject):
    """A semaphore of one permit."""

    again = leased = False

    def await_sent(self) -> None:
        asked(self.mine.available_permits)

    def note_interrupted(self, error: BaseException) -> None:
        """Have the permit back: it has no owner, so no one but its waiters can miss it.

        One that is taken while the semaphore is being asked comes back by itself. After that its caller alone knows of
        it, and may have been interrupted before it was noted or given back.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        codes = [frame.f_code for frame in frames if frame.f_globals["__name__"].startswith("django_rlock.")]
        asking = Semaphore._acquire.__code__ in codes[:-1]
        self.await_sent()
        missed_at = time.monotonic() + PERMIT_MISSED
        while asked(self.mine.available_permits) < 1:
            if not asking and time.monotonic() > missed_at:
                self.mine.release()
                return

    def sweep(self, down_to: int = 0) -> None:
        """Have no more than one permit in all: another one may have seemed missed only."""
        left = asked(self.mine.available_permits)
        if left > 1:
            self.mine.add_permits(1 - left)


class Permits(Subject):
    """A semaphore of one permit that has an id and a lease."""

    again = False

    def block(self) -> Any:
        return self.mine.permit(renewed=True)

    their_block = block

    def brief_block(self) -> Any:
        return self.mine.permit(renewed=True, wait_time=BRIEF)

    def acquire(self, **options: Any) -> Any:
        return self.mine.acquire(renewed=True, **options)

    async def aacquire(self, **options: Any) -> Any:
        return await self.mine.aacquire(renewed=True, **options)

    def give_back(self, grant: Any) -> None:
        grant.release()

    async def agive_back(self, grant: Any) -> None:
        await grant.arelease()

    def extend(self, grant: Any, seconds: float) -> None:
        self.mine.update_lease_time(grant, seconds)

    async def aextend(self, grant: Any, seconds: float) -> None:
        await self.mine.aupdate_lease_time(grant, seconds)

    def lease(self, grant: Any) -> float:
        return asked(lambda: self.mine.lease_time(grant)) or 0.0

    def sweep(self, down_to: int = 0) -> None:
        """Release the permits whose Permit object is gone."""
        for hold in HOLDS.snapshot():
            if hold.lock.name == self.mine.name and hold.owner_ended:
                self.mine.try_release(hold.owner_id)


class Gate(Subject):
    """A latch that is used like a lock: who passes closes it, and opens it to give it back."""

    again = leased = False

    def block(self) -> Any:
        return self

    def brief_block(self) -> Any:
        brief = copy(self)
        brief.mine = super().brief_block()
        return brief

    their_block = block

    def __enter__(self) -> None:
        if not self.acquire():
            raise LockTimeoutError(self.mine.name, self.mine.wait_time)

    def __exit__(self, *_: object) -> None:
        self.give_back(True)

    async def __aenter__(self) -> None:
        if not await self.aacquire():
            raise LockTimeoutError(self.mine.name, self.mine.wait_time)

    async def __aexit__(self, *_: object) -> None:
        await self.agive_back(True)

    def acquire(self, **options: Any) -> bool:
        while self.mine.wait(**options):
            if self.mine.try_set_count(1):
                return True
        return False

    async def aacquire(self, **options: Any) -> bool:
        while await self.mine.await_(**options):
            if await self.mine.atry_set_count(1):
                return True
        return False

    def give_back(self, grant: Any) -> None:
        self.mine.count_down()

    async def agive_back(self, grant: Any) -> None:
        await self.mine.acount_down()

    def await_sent(self) -> None:
        asked(self.mine.count)

    def sweep(self, down_to: int = 0) -> None:
        """Open it: nobody knows whether it was closed."""
        self.await_sent()
        self.mine.delete()


def _lock(kind: Any, name: str, using: str) -> Subject:
    return Subject(rlock(name, kind=kind, using=using))


def _side(kind: str, name: str, using: str) -> Subject:
    read, write = (rlock(name, kind=side, using=using) for side in ("read", "write"))
    return Subject(read, write) if kind == "read" else Subject(write, read, exclusive=False)


def _multi(_kind: str, name: str, using: str) -> Subject:
    others = FencedLock(f"{name}:2", using=using), WriteLock(f"{name}:3", using=using)
    return Subject(MultiLock(FairLock(f"{name}:1", using=using), *others))


def _named(_kind: str, name: str, using: str) -> Subject:
    return Named(rlock(name, using=using, owner=f"owner of {name}"), rlock(name, using=using))


def _latch(_kind: str, name: str, using: str) -> Subject:
    return Gate(CountDownLatch(name, using=using))


def _semaphore(_kind: str, name: str, using: str) -> Subject:
    semaphore = Semaphore(name, using=using)
    semaphore.try_set_permits(1)
    return Counted(semaphore, exclusive=False)


def _permits(_kind: str, name: str, using: str) -> Subject:
    semaphore = PermitExpirableSemaphore(name, using=using)
    semaphore.try_set_permits(1)
    return Permits(semaphore)


def _limited(kind: str, name: str, using: str) -> Subject:
    return Subject(rlock(name, permits=1, using=using))


_MAKERS = {
    **dict.fromkeys(("fair", "rlock", "spin", "fenced", "redlock"), _lock),
    **dict.fromkeys(("read", "write"), _side),
    "multi": _multi,
    "semaphore": _semaphore,
    "permits": _permits,
    "latch": _latch,
    "limited": _limited,
    "named": _named,
}


def subject(kind: str, name: str, using: str = "default") -> Subject:
    """A name of a kind."""
    return _MAKERS[kind](kind, name, using)


def renewed_subject(kind: str, name: str) -> Subject:
    """A name of this kind under a lease of seconds, which is renewed; of another kind where this one has no lease."""
    return subject("fair" if kind in {"semaphore", "latch"} else kind, name, using="short")
