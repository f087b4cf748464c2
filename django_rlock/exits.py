"""``__exit__`` methods that run although a signal interrupted their ``with`` statement before it could call them.

A signal handler may raise after ``__enter__`` has done its work and before the block has begun, or after the block has
ended and before ``__exit__`` has done anything. In both cases Python drops the ``__exit__`` that the statement looked
up before it called ``__enter__``. So that is an object made for the statement, which acts when it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from django_rlock.exceptions import RLockError

Method = TypeVar("Method", bound=Callable[..., object])


class Block(Protocol):
    """What ``with`` enters. ``is_entered`` is whether it was entered and not left yet."""

    @property
    def is_entered(self) -> bool: ...


def run_when_dropped(exit_block: Method) -> Method:
    """Make the ``__exit__`` of a ``Block`` run when it is dropped, as after an InterruptedError."""
    return cast("Method", _ExitMethod(exit_block))


class Exit(partial[object]):
    """The ``__exit__`` of one statement: ``Exit(leave, [], exit_block, block)``.

    While it runs no frame refers to it, so no traceback keeps it alive.
    """

    def act_when_dropped(self, exit_block: Callable[..., object], block: Any) -> None:
        if block.is_entered:
            exit_block(block, InterruptedError, InterruptedError(), None)

    def __del__(self) -> None:
        ended, exit_block, block = self.args
        if not ended:
            try:
                self.act_when_dropped(exit_block, block)
            except BaseException:  # from a signal handler
                self.act_when_dropped(exit_block, block)
                raise


def leave(ended: list[bool], exit_block: Callable[..., object], block: object, *args: Any) -> object:
    """Leave a block, and record when that is done: what else was begun inside may go on for longer."""
    try:
        outcome = exit_block(block, *args)
    except RLockError:
        ended.append(True)
        raise
    ended.append(True)
    return outcome


class _ExitMethod:
    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block

    def __get__(self, block: Block | None, _kind: type) -> Callable[..., object]:
        if block is None:
            return self._exit_block
        if block.is_entered:  # what looks at the block's attributes is no statement that enters it
            return partial(self._exit_block, block)
        return Exit(leave, [], self._exit_block, block)
