"""Releases a lock whose ``with`` statement was interrupted before it could release it.

A signal handler may raise after ``__enter__`` has taken the lock and before the block has begun, or after the block has
ended and before ``__exit__`` has released anything. In both cases Python drops the ``__exit__`` that the statement
looked up before it called ``__enter__``. So ``__exit__`` is an object made for that statement, and it releases what is
left when it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from django_rlock.drivers.identity import Owner, thread_owner
from django_rlock.exceptions import RLockError
from django_rlock.locks.holds import HOLDS, Key, key_of

Method = TypeVar("Method", bound=Callable[..., None])


def released_when_dropped(exit_block: Method) -> Method:
    """Make a dropped ``__exit__`` release its locks. The class needs ``parts``: the locks that ``__enter__`` takes.

    Locks with ``owner=`` are not released, because other threads may have entered blocks under the same name.
    """
    return cast("Method", _ExitMethod(exit_block))


class _ExitMethod:
    def __init__(self, exit_block: Callable[..., None]) -> None:
        self._exit_block = exit_block

    def __get__(self, block: Any, _kind: type) -> Callable[..., None]:
        if block is None:
            return self._exit_block
        bound = _Exit(_run, [], self._exit_block, block)
        bound.owner = owner = thread_owner()
        names = [key_of(part, owner) for part in block.parts]
        if not HOLDS.has_none(names):
            bound.around = {key: HOLDS.depth(key) for key in names}
        bound.keys = names  # set last: if interrupted before, it releases nothing
        return bound


def _run(ended: list[bool], exit_block: Callable[..., None], block: Any, *args: Any) -> None:
    """Leave a block, and record when that is done: other locks taken inside may be held for longer."""
    try:
        exit_block(block, *args)
    except RLockError:
        ended.append(True)
        raise
    ended.append(True)


class _Exit(partial[None]):
    """The ``__exit__`` of one statement. While it runs no frame refers to it, so no traceback keeps it alive."""

    owner: Owner
    keys: Sequence[Key] = ()
    around: Mapping[Key, tuple[int, int]] = {}
    """How often each lock was held when the statement began, and by how many blocks."""

    def __del__(self) -> None:
        ended, _, block = self.args
        if ended or HOLDS.has_none(self.keys) or thread_owner() is not self.owner:
            return
        for part, key in zip(block.parts, self.keys, strict=True):
            count, blocks = self.around.get(key, (0, 0))
            if HOLDS.depth(key)[0] > count:
                part._leave_interrupted(HOLDS.at(key), blocks)
