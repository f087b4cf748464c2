"""The driver protocol, and the part that all drivers share: sending one script call until its outcome is known.

Scripts are idempotent (they are told absolute counts), so a call whose reply was lost is simply sent again. A reply is
believed only when it echoes the call's nonce: a connection that comes from a pool may still hold another command's
reply, after a signal interrupted whoever used it last.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockUnavailableError
from django_rlock.scripts import Script

T = TypeVar("T")

REPLY_GRACE = 1.0
"""How long a call may take beyond its caller's deadline, in seconds, so that trying once leaves time for an answer."""
PATIENCE = 30.0
"""How long a call without a deadline outlasts an unreachable server, in seconds."""
_BACKOFF = 0.05, 1.0
_PASSING = AskError, BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError
_PASSING_CODES = "BUSY", "NOREPLICAS"

EVERYBODY = "*"
"""The token of waiters that every message of their channel wakes."""

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""Goes before a command to a node of a cluster that does not serve its slot yet."""

_nonces = itertools.count(int.from_bytes(os.urandom(4)))


Argument = str | int | bytes


class ScriptCall:
    """One script with its keys and arguments (without the nonce), for the lock called ``name``.

    ``confirm`` is whether REPLICA_ACKS holds for it. ``sends`` counts how often the server may have obeyed it;
    ``sent_at`` is when it was last sent (monotonic seconds).
    """

    __slots__ = ("args", "confirm", "keys", "name", "script", "sends", "sent_at")

    def __init__(self, name: str, script: Script, keys: tuple[str, ...], args: tuple[Argument, ...]) -> None:
        self.name = name
        self.script = script
        self.keys = keys
        self.args = args
        self.confirm = False
        self.sends = 0
        self.sent_at = 0.0


class Waiter(Protocol):
    """Somebody who sleeps until a wake-up comes; one wake-up is kept when it comes early."""

    async def wait(self, timeout: float | None) -> bool:
        """Sleep until woken (True) or for ``timeout`` seconds (False); None sleeps until woken."""

    def wake(self) -> None:
        """Wake it, from any thread."""

    def close(self) -> None:
        """Leave; a wake-up that it did not use goes to the next waiter of its channel."""


class Driver(Protocol):
    """What a lock's flow needs from the outside world. Every coroutine of a blocking driver blocks instead."""

    def now(self) -> float:
        """Monotonic time, in seconds."""

    def check_caller(self) -> None:
        """SynchronousOnlyOperation for a caller who must not block."""

    def owner(self) -> Owner:
        """Who is asking."""

    def at(self, using: str) -> Driver:
        """The driver of the same face for another alias."""

    def place(self, key: str) -> object:
        """Where a key lives; one script may use keys whose places are equal."""

    async def run(self, call: ScriptCall, until: float | None = None) -> list[Any]:
        """Run a script and return its reply, nonce first.

        Connection failures are retried until the monotonic time ``until`` (None: for PATIENCE seconds).
        LockUnavailableError when the server cannot be asked or refuses.
        """

    def take(
        self, call: ScriptCall, until: float | None, undo: Callable[[], ScriptCall]
    ) -> Coroutine[Any, Any, list[Any]]:
        """The same for a script that takes a lock: where REPLICA_ACKS asks for more replicas than have it, ``undo`` is
        run, and LockUnavailableError tells how many answered."""

    def overhear(self, channel: str, token: str | None) -> Waiter | None:
        """A waiter on a channel that this process listens to already; else None."""

    async def listen(self, channel: str, token: str | None) -> Waiter:
        """A waiter on a channel, once the server has confirmed the subscription.

        It is woken by messages that equal ``token``, or by all where that is EVERYBODY; with None it takes its turn
        among the waiters of this process, of whom each message wakes one.
        """

    async def sleep(self, seconds: float) -> None:
        """Sleep where nobody tells when to wake up."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a blocking function without blocking an event loop."""


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """Run to its end a coroutine that never suspends, because its driver blocks."""
    try:
        coro.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coro.close()
    raise RuntimeError("A lock's flow suspended under a blocking driver.")


class ScriptDriver:
    """Runs script calls over an exchange of bytes, which the sync and the asyncio driver each bring."""

    now = staticmethod(time.monotonic)
    reply_limit: float
    """How long a connection waits for a reply at most, in seconds."""

    def __init__(self, using: str) -> None:
        self.using = using

    def check_caller(self) -> None:
        """Nobody is refused, unless the driver blocks."""

    def place(self, key: str) -> object:
        """All keys live on one server."""
        return None

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        """Send a packed call and read its reply, within ``timeout`` seconds or the connection's own limit.

        Counts the call as sent once there is a connection. Any exception after that closes the connection.
        StaleReplyError when the reply does not echo the nonce.
        """
        raise NotImplementedError

    async def converse(self, packed: bytes, nonces: Sequence[bytes | None], timeout: float) -> list[Any]:
        """Send commands over one connection and read a reply for each nonce, the server's errors among them.

        A reply is checked against its nonce; None takes any. Limits and exceptions as for ``exchange``.
        """
        raise NotImplementedError

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        """The same as ``exchange`` to the node of a cluster that the keys' slot is moving to."""
        call.sends += 1
        _, reply = await self.converse(ASKING + packed, [None, nonce], timeout)
        if isinstance(reply, ResponseError):
            raise reply
        return reply  # type: ignore[no-any-return]

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def run(self, call: ScriptCall, until: float | None = None) -> list[Any]:
        nonce = next_nonce()
        call.sent_at = now = self.now()
        try:
            return await self.exchange(call, pack(call, nonce), nonce, _time_left(until, now))
        except (RedisError, OSError) as error:
            failure: Exception = error
        return await self._run_again(call, until, failure)

    def take(
        self, call: ScriptCall, until: float | None, undo: Callable[[], ScriptCall]
    ) -> Coroutine[Any, Any, list[Any]]:
        return self.run(call, until)

    async def _run_again(self, call: ScriptCall, until: float | None, failure: Exception) -> list[Any]:
        give_up_at = call.sent_at + PATIENCE if until is None else until
        pause = 0.0
        verb = "EVALSHA"
        refused = retried = False
        while True:
            if isinstance(failure, NoScriptError):
                call.sends -= 1  # surely not obeyed
                verb = "EVAL"
            elif is_final(failure):
                if refused:
                    raise unavailable(call.name, failure) from failure
                # Even an error reply may be another command's; only a second one, on a new connection, counts.
                refused = True
            elif retried or isinstance(failure, RedisTimeoutError):
                pause = await self._pause(call, pause, give_up_at, failure)
            retried = True
            nonce = next_nonce()
            call.sent_at = now = self.now()
            try:
                return await self.exchange(call, pack(call, nonce, verb), nonce, _time_left(give_up_at, now))
            except (RedisError, OSError) as error:
                failure = error

    async def _pause(self, call: ScriptCall, pause: float, give_up_at: float, failure: Exception) -> float:
        """Sleep before the next try, and answer how long."""
        now = self.now()
        if now >= give_up_at:
            raise unavailable(call.name, failure) from failure
        pause = min(max(pause * 2, _BACKOFF[0]), _BACKOFF[1])
        await self.sleep(min(pause * random.uniform(0.5, 1.0), give_up_at - now))  # noqa: S311 - jitter
        return pause


monotonic = time.monotonic
"""The clock of all deadlines, in seconds; wall clocks may be set back."""


def next_nonce() -> bytes:
    """What a reply must echo; never the same twice in a process."""
    return b"%d" % next(_nonces)


def _time_left(until: float | None, now: float) -> float:
    return math.inf if until is None else max(until - now, 0.0) + REPLY_GRACE


class StaleReplyError(RedisConnectionError):
    """A reply that belongs to another command."""


def is_final(error: Exception) -> bool:
    """Whether trying again cannot help: the server understood and refused."""
    if _is_refused_login(error):
        return True
    return isinstance(error, ResponseError) and not (
        isinstance(error, _PASSING) or str(error).startswith(_PASSING_CODES)
    )


def _is_refused_login(error: Exception) -> bool:
    # redis-py's asyncio connections wrap it in a ConnectionError.
    return isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError)


def unavailable(name: str, error: Exception) -> LockUnavailableError:
    """The error for a server that cannot be asked, or that refuses, with advice where the reason is known."""
    text = str(error)
    advice = None
    if "WRONGTYPE" in text:
        text = "the key under its name holds another type of value, not a lock"
        advice = "Nothing was changed; use another lock name or KEY_PREFIX, or delete that key yourself."
    elif "OOM" in text or type(error).__name__ == "OutOfMemoryError":
        advice = "Nothing was locked; raise maxmemory or free some, and keep locks away from a full cache."
    elif _is_refused_login(error) or isinstance(error, NoPermissionError) or "NOPERM" in text:
        advice = "Nothing was locked; check the credentials and the ACL of the Redis user."
    return LockUnavailableError(name, reason=text.rstrip("."), advice=advice)


def check_nonce(reply: Any, nonce: bytes) -> list[Any]:
    """The reply itself, when it is this call's."""
    if isinstance(reply, list) and reply and reply[0] == nonce:
        return reply
    raise StaleReplyError("The connection held a reply of another command; it was closed.")


def pack(call: ScriptCall, nonce: bytes, verb: str = "EVALSHA") -> bytes:
    """The call as the server reads it (RESP). Only the nonce and the first argument, an owner, are packed anew."""
    first, *rest = call.args
    owner = _encoded(first)
    head = _head(verb, call.script, call.keys, len(call.args))
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (head, len(nonce), nonce, len(owner), owner, _tail(tuple(rest)))


@lru_cache(maxsize=4096)
def _head(verb: str, script: Script, keys: tuple[str, ...], args: int) -> bytes:
    words: tuple[Argument, ...] = (verb, script.sha if verb == "EVALSHA" else script.source, len(keys), *keys)
    return b"*%d\r\n%b" % (len(words) + 1 + args, _words(words))


@lru_cache(maxsize=1024)
def _tail(args: tuple[Argument, ...]) -> bytes:
    return _words(args)


def _words(words: tuple[Argument, ...]) -> bytes:
    packed = (b"$%d\r\n%b\r\n" % (len(data), data) for data in map(_encoded, words))
    return b"".join(packed)


def _encoded(word: Argument) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
