"""The lock around a piece of work that is not undone if only the release fails."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from django_rlock.callbacks import log
from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockLostError, LockUnavailableError, RLockError
from django_rlock.locks.blocks import released_when_dropped

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock

logger = logging.getLogger("django_rlock.locks")


class Section:
    """A block under a lock. ``is_entered`` and ``is_committed`` say how far its work has got.

    ``left`` is what is released at its end; it is less than the lock if a response keeps some of it.
    """

    __slots__ = ("is_committed", "is_entered", "left", "lock")

    def __init__(self, lock: BaseLock) -> None:
        self.lock = lock
        self.is_entered = False
        self.is_committed = False
        self.left: BaseLock | None = lock

    def __enter__(self) -> Self:
        self.lock.enter()
        self.is_entered = True
        return self

    @released_when_dropped
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        *,
        owner: Owner | None = None,
    ) -> None:
        if self.left is not None:
            try:
                self.left._end_block(error, owner)
            except RLockError as failure:
                self._note(failure)

    async def __aenter__(self) -> Self:
        await self.lock.__aenter__()
        self.is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.left is not None:
            try:
                await self.left.__aexit__(kind, error, trace)
            except RLockError as failure:
                self._note(failure)

    def _note(self, failure: RLockError) -> None:
        """Log a failure that comes too late to undo anything; raise any other."""
        if isinstance(failure, LockUnavailableError) or (self.is_committed and isinstance(failure, LockLostError)):
            log(logger, logging.ERROR, "The work under lock %r is done, but: %s", self.lock.name, failure)
        else:
            raise failure
