"""Turns of callers that share a name: the threads and tasks of this process that use one ``owner=`` for one lock.

They share one hold, which is changed by one call after another. A signal may end a call at any point, so there is no
mutex: a turn belongs to its call alone, and ends at the latest when the call's frames are gone.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Self

from django_rlock.drivers.base import Driver
from django_rlock.locks.holds import WAITS, Key
from django_rlock.process import on_fork

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

    async def comes(self, driver: Driver, until: float | None) -> bool:
        """Wait for the turn until the monotonic time ``until`` (None: no limit), or a little longer for a call that is
        about to end; returns False if it has not come.
        """
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
