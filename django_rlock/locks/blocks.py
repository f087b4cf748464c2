"""The ends of blocks, which run even if a ``with`` statement was interrupted or its generator was dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from functools import partial, update_wrapper
from inspect import signature
from types import TracebackType
from typing import Any, Generic, Self, cast

from django_rlock._core.callbacks import log
from django_rlock._transport.calls import run_flow
from django_rlock._transport.identity import Owner, current_owner, thread_owner
from django_rlock._transport.interruptions import Method, guarded
from django_rlock._transport.registry import sync_driver
from django_rlock.exceptions import LockLostError, LockUnavailableError, RLockError
from django_rlock.locks.holds import HOLDS, NOTHING
from django_rlock.locks.kinds import SomeLock
from django_rlock.locks.records import Hold, key_of

# --- blocks -----------------------------------------------------------------------------------------------------------

# The ends of blocks. A block belongs to the owner that entered it, also if its end runs elsewhere: the end of a dropped
# generator may run in another thread or task. And a block is left even if its ``with`` statement was interrupted before
# it could leave it.
#
# Python looks up ``__exit__`` before it calls ``__enter__``; so that is the time to note the owner.


def released_when_dropped(exit_block: Method) -> Method:
    """Pass the ``owner`` that enters the block to an ``__exit__`` with such a parameter, and make it release the lock
    if it is dropped. The class is a lock, or has a ``lock`` that ``__enter__`` takes.

    A lock with ``owner=`` is not released, because other threads may have entered blocks under the same name.
    """
    return cast("Method", _ExitMethod(exit_block))


class _ExitMethod:
    _has_lock: bool

    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block
        self._wants_owner = "owner" in signature(exit_block).parameters

    def __set_name__(self, kind: type, _name: str) -> None:
        self._has_lock = hasattr(kind, "lock")

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:  # by contextlib.ExitStack, among others
            return _for(thread_owner(), self._exit_block) if self._wants_owner else self._exit_block
        give_back = _GiveBack(block.lock if self._has_lock else block)
        leave = partial(self._exit_block, owner=give_back.owner) if self._wants_owner else self._exit_block
        return guarded(leave, block, give_back)


def left_by_its_owner(exit_block: Method) -> Method:
    """Pass the ``owner`` that enters the block to an ``__aexit__``."""
    return cast("Method", _AsyncExitMethod(exit_block))


class _AsyncExitMethod:
    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:
            return _for(current_owner(), self._exit_block)
        return partial(self._exit_block, block, owner=current_owner())


def _for(owner: Owner, exit_block: Callable[..., object]) -> Callable[..., object]:
    def leave(block: Any, *error: Any) -> object:
        return exit_block(block, *error, owner=owner)

    return update_wrapper(leave, exit_block)


class _GiveBack:
    """Releases the holds that a statement has taken since this object was created."""

    __slots__ = ("_around", "_keys", "_lock", "owner")

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.owner = owner = thread_owner()
        self._keys = [key_of(part, owner) for part in lock.parts]
        self._around = HOLDS.before(self._keys, lock._depth)

    def __call__(self) -> None:
        lock = self._lock
        if HOLDS.has_none(self._keys) or thread_owner() is not self.owner:
            return
        for part, key in zip(lock.parts, self._keys, strict=True):
            hold, former = HOLDS.at(key), self._around.get(key, NOTHING)
            if hold is not None and former.is_exceeded(hold, lock._depth(key)[0]):
                leave_interrupted(lock, part, hold, former.blocks)


def leave_interrupted(lock: Any, part: Any, hold: Hold, blocks: int) -> None:
    """Release the hold of a block of the running thread whose ``__exit__`` was interrupted, of one of the lock's parts.

    ``blocks`` is the number of enclosing blocks.
    """
    hold.scoped = blocks + 1
    if part.until_commit != lock.until_commit:
        part = copy(part)
        part.until_commit = lock.until_commit
    run_flow(part._exit, (sync_driver(part.using), hold.owner, InterruptedError()))


# --- work that is not undone ------------------------------------------------------------------------------------------

# The lock around a piece of work that is not undone if only the release fails.

logger = logging.getLogger("django_rlock.locks")


class Section(Generic[SomeLock]):
    """A block under a lock. ``is_entered`` and ``is_committed`` say how far its work has got.

    ``left`` is the lock to release at its end; a part of the lock if a response keeps the rest.
    """

    __slots__ = ("is_committed", "is_entered", "left", "lock")

    def __init__(self, lock: SomeLock) -> None:
        self.lock = lock
        self.is_entered = False
        self.is_committed = False
        self.left: SomeLock | None = lock

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
        """Log a failure that comes too late to undo the work; raise other failures."""
        if isinstance(failure, LockUnavailableError) or (self.is_committed and isinstance(failure, LockLostError)):
            log(logger, logging.ERROR, "The work under lock %r is done, but: %s", self.lock.name, failure)
        else:
            raise failure
