"""What semaphores and latches share: a number in Redis, and requests that are obeyed once.

A number has no owner, so taking one twice cannot be told from two that each take one. Every request that changes it
therefore has a name, which the server remembers for a while; a command that comes again does nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_rlock import keys
from django_rlock.drivers.base import EVERYBODY, PATIENCE, Driver, ScriptCall, is_final, monotonic
from django_rlock.drivers.identity import client_id
from django_rlock.drivers.sync import defer
from django_rlock.exceptions import LockUnavailableError, RLockError
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.base import checked_text
from django_rlock.locks.durations import UNSET, Duration, milliseconds, wait_seconds
from django_rlock.locks.flows import RELEASE_PATIENCE
from django_rlock.locks.hooks import LockHooks

logger = logging.getLogger("django_rlock.locks")

MOST = 2**31 - 1
"""The largest number, which is Redisson's."""
SENT_AGAIN = 60.0
"""How long the background thread goes on sending a command, in seconds."""
REMEMBERED = 120.0
"""How long a request is remembered, in seconds: longer than it is sent, and then undone (PATIENCE, SENT_AGAIN)."""
REMEMBERED_MS = milliseconds(REMEMBERED)

_numbers = itertools.count(1)


def new_request() -> str:
    """A name for a request; never the same twice."""
    return f"{client_id()}:{next(_numbers)}"


def checked_number(argument: str, value: int, least: int = 0) -> int:
    """The number itself, if it is one from ``least`` up to MOST."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be a whole number, not {value!r}.")
    if not least <= value <= MOST:
        raise ValueError(f"{argument} must be a whole number from {least} to {MOST}, not {value!r}.")
    return value


class Counter(LockHooks):
    """A name, an alias and a wait; state is in Redis."""

    __slots__ = ("wait_time",)

    def __init__(self, name: str, *, wait_time: Duration | None, using: str) -> None:
        self.name = checked_text("name", name)
        self.wait_time = wait_seconds(wait_time)
        self.using = using
        self.on_lost = None
        self.max_hold_time = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, using={self.using!r})"

    def _wait_seconds(self, blocking: bool, wait_time: Any) -> float | None:
        if blocking:
            return self.wait_time if wait_time is UNSET else wait_seconds(wait_time)
        if wait_time is not UNSET and wait_time != 0:
            raise ValueError("With blocking=False it tries once; it takes no wait_time.")
        return 0.0

    async def _ask(self, driver: Driver, call: ScriptCall) -> list[Any]:
        """The answer to a question."""
        return (await driver.run(call, driver.now()))[1:]

    async def _change(self, driver: Driver, call: ScriptCall) -> Any:
        """The answer to a change that its caller may repeat."""
        return (await driver.run(call, driver.now() + RELEASE_PATIENCE))[1]

    async def _surely(self, driver: Driver, call: ScriptCall) -> Any:
        """The answer to a change that others wait for: the background thread goes on where Redis cannot be asked."""
        try:
            return await self._change(driver, call)
        except LockUnavailableError as error:
            if is_refusal(error):
                raise
            defer(self.using, call, driver.now() + SENT_AGAIN)
            raise LockUnavailableError(
                self.name,
                reason=f"it could not be told: {error.reason}",
                advice=f"The background thread goes on trying for {SENT_AGAIN:.0f} s; do not do it again.",
            ) from error
        except BaseException:
            defer(self.using, call, driver.now() + SENT_AGAIN)
            raise


def is_refusal(error: LockUnavailableError) -> bool:
    """Whether the server understood and refused, so that nothing was changed and trying again cannot help."""
    return isinstance(error.__cause__, Exception) and is_final(error.__cause__)


class Request(LockHooks):
    """One acquire of a semaphore, as ``Attempt`` makes it; ``id`` is its name."""

    __slots__ = ("id", "permits")

    patience = PATIENCE

    def __init__(self, semaphore: Counter, permits: int) -> None:
        self.name = semaphore.name
        self.using = semaphore.using
        self.id = new_request()
        self.permits = permits

    def wake_up(self, owner: str) -> tuple[str, str | None]:
        # Everybody: what is too little for one may be enough for another.
        return keys.semaphore_channel(self.key), EVERYBODY


async def granted(request: Request, driver: Driver, lease: float, wait: float | None) -> Attempt | None:
    """Ask until it is granted or the wait ends, which None answers."""
    until = None if wait is None else driver.now() + wait
    attempt = Attempt(request, driver, driver.owner(), request.id, lease, until)
    return attempt if await (attempt.once() if wait == 0 else attempt.wait()) else None


@contextmanager
def undone_on_error(request: Request) -> Iterator[None]:
    """Have permits given back whose caller never learns of them, because something interrupted it."""
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, LockUnavailableError) and is_refusal(error)):
            # In the background, and when matters not: the request takes nothing if it arrives later.
            defer(request.using, request.leave_call(request.id), monotonic() + SENT_AGAIN)
        raise


@contextmanager
def hidden_behind(error: BaseException | None, name: str) -> Iterator[None]:
    """Log a failure at the end of a block that has an error of its own, which must not be hidden by it."""
    try:
        yield
    except RLockError as failure:
        if error is None:
            raise
        logger.warning("While leaving the block of semaphore %r after an error: %s", name, failure)
