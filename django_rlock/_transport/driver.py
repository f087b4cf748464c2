"""What a lock's flows need from the outside world, as protocols; and sending a call until its outcome is known."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from redis.backoff import EqualJitterBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core.clock import monotonic
from django_rlock._core.text import reason_of
from django_rlock._transport.calls import ScriptCall, next_nonce, pack
from django_rlock._transport.connection import Expected
from django_rlock._transport.errors import is_final, meaning_of
from django_rlock._transport.identity import Owner
from django_rlock._transport.pool import Server
from django_rlock.exceptions import LockUnavailableError
from django_rlock.settings import get_settings

# --- protocols --------------------------------------------------------------------------------------------------------

# The interfaces of a lock's flows to the outside world, as protocols.
#
# A *face* knows the caller: a thread or an asyncio task. A *topology* knows the servers of the locks: one server, a
# cluster, or a quorum of nodes. ``registry`` joins the two into the driver that the flows of an alias use.

T = TypeVar("T")

EVERYBODY = "*"
"""The token of waiters that every message of their channel wakes."""

UNLIMITED = math.inf
"""A limit that leaves only the server's own, ``Server.reply_limit``."""


class Waiter(Protocol):
    """A caller that sleeps until it is woken. One wake-up is kept if it comes before the sleep.

    ``ticket`` comes from the last message that carried this waiter's token, or is empty: see ``Listener.deliver``.
    """

    ticket: str

    async def wait(self, timeout: float | None) -> bool:
        """Sleep until woken (returns True) or for ``timeout`` seconds (returns False); None means no time limit."""

    def wake(self) -> None:
        """Wake it, from any thread."""

    def close(self, asked: bool = True) -> None:
        """Leave the queue; an unused wake-up goes to the next waiter of the channel.

        ``asked`` is False for a waiter that may have been woken, but did not try to acquire afterwards.
        """


class Undo(Protocol):
    """Makes the call that undoes another one."""

    def __call__(self) -> ScriptCall: ...


class Driver(Protocol):
    """What a flow uses. The coroutines of a blocking driver block instead of suspending."""

    def now(self) -> float:
        """Monotonic time, in seconds."""

    def owner(self) -> Owner:
        """The owner on whose behalf the current thread or task calls."""

    def at(self, using: str) -> Driver:
        """The driver of the same face for another alias."""

    def place(self, key: str) -> object:
        """Where a key lives. One script may use several keys only if their places are equal."""

    def run(self, call: ScriptCall, until: float | None = None) -> Coroutine[Any, Any, list[Any]]:
        """Run a script and return its reply, whose first element is the nonce.

        Connection failures are retried until the monotonic time ``until`` (None: for PATIENCE seconds).
        Raises LockUnavailableError when the server is unreachable or refuses.
        """

    def take(self, call: ScriptCall, until: float | None, undo: Undo) -> Coroutine[Any, Any, list[Any]]:
        """Like ``run``, for a script that takes a lock. If fewer replicas confirm it than REPLICA_ACKS requires,
        ``undo`` is run and LockUnavailableError says how many confirmed."""

    def hears(self, channel: str) -> bool:
        """Whether this process is subscribed to a channel, or soon will be."""

    def overhear(self, channel: str, token: str | None) -> Waiter | None:
        """A waiter on a channel to which this process is already subscribed, else None."""

    def listen(self, channel: str, token: str | None, until: float | None = None) -> Coroutine[Any, Any, Waiter]:
        """Return a waiter on a channel, once the server has confirmed the subscription, or the monotonic time ``until``
        has come.

        It is woken by messages that carry ``token`` after a ticket, or by every message if ``token`` is EVERYBODY. With
        None it waits in turn with the other such waiters of this process; each message wakes one of them.
        """

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep when no message could wake the caller."""

    def call(self, function: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a blocking function without blocking an event loop."""


class Face(Protocol):
    """Who is calling, how that caller sleeps, and how it exchanges commands with a server."""

    def owner(self) -> Owner:
        """The owner on whose behalf the current thread or task calls."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a blocking function without blocking an event loop."""

    async def gather(self, coros: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines concurrently, because each may wait for another server, and return their results."""

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        """Return the reply to one packed call, within ``limit`` seconds and within the server's ``reply_limit``.

        The call counts as sent once there is a connection. Raises what redis-py raises. After any exception,
        BaseException included, a connection in an unknown state is closed.
        """

    async def converse(self, server: Server, packed: bytes, expected: Sequence[Expected], limit: float) -> list[Any]:
        """Return a reply for each that is expected, over a connection that no other command uses; server errors are
        returned. Limits and exceptions are as for ``exchange``.
        """


class Topology(Protocol):
    """Where the locks of an alias live, as seen by one face. ``Driver`` describes what the methods promise."""

    def place(self, key: str) -> object: ...

    def run(self, call: ScriptCall, until: float | None = None) -> Coroutine[Any, Any, list[Any]]: ...

    def take(self, call: ScriptCall, until: float | None, undo: Undo) -> Coroutine[Any, Any, list[Any]]: ...

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run many calls in few round trips; a reply that did not come is replaced by an exception.

        Calls may be sent twice, so they must be safe to repeat: renewals, queries, and clean-up.
        """


def run_flow(flow: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]) -> T:
    """Call a coroutine function whose coroutine never suspends, because its driver blocks, and run that to its end."""
    try:
        flow(*args).send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("A lock's flow suspended under a blocking driver.")


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """Like ``run_flow``, for an existing coroutine: used in the package's own threads, which run no signal handlers."""
    return run_flow(lambda: coro, ())


# --- retrying ---------------------------------------------------------------------------------------------------------

# Sending a script call until its outcome is known, within its caller's time, and classifying failures.

REPLY_GRACE = 1.0
"""How long a call may exceed its caller's deadline, in seconds, so that a single try has time for a reply."""
SHORTEST = 0.05
"""The minimum time for a reply, in seconds, however long it took to connect, and to try before."""
PATIENCE = 30.0
"""How long a call without a deadline retries an unreachable server, in seconds."""
_BACKOFF = 0.05, 1.0
_DOUBLED = 32
"""How often a pause is doubled at most: by then it has reached its maximum, and floats would overflow."""
_AT_ONCE = 2
"""How often a broken connection is retried without a pause, even if the caller has no time left."""

Exchange = Callable[[ScriptCall, bytes, bytes, float], Awaitable[list[Any]]]
"""Sends a packed call and returns the reply that echoes the nonce, within a number of seconds; raises redis-py's
exceptions.

Counts the call as sent once there is a connection.
"""


class Retrying:
    """Runs an alias's calls over an exchange, and retries while that may help; passes a server's refusal to
    ``refused``.

    A retry is safe because counts are absolute: rules 1 and 4 of docs/architecture.md.
    """

    def __init__(
        self,
        using: str,
        exchange: Exchange,
        sleep: Callable[[float], Awaitable[None]],
        refused: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        self._using = using
        self._exchange = exchange
        self._sleep = sleep
        self._refused = refused

    async def run(self, call: ScriptCall, until: float | None = None) -> list[Any]:
        """See ``base.Driver``."""
        nonce = next_nonce()
        call.sent_at = now = monotonic()
        limit = math.inf if until is None else max(until - now, 0.0) + REPLY_GRACE
        try:
            return await self._exchange(call, pack(call, nonce), nonce, limit)
        except (RedisError, OSError) as error:
            failure: Exception = error
        return await self._run_again(call, until, failure)

    async def _run_again(self, call: ScriptCall, until: float | None, failure: Exception) -> list[Any]:
        # All tries share one REPLY_GRACE.
        give_up_at = call.sent_at + PATIENCE if until is None else max(until, call.sent_at)
        pauses = 0
        with_source = False
        refused = False
        down_since = None
        retries = 0
        while True:
            if isinstance(failure, NoScriptError):
                call.sends -= 1  # certainly not executed
                with_source = True
            elif is_final(failure):
                if refused:
                    self._refused(failure)
                    raise unavailable(call.name, failure, call.noun) from failure
                # Even an error reply may belong to another command; only a second one, on a new connection, counts.
                refused = True
            elif retries >= _AT_ONCE or isinstance(failure, RedisTimeoutError):
                pauses += 1
                down_since = (down_since or call.sent_at) if is_down(failure) else None
                until = give_up_at if down_since is None else min(give_up_at, refused_until(self._using, down_since))
                await self._pause(call, pauses, until, failure)
            # The traceback refers to all frames of the call, and one of the frames to the exception. Without this line,
            # the objects of an interrupted caller would live until the garbage collector runs.
            failure.__traceback__ = None
            retries += 1
            nonce = next_nonce()
            call.sent_at = now = monotonic()
            try:
                return await self._exchange(call, pack(call, nonce, with_source), nonce, _time_left(give_up_at, now))
            except (RedisError, OSError) as error:
                failure = error

    async def _pause(self, call: ScriptCall, pauses: int, give_up_at: float, failure: Exception) -> None:
        """Sleep before the next try, or raise LockUnavailableError when the time is up."""
        now = monotonic()
        if now >= give_up_at:
            raise unavailable(call.name, failure, call.noun) from failure
        await self._sleep(min(backoff(pauses, *_BACKOFF), give_up_at - now))


def backoff(tries: int, shortest: float, longest: float) -> float:
    """How long to sleep after a number of tries, in seconds. It doubles each time, minus a random part of up to half of
    it, so that callers that failed together do not retry together.
    """
    return EqualJitterBackoff(longest, shortest).compute(min(tries - 1, _DOUBLED))


def _time_left(give_up_at: float, now: float) -> float:
    return max(give_up_at + REPLY_GRACE - now, SHORTEST)


def refused_until(using: str, since: float) -> float:
    """Until when a call is retried whose server has refused connections since the monotonic time ``since``."""
    patience = get_settings(using).refused_wait_time
    return math.inf if patience is None else since + patience


def is_down(error: BaseException | None) -> bool:
    """Whether nothing listens at the server's address."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):  # the latter for a unix socket
            return True
        error = error.__cause__ or error.__context__
    return False


def unavailable(name: str, error: Exception, noun: str = "lock") -> LockUnavailableError:
    """The error for a server that is unreachable or refuses, with advice if the reason is known."""
    text, advice = reason_of(error), None
    meaning = meaning_of(error)
    if meaning is not None:
        if meaning.text is not None:
            text = meaning.text.format(noun=noun)
        if meaning.advice is not None:
            advice = f"Nothing was changed; {meaning.advice[0].lower()}{meaning.advice[1:]}"
    return LockUnavailableError(name, reason=text, advice=advice, noun=noun)
