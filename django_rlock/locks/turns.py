"""Turns of callers that share a name: the threads and tasks of this process that use one ``owner=`` for one lock.

They share one hold, which is changed by one call after another. A signal may end a call at any point, so there is no
mutex: a turn belongs to its call alone, and ends at the latest when the call's frames are gone.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from django_rlock.drivers.base import Driver
from django_rlock.drivers.identity import Owner
from django_rlock.locks.callers import refuse_nested
from django_rlock.locks.holds import WAITS
from django_rlock.locks.records import Key, key_of
from django_rlock.process import on_fork

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock

S = TypeVar("S", bound="BaseLock")
P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 1.0
"""How long a call waits at least for an earlier one that does not sleep, in seconds: it takes a command's time."""
_PAUSES = 0.001, 0.02


class Turn:
    """One call's place in the queue."""

    __slots__ = ("__weakref__", "_line", "is_over", "key")

    def __init__(self, line: list[weakref.ref[Turn]], key: Key) -> None:
        self._line = line
        self.key = key
        self.is_over = False

    async def comes(self, lock: BaseLock, driver: Driver, until: float | None) -> bool:
        """Wait for the turn until the monotonic time ``until`` (None: no limit), or a little longer for a call that is
        about to end; returns False if it has not come. RuntimeError if it would wait for a call that it interrupts.
        """
        if not self._is_first():
            refuse_nested(lock)
        patient_until, pause = driver.now() + PATIENCE, _PAUSES[0]
        while not self._is_first():
            now = driver.now()
            if until is not None and now >= until and (now >= patient_until or self._is_waited_for()):
                return False
            await driver.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        return True

    def _is_first(self) -> bool:
        for each in list(self._line):
            other = each()
            if other is self:
                break
            if other is not None and other.key == self.key and not other.is_over:
                return False
        return True

    def _is_waited_for(self) -> bool:
        """Whether an earlier call waits for the lock itself, which may take long."""
        return any(wait.key == self.key for wait in WAITS.snapshot())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over = True
        with contextlib.suppress(ValueError):  # a forked child has another line
            self._line.remove(weakref.ref(self))


class Turns:
    """All turns, in order; entries are added and removed by single calls into C."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._line: list[weakref.ref[Turn]] = []

    def join(self, key: Key) -> Turn:
        turn = Turn(self._line, key)
        self._line.append(weakref.ref(turn, self._line.remove))
        return turn


TURNS = Turns()
on_fork("holds", TURNS.forget)


def in_turn(
    flow: Callable[Concatenate[S, Driver, Owner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, Driver, Owner, P], Coroutine[Any, Any, T]]:
    """Make calls of a flow wait for each other if they come from a named owner that several threads or tasks share.

    A call does not wait for one that waits for the lock itself: in that case nothing is held here.
    """

    run: Any = flow

    async def one_after_another(lock: S, driver: Driver, owner: Owner, args: tuple[Any, ...]) -> T:
        with TURNS.join(key_of(lock, owner)) as turn:
            await turn.comes(lock, driver, driver.now())
            return await made(lock, driver, owner, args)

    def made(lock: S, driver: Driver, owner: Owner, args: tuple[Any, ...]) -> Coroutine[Any, Any, T]:
        # A call with a star runs pending signal handlers in Python 3.11, before the coroutine is awaited.
        if not args:
            return run(lock, driver, owner)  # type: ignore[no-any-return]
        if len(args) == 1:
            return run(lock, driver, owner, args[0])  # type: ignore[no-any-return]
        first, second = args
        return run(lock, driver, owner, first, second)  # type: ignore[no-any-return]

    def call(lock: S, driver: Driver, owner: Owner, /, *args: P.args, **_: P.kwargs) -> Coroutine[Any, Any, T]:
        if owner.is_named:
            return one_after_another(lock, driver, owner, args)
        return made(lock, driver, owner, args) if args else run(lock, driver, owner)

    update_wrapper(call, flow)
    return call
