"""Releases a lock whose ``with`` statement was interrupted before it could release it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from django_rlock.drivers.identity import thread_owner
from django_rlock.exits import Method, guarded
from django_rlock.locks.holds import HOLDS, NOTHING
from django_rlock.locks.records import key_of


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
        return guarded(self._exit_block, block, _GiveBack(block.lock if self._has_lock else block))


class _GiveBack:
    """Gives back what a statement has taken of a lock since this object was made."""

    __slots__ = ("_around", "_keys", "_lock", "_owner")

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._owner = owner = thread_owner()
        self._keys = [key_of(part, owner) for part in lock.parts]
        self._around = HOLDS.before(self._keys, lock._depth)

    def __call__(self) -> None:
        lock = self._lock
        if HOLDS.has_none(self._keys) or thread_owner() is not self._owner:
            return
        for part, key in zip(lock.parts, self._keys, strict=True):
            hold, former = HOLDS.at(key), self._around.get(key, NOTHING)
            if hold is not None and former.is_exceeded(hold, lock._depth(key)[0]):
                lock._leave_interrupted(part, hold, former.blocks)
