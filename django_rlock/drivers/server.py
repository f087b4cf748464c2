"""One server: a node that takes packed calls, and the topology of an alias with a single node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from redis.exceptions import ClusterCrossSlotError, NoScriptError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_rlock.clock import monotonic
from django_rlock.cluster import slot_of
from django_rlock.drivers.base import UNLIMITED, Face, Undo
from django_rlock.drivers.calls import ASKING, ScriptCall, join, may_join, next_nonce, pack
from django_rlock.drivers.retrying import Retrying, unavailable
from django_rlock.exceptions import LockUnavailableError
from django_rlock.links.errors import is_final
from django_rlock.links.link import Expected, reply_error
from django_rlock.links.server import Server

SLICE = 20
"""How many calls a background thread sends together. Between two slices other threads can run."""


class Node(Protocol):
    """A server that takes packed calls through one face. Limits and exceptions are as for ``Face``."""

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        """The reply to one call."""

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        """The same for the cluster node that is importing the keys' slot."""

    async def exchange_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The replies to many calls that are sent together; server errors are returned as replies."""


class PlainNode:
    """A node without REPLICA_ACKS. ``exchange`` and ``converse`` are those of its face, with its server."""

    def __init__(self, face: Face, server: Server) -> None:
        self.server = server
        self.exchange = partial(face.exchange, server)
        self.converse = partial(face.converse, server)

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        call.sends += 1
        _, reply = await self.converse(ASKING + packed, [None, (nonce, call.script)], limit)
        if isinstance(reply, RedisError):
            raise reply
        return reply  # type: ignore[no-any-return]

    async def exchange_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        nonces = [next_nonce() for _ in calls]
        sent_at = monotonic()
        for call in calls:
            call.sends += 1
        replies = await self.converse(b"".join(map(pack, calls, nonces)), _expected(calls, nonces), UNLIMITED)
        for call in calls:
            call.sent_at = sent_at
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = await self._exchange_sources([calls[number] for number in unknown])
            for number, reply in zip(unknown, again, strict=True):
                replies[number] = reply
        return replies

    async def _exchange_sources(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The same for calls of scripts that the server does not have: each script goes along with its first call."""
        nonces = [next_nonce() for _ in calls]
        first = {call.script: call for call in reversed(calls)}
        packed = [
            pack(call, nonce, with_source=first[call.script] is call) for call, nonce in zip(calls, nonces, strict=True)
        ]
        return await self.converse(b"".join(packed), _expected(calls, nonces), UNLIMITED)


def _expected(calls: Sequence[ScriptCall], nonces: Sequence[bytes]) -> list[Expected]:
    return [(nonce, call.script) for call, nonce in zip(calls, nonces, strict=True)]


class Division:
    """Whether a server divides its keys into slots, as a cluster behind one address does: then the keys of a command
    must share one. The server's first refusal tells.
    """

    def __init__(self) -> None:
        self._by_slot = False

    def learn(self, reply: object) -> None:
        """Look at an error of the server."""
        if isinstance(reply, ClusterCrossSlotError):
            self._by_slot = True

    def place(self, key: str) -> object:
        """Equal for keys that one command may have."""
        return slot_of(key) if self._by_slot else None


class OneServer:
    """The topology of an alias with one server, or with sentinels that name it, or with one address of a cluster."""

    def __init__(
        self, using: str, face: Face, node: Node, division: Division, take: Callable[..., Any] | None = None
    ) -> None:
        self._node = node
        self._division = division
        self.place = division.place
        self.run = Retrying(using, node.exchange, face.sleep, division.learn).run
        self._take = take

    def take(self, call: ScriptCall, until: float | None, undo: Undo) -> Coroutine[Any, Any, list[Any]]:
        return self.run(call, until) if self._take is None else self._take(self.run, call, until, undo)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        groups = [list(group) for _, group in itertools.groupby(calls, self._may_join)]
        joined = [group[0] if len(group) == 1 else join(group) for group in groups]
        replies: list[Any] = []
        for group, call, reply in zip(groups, joined, await exchange_slices(self._node, joined), strict=True):
            self._division.learn(reply)
            replies += [reply] if len(group) == 1 else _split(group, call, reply)
        return [await alone(self.run, call, reply) for call, reply in zip(calls, replies, strict=True)]

    def _may_join(self, call: ScriptCall) -> object:
        return may_join(call), self.place(call.keys[0])


async def exchange_slices(node: Node, calls: Sequence[ScriptCall]) -> list[Any]:
    """The replies to many calls. After a slice without a reply, the remaining calls are not sent."""
    replies: list[Any] = []
    for start in range(0, len(calls), SLICE):
        part = calls[start : start + SLICE]
        try:
            replies += await _exchange_slice(node, part)
        except (RedisError, OSError) as error:
            return replies + [unavailable(call.name, error, call.noun) for call in calls[start:]]
    return replies


async def _exchange_slice(node: Node, calls: Sequence[ScriptCall]) -> list[Any]:
    try:
        return await node.exchange_all(calls)
    except RedisConnectionError as error:
        if is_final(error):
            raise
        # One broken connection proves little about the server, and these calls are safe to repeat.
        return await node.exchange_all(calls)


def _split(group: Sequence[ScriptCall], joined: ScriptCall, reply: Any) -> list[Any]:
    """Split the reply to a joined call into the replies to the original calls."""
    for call in group:
        call.sends, call.sent_at = joined.sends, joined.sent_at
    if not isinstance(reply, Exception) and len(reply) != 1 + len(group):
        reply = reply_error(reply)
    if isinstance(reply, Exception):
        return [reply] * len(group)
    return [[reply[0], each] for each in reply[1:]]


async def alone(run: Callable[..., Any], call: ScriptCall, reply: Any) -> Any:
    """The reply; if it is the server's error, the result of sending the call once more by itself."""
    if not isinstance(reply, RedisError):
        return reply
    call.sends -= 1  # certainly not executed
    try:
        return await run(call, monotonic())
    except LockUnavailableError as error:
        return error
