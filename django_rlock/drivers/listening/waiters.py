"""The waiters of a channel, and how threads and tasks sleep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from django_rlock import threads
from django_rlock.drivers.base import EVERYBODY
from django_rlock.drivers.tasks import LoopEvent
from django_rlock.exits import disarm, guard


class Lines(Protocol):
    """What a waiter needs from its listener."""

    def remove(self, waiter: ListenerWaiter) -> None:
        """Take a waiter out of its queue."""

    def lose(self, channel: str, token: str | None) -> None:
        """A waiter was dropped that has not left its queue."""

    def wake_next(self, channel: str, token: str | None, ticket: str = "") -> None:
        """Wake the waiter that has waited longest."""


class ListenerWaiter:
    """A place in a channel's queue; threads and tasks differ in how they sleep."""

    __slots__ = ("__weakref__", "_closed", "_left", "_lines", "channel", "ticket", "token")

    def __init__(self, lines: Lines, channel: str, token: str | None) -> None:
        self._lines = lines
        self._closed = self._left = False
        self.channel = channel
        self.token = token
        self.ticket = ""

    async def wait(self, timeout: float | None) -> bool:
        raise NotImplementedError

    def wake(self) -> None:
        raise NotImplementedError

    def hear(self, payload: str) -> None:
        """Called for each message of the channel, if the waiter's token is EVERYBODY."""
        self.wake()

    def close(self, asked: bool = True) -> None:
        if self._closed:
            return
        self._left = True
        self._lines.remove(self)
        if not asked or self._has_unused_wake_up():
            self._pass_on()
        self._closed = True

    def has_left(self) -> bool:
        """Whether it no longer waits."""
        return self._left

    def _pass_on(self) -> None:
        if self.token is None:
            self._lines.wake_next(self.channel, None)

    def _has_unused_wake_up(self) -> bool:
        raise NotImplementedError


class _SleepingWaiter(ListenerWaiter):
    """Sleeps on a bell."""

    __slots__ = ("_event", "_guard")

    _event: threads.AutoResetEvent | LoopEvent

    def __init__(self, lines: Lines, channel: str, token: str | None) -> None:
        super().__init__(lines, channel, token)
        # An interrupted attempt may not have left, or not have used its wake-up, which then belongs to the next waiter.
        self._guard = guard(self, partial(lines.lose, channel, token))

    def wake(self) -> None:
        self._event.ring()

    def close(self, asked: bool = True) -> None:
        super().close(asked)
        disarm(self._guard)

    def _has_unused_wake_up(self) -> bool:
        return self._event.has_rung


class ThreadWaiter(_SleepingWaiter):
    """Sleeps on a raw lock that ``wake`` opens; a signal interrupts the sleep too."""

    __slots__ = ()

    _event: threads.AutoResetEvent

    def __init__(self, lines: Lines, channel: str, token: str | None) -> None:
        super().__init__(lines, channel, token)
        self._event = threads.AutoResetEvent()

    async def wait(self, timeout: float | None) -> bool:
        return self._event.wait_for_long(timeout)


class TaskWaiter(_SleepingWaiter):
    """Sleeps on a bell of its loop."""

    __slots__ = ()

    _event: LoopEvent

    def __init__(self, lines: Lines, channel: str, token: str | None) -> None:
        super().__init__(lines, channel, token)
        self._event = LoopEvent()

    async def wait(self, timeout: float | None) -> bool:
        return await self._event.wait(timeout)


class CallingWaiter(ListenerWaiter):
    """Never sleeps: it calls a function with each message, or with an empty string when it is woken without one.

    It may be dropped instead of closed: it has no wake-up that would belong to another one.
    """

    __slots__ = ("_function",)

    def __init__(self, lines: Lines, channel: str, function: Callable[[str], object]) -> None:
        super().__init__(lines, channel, EVERYBODY)
        self._function = function

    def wake(self) -> None:
        self._function("")

    def hear(self, payload: str) -> None:
        self._function(payload)

    def _has_unused_wake_up(self) -> bool:
        return False
