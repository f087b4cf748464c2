"""Guards for code that must run even if a signal interrupts its caller: ``__exit__`` methods, and other ends.

A signal handler may raise after ``__enter__`` has done its work and before the block has begun, or after the block has
ended and before ``__exit__`` has done anything. In both cases Python drops the ``__exit__`` that the statement looked
up before it called ``__enter__``. So that is an object made for the statement, with a guard: a weak reference whose
callback runs when the object is dropped.

Python drops an exception that a signal handler raises in such a callback, or in ``__del__``. So a normal exit
disarms its guard, and then no Python code runs when the object is dropped. An exception in a callback is raised again
in the code around it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, Protocol, TypeVar, cast
from weakref import ref

from redis.exceptions import LockError

Method = TypeVar("Method", bound=Callable[..., object])


class Block(Protocol):
    """The block that ``with`` enters. ``is_entered`` is whether it was entered and not left yet."""

    @property
    def is_entered(self) -> bool: ...


def run_when_dropped(exit_block: Method) -> Method:
    """Make the ``__exit__`` of a ``Block`` run when it is dropped, as after an InterruptedError."""
    return cast("Method", _ExitMethod(exit_block))


_guards: dict[int, ref[Any]] = {}
"""The armed guards, by number. They are kept here, because Python does not call a weak reference that is part of the
same cycle of garbage; so it calls none of them as the interpreter ends."""
_guard_numbers = count()


def guard(each: object, act: Callable[[], object]) -> int:
    """Call ``act`` when an object is dropped, unless its guard is disarmed before; returns the guard's number.

    ``act`` must not refer to the object. It is called again if a signal interrupts it.
    """
    number = next(_guard_numbers)
    _guards[number] = ref(each, partial(_when_dropped, act, number))
    return number


def disarm(number: int) -> None:
    """Call off a guard, by one call into C."""
    _guards.pop(number, None)


def _when_dropped(act: Callable[[], object], number: int, _ref: object) -> None:
    _guards.pop(number, None)
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - from a signal handler; it is raised again
        try:
            act()
        finally:
            _raise_around(error, sys._getframe(1))  # noqa: SLF001 - documented


def _raise_around(error: BaseException, frame: FrameType | None) -> None:
    """Raise an error at the next line that a frame, or those it returns to, comes to: as a debugger stops there."""
    frames: list[tuple[FrameType, Any]] = []
    before = sys.gettrace()

    def strike(_at: FrameType, event: str, _argument: object) -> None:
        if event == "call":  # perhaps called by garbage collection, where it would be dropped as well
            return
        sys.settrace(before)
        for each, function in frames:
            each.f_trace = function
        frames.clear()
        raise error

    while frame is not None:
        frames.append((frame, frame.f_trace))
        frame.f_trace = strike
        frame = frame.f_back
    sys.settrace(strike)


def guarded(
    exit_block: Callable[..., object], block: object, act: Callable[[], object], owner: object = None
) -> Callable[..., object]:
    """An ``__exit__`` for one statement. It calls ``act`` if it is dropped before it has run. ``exit_block`` gets the
    ``owner`` of the block, if there is one.
    """
    number = next(_guard_numbers)
    # A partial, because no frame refers to it while it runs: no traceback keeps it alive.
    made = partial(_exit, number, exit_block, block, owner)
    _guards[number] = ref(made, partial(_when_dropped, act, number))
    return made


def _exit(
    number: int,
    exit_block: Callable[..., object],
    block: object,
    owner: object,
    kind: object = None,
    error: object = None,
    trace: object = None,
) -> object:
    """Exit a block, and disarm when that is done: other work that began inside it may continue for longer."""
    try:
        if owner is None:
            outcome = exit_block(block, kind, error, trace)
        else:
            outcome = exit_block(block, kind, error, trace, owner=owner)
    except LockError:  # the base of this package's errors, which a finished exit raises
        _guards.pop(number, None)
        raise
    _guards.pop(number, None)  # as disarm()
    return outcome


def _exit_entered(exit_block: Callable[..., object], block: Block) -> None:
    if block.is_entered:
        exit_block(block, InterruptedError, InterruptedError(), None)


class _ExitMethod:
    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block

    def __get__(self, block: Block | None, _kind: type) -> Callable[..., object]:
        if block is None:
            return self._exit_block
        if block.is_entered:  # attribute access, by a debugger for example, does not enter it
            return partial(self._exit_block, block)
        return guarded(self._exit_block, block, partial(_exit_entered, self._exit_block, block))
