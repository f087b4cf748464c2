"""A node of a cluster for the background thread, which must not wait for a silent node again and again.

All nodes of a cluster share one background thread. Each of its jobs asks all nodes at once, and goes on when the last
one has replied or its time is up. So a node that has kept the thread waiting in vain gets no further calls: they fail
at once, until it has replied to a PING, which is sent in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock import threads
from django_rlock.clock import monotonic
from django_rlock.drivers.base import UNLIMITED, Face, run_flow
from django_rlock.drivers.calls import pack_command
from django_rlock.drivers.server import PlainNode
from django_rlock.links.errors import meaning_of
from django_rlock.links.server import Server
from django_rlock.redaction import reason_of

P = ParamSpec("P")

SLOW = 0.25
"""A failure that comes sooner than this is not worth sparing, in seconds: where nothing listens, for example."""
_PING = pack_command("PING")


class CircuitBreaker(PlainNode):
    """A node that is asked nothing while it is silent."""

    def __init__(self, face: Face, server: Server) -> None:
        super().__init__(face, server)
        self._silence: str | None = None
        self._seat = threads.free_seat()
        # The PING goes out in any case, so it takes the node's own method, before that is replaced.
        self._send_ping = partial(self.converse, _PING, [None], UNLIMITED)
        self.exchange = partial(self._unless_silent, self.exchange)
        self.converse = partial(self._unless_silent, self.converse)

    async def _unless_silent(
        self, ask: Callable[P, Coroutine[Any, Any, list[Any]]], *args: P.args, **kwargs: P.kwargs
    ) -> list[Any]:
        if (silence := self._silence) is not None:
            self._look_again()
            raise RedisTimeoutError(silence)
        began = monotonic()
        try:
            return await ask(*args, **kwargs)
        except (RedisError, OSError) as error:
            if monotonic() - began > SLOW and meaning_of(error) is None:
                self._silence = reason_of(error)
            raise

    def _look_again(self) -> None:
        if self._seat.quiet():  # otherwise another thread is looking
            try:
                threads.start(self._ping)
            except RuntimeError:  # interpreter exit, or no threads left
                self._seat.ring()

    def _ping(self) -> None:
        try:
            run_flow(self._send_ping, ())
            self._silence = None
        except (RedisError, OSError) as error:
            self._silence = reason_of(error)
        finally:
            self._seat.ring()
