"""Objects that count: what semaphores and latches share, and the latch."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import is_final
from django_rlock._core.threads import snapshot
from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import Script
from django_rlock._transport.calls import EVERYBODY, PATIENCE, REMEMBERED, Argument, Driver, ScriptCall, run_flow
from django_rlock._transport.identity import new_request
from django_rlock._transport.registry import awaited_driver, blocking_driver
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockUnavailableError, RLockError
from django_rlock.locks import options
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.kinds import REPOLL, Handle, Kind, Named, call_for, retire_call
from django_rlock.settings import DEFAULT_ALIAS, unknown_alias

logger = logging.getLogger("django_rlock.locks")

RESENT_FOR = 60.0
"""How long the background thread retries a command, in seconds."""
REMEMBERED_MS = options.milliseconds(REMEMBERED)

MOST_ANSWERED, MOST_COUNTERS = 10, 1000
"""How many confirmed requests one command may carry, and for how many semaphores they are kept."""

_answered: dict[tuple[str, str], deque[str]] = {}
"""Alias and name of a semaphore → requests that will never be repeated. A request that is lost here expires on the
server."""


def with_answered(counter: Named, request: str) -> str:
    """A request, followed by those of this process that the server may forget, in the form that scripts take."""
    return " ".join((request, *snapshot(_answered.pop((counter.using, counter.name), ()))))


def note_answered(counter: Named, call: ScriptCall) -> None:
    """Let the server forget a request early: it was sent once and has a reply, so no copy can come."""
    if call.sends == 1:
        # A forgotten confirmation costs the server memory for two minutes, and nothing else.
        if len(_answered) >= MOST_COUNTERS:
            _answered.clear()
        _answered.setdefault((counter.using, counter.name), deque(maxlen=MOST_ANSWERED)).append(_request_of(call))


def retire_copies(counter: Named, call: ScriptCall) -> None:
    """Disable copies of a request that has a reply, if it was sent more than once."""
    if call.sends > 1:
        retire(counter, call)


def retire(counter: Named, call: ScriptCall) -> None:
    """Make a request do nothing from now on. By itself the server remembers only requests that it has executed."""
    clean_up(counter.using, retire_call(counter, _request_of(call)), monotonic() + RESENT_FOR)


def _request_of(call: ScriptCall) -> str:
    return str(call.first).partition(" ")[0]


class Counter(Handle):
    """A name, an alias and a wait time; state is in Redis.

    Raises ValueError for a name that is empty or longer than 1,024 bytes in UTF-8.
    """

    __slots__ = ("wait_time",)

    def __init__(self, name: str, *, wait_time: options.Duration | None, using: str) -> None:
        self.name = options.checked_text(f"{self.noun}'s name", name)
        self.wait_time = wait_time if wait_time is options.UNSET else options.wait_seconds(wait_time)
        if not isinstance(using, str):
            raise unknown_alias(using)
        self.using = using

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, using={self.using!r})"

    def _check_alias(self) -> None:
        """Raise ImproperlyConfigured for an alias with NODES."""
        # A quorum can agree on the holder of a lock, but not add up numbers.
        if self._settings.nodes is not None:
            raise ImproperlyConfigured(
                f"{type(self).__name__} {self.name!r} needs one server, but RLOCK[{self.using!r}] has NODES. RedLock "
                f"works there (rlock() without kind=); for this, name an alias with CACHE in using=."
            )

    def _call(self, script: Script, all_keys: tuple[str, ...], first: Argument, *args: Argument) -> ScriptCall:
        self._check_alias()
        return call_for(self, script, first, *args, all_keys=all_keys)

    def _wait_seconds(self, blocking: bool, wait_time: Any, unknown: dict[str, Any]) -> float | None:
        if unknown:
            raise options.unknown_argument("acquire", unknown)
        if blocking is True:
            wait = self.wait_time if wait_time is options.UNSET else options.wait_seconds(wait_time)
            return self._settings.wait_time if wait is options.UNSET else wait
        if blocking is not False:
            raise options.wrong_blocking(blocking)
        if wait_time is not options.UNSET and wait_time != 0:
            raise ValueError("With blocking=False it tries once; it takes no wait_time.")
        return 0.0

    async def _ask(self, driver: Driver, call: ScriptCall) -> list[Any]:
        """Send a query and return its reply."""
        return (await driver.run(call, driver.now()))[1:]

    async def _number(self, driver: Driver) -> int:
        """Ask for the number at the key."""
        number: int = (await self._ask(driver, self._call(scripts.COUNTER_READ, (self.key,), "")))[0]
        return number

    async def _change(self, driver: Driver, call: ScriptCall) -> Any:
        """Send a change that is safe to repeat, and return its reply."""
        return (await driver.run(call, driver.now() + options.RELEASE_PATIENCE))[1]

    async def _change_once(self, driver: Driver, call: ScriptCall) -> Any:
        """Send a change that carries a request, and return its reply. Late or repeated copies of it change nothing."""
        try:
            answer = await self._change(driver, call)
        except BaseException as error:
            # Unless the server refused it, the command may still be executed, after its caller was told of a failure.
            if not is_refusal(error):
                retire(self, call)
            raise
        retire_copies(self, call)
        return answer

    async def _surely(self, driver: Driver, call: ScriptCall, before: Callable[[], object] = lambda: None) -> Any:
        """Send a change that others wait for, and return its reply. The background thread retries it if Redis is
        unreachable.

        Once ``before`` has been called, an interruption does not prevent the change.
        """
        try:
            before()
            return await self._change(driver, call)
        except LockUnavailableError as error:
            if is_refusal(error):
                raise
            clean_up(self.using, call, driver.now() + RESENT_FOR)
            raise LockUnavailableError(
                self.name,
                reason=f"it could not be changed: {error.reason}",
                advice=f"The background thread retries for {RESENT_FOR:.0f} s; do not repeat the call.",
                noun=self.noun,
            ) from error
        except BaseException:
            before()  # the first call may have been interrupted
            clean_up(self.using, call, driver.now() + RESENT_FOR)
            raise


def is_refusal(error: BaseException) -> bool:
    """Whether the server understood the call and refused it: nothing was changed, and retrying cannot help."""
    cause = error.__cause__
    return isinstance(error, LockUnavailableError) and isinstance(cause, Exception) and is_final(cause)


class Requests(Kind[Any]):
    """Any request may be the next one to be served: permits that are too few for one request may suffice for
    another."""

    patience = PATIENCE

    def channel(self, lock: Any) -> str:
        return keys.semaphore_channel(lock.key)

    def token(self, lock: Any, asker: str) -> str:
        return EVERYBODY


class Request(Named):
    """One acquire of a semaphore, in the form that ``Attempt`` needs; ``id`` is the request's name."""

    __slots__ = ("id", "permits")

    noun = "semaphore"

    def __init__(self, semaphore: Counter, permits: int) -> None:
        semaphore._check_alias()
        self.name = semaphore.name
        self.using = semaphore.using
        self.id = new_request()
        self.permits = permits

    async def retire_copies(self, driver: Driver, taken: bool) -> None:
        """Make late copies of its commands take nothing. If it took permits, the server remembers that already."""
        if not taken:
            clean_up(self.using, self._kind.leave(self, self.id), driver.now() + RESENT_FOR)


async def granted(request: Request, driver: Driver, lease: float, wait: float | None) -> Attempt | None:
    """Try until the request is granted; returns None if the wait ends first."""
    until = None if wait is None else driver.now() + wait
    attempt = Attempt(request, driver, driver.owner(), request.id, lease, until)
    taken = await (attempt.once() if wait == 0 else attempt.wait())
    if attempt.in_doubt:
        await request.retire_copies(driver, taken)
    return attempt if taken else None


def undo(request: Request, error: BaseException) -> None:
    """Release, in the background, permits that the caller will never receive because of an error."""
    if not is_refusal(error):
        release_later(request)


def release_later(request: Request) -> None:
    """Release, in the background, the permits that a request took or may still take."""
    # The order does not matter: if the request arrives after this, it takes nothing.
    clean_up(request.using, request._kind.leave(request, request.id), monotonic() + RESENT_FOR)


@contextmanager
def hidden_behind(error: BaseException | None, name: str) -> Iterator[None]:
    """Log a failure at the end of a block if the block raised, because it must not replace the block's error."""
    try:
        yield
    except RLockError as failure:
        if error is None:
            raise
        log(logger, logging.WARNING, "While leaving the block of semaphore %r after an error: %s", name, failure)


# --- latches ----------------------------------------------------------------------------------------------------------

UNHEARD_REPOLL = 1.0
"""How often waiters poll in a cluster when Redisson's channel is in another slot than the count, in seconds."""


class Latch(Kind["CountDownLatch"]):
    """Passing the latch is an acquire that takes nothing."""

    writes = False

    def acquire(
        self, lock: CountDownLatch, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        return call_for(lock, scripts.LATCH_PASS, "")

    def channel(self, lock: CountDownLatch) -> str:
        return keys.latch_channel(lock.key)

    def token(self, lock: CountDownLatch, asker: str) -> str:
        return EVERYBODY

    def pauses(self, lock: CountDownLatch, left_ms: int, tries: int) -> tuple[float, float]:
        # Redisson puts the whole key in braces, so with a hash tag inside, its channel is on another shard.
        return UNHEARD_REPOLL if "{" in lock.key else REPOLL, math.inf


class CountDownLatch(Counter):
    """Keeps waiters waiting until it has been counted down to 0; Redisson's ``getCountDownLatch``.

    ``name`` says what is waited for, ``using`` is the RLOCK alias, ``wait_time`` how long to wait, in seconds (0 checks
    once, None waits forever). A latch that was never set is open, and so is a deleted one::

        done = CountDownLatch("import:42")
        done.try_set_count(3)        # then, in each of three tasks: done.count_down()
        done.wait(wait_time=60)      # in asyncio: await done.await_(wait_time=60)

    A count-down is applied once, even if its reply is lost and the command is sent again. A latch never expires: if a
    task dies before it counts down, the latch stays closed until it is deleted. Calls raise LockUnavailableError when
    Redis is unreachable, or when the name's key holds another type of value.
    """

    __slots__ = ()

    kind = noun = "latch"
    _kind = Latch()

    def __init__(self, name: str, *, wait_time: options.Duration | None = None, using: str = DEFAULT_ALIAS) -> None:
        super().__init__(name, wait_time=wait_time, using=using)

    def try_set_count(self, count: int) -> bool:
        """Close it until it is counted down ``count`` times. Returns False if it was closed. 0 leaves it open."""
        return run_flow(self._try_set_count, (blocking_driver(self), count))

    async def atry_set_count(self, count: int) -> bool:
        """As ``try_set_count``, in asyncio."""
        return await self._try_set_count(awaited_driver(self), count)

    async def _try_set_count(self, driver: Driver, count: int) -> bool:
        channel = keys.latch_channel(self.key)
        number = options.checked_number("count", count)
        call = self._request_call(scripts.LATCH_SET, channel, number, REMEMBERED_MS)
        return bool(await self._change_once(driver, call))

    def count_down(self) -> None:
        """Count down by one; at 0 the latch opens and releases all waiters. An open latch does not change.

        Raises LockUnavailableError when Redis is unreachable: the background thread then retries for a minute, so do
        not count down again.
        """
        run_flow(self._count_down, (blocking_driver(self),))

    async def acount_down(self) -> None:
        """As ``count_down``, in asyncio."""
        await self._count_down(awaited_driver(self))

    async def _count_down(self, driver: Driver) -> None:
        call = self._request_call(scripts.LATCH_COUNT_DOWN, keys.latch_channel(self.key), REMEMBERED_MS)
        await self._surely(driver, call)
        retire_copies(self, call)

    def wait(self, wait_time: options.Duration | None = options.UNSET) -> bool:
        """Wait until the latch is open; returns False if it is still closed after ``wait_time`` seconds.

        0 checks once, None waits forever; the default is the latch's own. The coroutine is ``await_()``, because with
        the prefix ``a`` alone it would be a keyword.
        """
        return run_flow(self._wait, (blocking_driver(self), wait_time))

    async def await_(self, wait_time: options.Duration | None = options.UNSET) -> bool:
        """As ``wait``, in asyncio."""
        return await self._wait(awaited_driver(self), wait_time)

    async def _wait(self, driver: Driver, wait_time: options.Duration | None) -> bool:
        self._check_alias()
        wait = self._wait_seconds(True, wait_time, {})
        until = None if wait is None else driver.now() + wait
        attempt = Attempt(self, driver, driver.owner(), new_request(), 0.0, until)
        return await (attempt.once() if wait == 0 else attempt.wait())

    def count(self) -> int:
        """The remaining count; 0 when the latch is open."""
        return run_flow(self._number, (blocking_driver(self),))

    async def acount(self) -> int:
        """As ``count``, in asyncio."""
        return await self._number(awaited_driver(self))

    def delete(self) -> bool:
        """Delete the latch and release its waiters; returns whether it was closed."""
        return run_flow(self._delete, (blocking_driver(self),))

    async def adelete(self) -> bool:
        """As ``delete``, in asyncio."""
        return await self._delete(awaited_driver(self))

    async def _delete(self, driver: Driver) -> bool:
        call = self._request_call(scripts.LATCH_DELETE, keys.latch_channel(self.key), REMEMBERED_MS)
        return bool(await self._change_once(driver, call))

    def _request_call(self, script: scripts.Script, *args: str | int) -> ScriptCall:
        return self._call(script, (self.key, keys.requests_key(self.key)), new_request(), *args)
