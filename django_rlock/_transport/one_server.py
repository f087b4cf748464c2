"""The topology of an alias with one server, and the nodes that topologies send calls to: also those of a cluster."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from redis.exceptions import (
    ClusterCrossSlotError,
    NoScriptError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import is_final, meaning_of
from django_rlock._core.redis_py import slot_of
from django_rlock._core.text import reason_of
from django_rlock._redis.scripts import OK
from django_rlock._transport.calls import (
    ASKING,
    MOST_JOINED,
    UNLIMITED,
    Caller,
    Driver,
    Listening,
    RetryingTopology,
    ScriptCall,
    Undo,
    join,
    may_join,
    next_nonce,
    pack,
    pack_command,
    run_flow,
    unavailable,
)
from django_rlock._transport.connection import Expected, reply_error
from django_rlock._transport.pool import Server
from django_rlock.exceptions import LockUnavailableError
from django_rlock.settings import AliasSettings

# --- nodes ------------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

SLICE = 20
"""How many calls a background thread sends together. Between two slices other threads can run."""


class Binding(Caller, Protocol):
    """How callers exchange commands with a server."""

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


class Node(Protocol):
    """A server that takes packed calls through one binding. Limits and exceptions are as for ``Binding``."""

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        """The reply to one call."""

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        """The same for the cluster node that is importing the keys' slot."""

    async def exchange_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The replies to many calls, which are safe to repeat; errors are returned as replies."""


class PlainNode:
    """A node without REPLICA_ACKS. ``exchange`` and ``converse`` are those of its binding, with its server."""

    def __init__(self, binding: Binding, server: Server) -> None:
        self.server = server
        self.exchange = partial(binding.exchange, server)
        self.converse = partial(binding.converse, server)

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        call.sends += 1
        _, reply = await self.converse(ASKING + packed, [None, (nonce, call.script)], limit)
        if isinstance(reply, RedisError):
            raise reply
        return reply  # type: ignore[no-any-return]

    async def exchange_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(calls), SLICE):
            together = calls[start : start + SLICE]
            try:
                try:
                    replies += await self._exchange_together(together)
                except RedisConnectionError as error:
                    if is_final(error):
                        raise
                    # One broken connection proves little about the server.
                    replies += await self._exchange_together(together)
            except (RedisError, OSError) as error:
                # The other slices would wait in vain, too.
                return replies + [unavailable(call.name, error, call.noun) for call in calls[start:]]
        return replies

    async def _exchange_together(self, calls: Sequence[ScriptCall]) -> list[Any]:
        nonces = [next_nonce() for _ in calls]
        sent_at = monotonic()
        for call in calls:
            call.sends += 1
        replies = await self.converse(b"".join(map(pack, calls, nonces)), _expected(calls, nonces), UNLIMITED)
        for call in calls:
            call.sent_at = sent_at
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # the server does not have the script, which goes along with its first call
            again = [calls[number] for number in unknown]
            nonces = [next_nonce() for _ in again]
            first = {call.script: call for call in reversed(again)}
            packed = [pack(call, nonce, first[call.script] is call) for call, nonce in zip(again, nonces, strict=True)]
            found = await self.converse(b"".join(packed), _expected(again, nonces), UNLIMITED)
            for number, reply in zip(unknown, found, strict=True):
                replies[number] = reply
        return replies


def _expected(calls: Sequence[ScriptCall], nonces: Sequence[bytes]) -> list[Expected]:
    return [(nonce, call.script) for call, nonce in zip(calls, nonces, strict=True)]


# --- a circuit breaker ------------------------------------------------------------------------------------------------

# A node of a cluster for the background thread, which must not wait for a silent node again and again.
#
# All nodes of a cluster share one background thread. Each of its jobs asks all nodes at once, and continues when the
# last one has replied or its time is up. So a node that has kept the thread waiting in vain gets no further calls: they
# fail at once, until it has replied to a PING, which is sent in a thread of its own.


SLOW = 0.25
"""Failures faster than this do not open the breaker, in seconds; for example where nothing listens."""
_PING = pack_command("PING")


class CircuitBreaker(PlainNode):
    """A node that gets no commands while it does not reply."""

    def __init__(self, binding: Binding, server: Server) -> None:
        super().__init__(binding, server)
        self._silence: str | None = None
        self._instance = threads.SingleInstance()
        # The PING goes out in any case, so it takes the node's own method, before that is replaced.
        self._send_ping = partial(self.converse, _PING, [None], UNLIMITED)
        self.exchange = partial(self._unless_silent, self.exchange)
        self.converse = partial(self._unless_silent, self.converse)

    async def _unless_silent(
        self, ask: Callable[P, Coroutine[Any, Any, list[Any]]], *args: P.args, **kwargs: P.kwargs
    ) -> list[Any]:
        if (silence := self._silence) is not None:
            if self._instance.enter():  # otherwise another thread checks whether it replies again
                try:
                    threads.start(self._ping)
                except RuntimeError:  # interpreter exit, or no threads left
                    self._instance.exit()
            raise RedisTimeoutError(silence)
        began = monotonic()
        try:
            return await ask(*args, **kwargs)
        except (RedisError, OSError) as error:
            if monotonic() - began > SLOW and meaning_of(error) is None:
                self._silence = reason_of(error)
            raise

    def _ping(self) -> None:
        try:
            run_flow(self._send_ping, ())
            self._silence = None
        except (RedisError, OSError) as error:
            self._silence = reason_of(error)
        finally:
            self._instance.exit()


# --- replicas that confirm --------------------------------------------------------------------------------------------

# REPLICA_ACKS: a lock counts as taken only when replicas have it too.
#
# WAIT goes in the same packet as the script, because it covers only what its own connection has written. A lock that
# too few replicas have is released again, because a failover might lose it.

COUNT_FOR = 5.0
"""How long a count of connected replicas is used before they are counted again, in seconds."""
GIVE_BACK_WITHIN = 1.0
"""How long to retry releasing an unconfirmed lock, in seconds; after that, its lease ends it."""
_INFO = pack_command("INFO", "replication")
_REPLICAS = rb"connected_slaves:(\d+)"


class UnconfirmedError(Exception):
    """The server executed the call, but fewer replicas than needed confirmed it."""

    def __init__(self, confirmed: int, needed: int, waited: float) -> None:
        super().__init__(confirmed, needed, waited)
        self.confirmed = confirmed
        self.needed = needed
        self.waited = waited

    def __str__(self) -> str:
        return f"{self.confirmed} of the {self.needed} replicas needed confirmed it within {self.waited:g} s"


class Confirming(RetryingTopology):
    """Mixed into a topology whose locks replicas must confirm. Its nodes are ``ConfirmingNode``.

    Flows retry an unconfirmed call under another owner id (``attempt.pause_for_replicas``): a late copy of the undo
    must not free the next hold.
    """

    async def run(self, call: ScriptCall, until: float | None = None, undo: Undo | None = None) -> list[Any]:
        if undo is None:
            return await super().run(call, until)
        call.confirm = True
        try:
            return await super().run(call, until)
        except UnconfirmedError as error:
            released = "It was released"
            try:
                await super().run(undo(), monotonic() + GIVE_BACK_WITHIN)
            except LockUnavailableError:  # in a failover; the flow undoes it in the background
                released = "It is released in the background"
            advice = f"{released}; check the replicas, or lower REPLICA_ACKS."
            raise LockUnavailableError(call.name, reason=str(error), advice=advice, noun=call.noun) from error


class ConfirmingNode:
    """A node that waits for its replicas if a call must be confirmed."""

    def __init__(self, node: PlainNode, options: AliasSettings) -> None:
        self._node = node
        self._options = options
        self._replicas = 0
        self._counted_at = -math.inf

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        if not call.confirm:
            return await self._node.exchange(call, packed, nonce, limit)
        return await self._exchange_confirmed(call, packed, [(nonce, call.script)], limit)

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        if not call.confirm:
            return await self._node.exchange_asking(call, packed, nonce, limit)
        return await self._exchange_confirmed(call, ASKING + packed, [None, (nonce, call.script)], limit)

    async def exchange_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return await self._node.exchange_all(calls)

    async def _exchange_confirmed(
        self, call: ScriptCall, packed: bytes, expected: list[Expected], limit: float
    ) -> list[Any]:
        if monotonic() > self._counted_at + COUNT_FOR:
            await self._count(limit)
        needed = self._needed()
        # A WAIT longer than the reply limit would look like a lost connection.
        patience = min(self._options.replica_ack_timeout, 0.8 * self._node.server.reply_limit)
        call.sends += 1
        packed += pack_command("WAIT", needed, math.ceil(patience * 1000))
        *_, reply, confirmed = await self._node.converse(packed, [*expected, int], limit + patience)
        for error in (reply, confirmed):
            if isinstance(error, RedisError):
                raise error
        if reply[1] == OK and confirmed < needed:
            await self._count(limit)  # a replica may have left
            if confirmed < self._needed():
                raise UnconfirmedError(confirmed, self._needed(), patience)
        return reply  # type: ignore[no-any-return]

    def _needed(self) -> int:
        policy = self._options.replica_acks
        if isinstance(policy, int):
            return policy
        # A server without replicas can confirm nothing, so no lock is taken there.
        return max(1, self._replicas if policy == "all" else (self._replicas + 1) // 2)

    async def _count(self, limit: float) -> None:
        """Read how many replicas are connected."""
        if isinstance(self._options.replica_acks, str):
            (info,) = await self._node.converse(_INFO, [bytes], limit)
            if isinstance(info, RedisError):
                raise info
            found = re.search(_REPLICAS, info)
            if found is None:
                raise RedisConnectionError("The server does not report its replicas.")
            self._replicas = int(found[1])
        self._counted_at = monotonic()


# --- the topology -----------------------------------------------------------------------------------------------------


class Division:
    """Whether a server divides its keys into slots, as a cluster behind one address does. Then all keys of a command
    must be in one slot. The server's first refusal shows it.
    """

    def __init__(self) -> None:
        self._by_slot = False

    def learn(self, reply: object) -> None:
        """Look at an error of the server."""
        if isinstance(reply, ClusterCrossSlotError):
            self._by_slot = True

    def location(self, key: str) -> object:
        """Equal for keys that one command may have."""
        return slot_of(key) if self._by_slot else None


class OneServer(RetryingTopology):
    """The topology of an alias with one node."""

    def __init__(
        self,
        options: AliasSettings,
        binding: Binding,
        at: Callable[[str], Driver],
        node: Node,
        division: Division,
        listening: Listening | None,
    ) -> None:
        super().__init__(binding, at, node.exchange, options.refused_wait_time, listening)
        self._node = node
        self._division = division
        self.location = division.location

    def note_refusal(self, error: Exception) -> None:
        self._division.learn(error)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        def joined_by(call: ScriptCall) -> object:
            return may_join(call), self.location(call.key)

        groups = [
            group[start : start + MOST_JOINED]
            for group in [list(same) for _, same in itertools.groupby(calls, joined_by)]
            for start in range(0, len(group), MOST_JOINED)
        ]
        joined = [group[0] if len(group) == 1 else join(group) for group in groups]
        replies: list[Any] = []
        for group, call, reply in zip(groups, joined, await self._node.exchange_all(joined), strict=True):
            self._division.learn(reply)
            replies += [reply] if len(group) == 1 else _split(group, call, reply)
        return [await self._alone(call, reply) for call, reply in zip(calls, replies, strict=True)]


def _split(group: Sequence[ScriptCall], joined: ScriptCall, reply: Any) -> list[Any]:
    """Split the reply to a joined call into the replies to the original calls."""
    for call in group:
        call.sends, call.sent_at = joined.sends, joined.sent_at
    if not isinstance(reply, Exception) and len(reply) != 1 + len(group):
        reply = reply_error(reply)
    if isinstance(reply, Exception):
        return [reply] * len(group)
    return [[reply[0], each] for each in reply[1:]]
