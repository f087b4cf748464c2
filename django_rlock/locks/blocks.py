"""Releases a lock whose ``with`` statement was interrupted before it could release it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from django_rlock.drivers.identity import Owner, thread_owner
from django_rlock.exits import Exit, Method, leave
from django_rlock.locks.holds import HOLDS, NOTHING, Before
from django_rlock.locks.records import Key, key_of


def released_when_dropped(exit_block: Method) -> Method:
    """Make a dropped ``__exit__`` release its lock. The class is a lock, or has a ``lock``, which ``__enter__`` takes.

    A lock with ``owner=`` is not released, because other threads may have entered blocks under the same name.
    """
    return cast("Method", _ExitMethod(exit_block))


class _ExitMethod:
    _has_lock: bool

    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block

    def __set_name__(self, kind: type, _name: str) -> None:
        self._has_lock = hasattr(kind, "lock")

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:
            return self._exit_block
        bound = _Exit(leave, [], self._exit_block, block)
        bound.lock = lock = block.lock if self._has_lock else block
        bound.owner = owner = thread_owner()
        names = [key_of(part, owner) for part in lock.parts]
        bound.around = HOLDS.before(names, lock._depth)
        bound.keys = names  # set last: if interrupted before, it releases nothing
        return bound


class _Exit(Exit):
    lock: Any
    owner: Owner
    keys: Sequence[Key] = ()
    around: Mapping[Key, Before] = {}
    """What was held when the statement began."""

    def act_when_dropped(self, _exit_block: Callable[..., object], _block: object) -> None:
        if HOLDS.has_none(self.keys) or thread_owner() is not self.owner:
            return
        for part, key in zip(self.lock.parts, self.keys, strict=True):
            hold, former = HOLDS.at(key), self.around.get(key, NOTHING)
            if hold is not None and former.is_exceeded(hold, self.lock._depth(key)[0]):
                self.lock._leave_interrupted(part, hold, former.blocks)
