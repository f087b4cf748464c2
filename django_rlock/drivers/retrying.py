"""Sending a script call until its outcome is known, within its caller's time, and classifying failures."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from redis.backoff import EqualJitterBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.clock import monotonic
from django_rlock.drivers.calls import ScriptCall, next_nonce, pack
from django_rlock.exceptions import LockUnavailableError
from django_rlock.links.errors import is_final, meaning_of
from django_rlock.redaction import reason_of
from django_rlock.settings import get_settings

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
