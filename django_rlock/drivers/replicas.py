"""REPLICA_ACKS: a lock counts as taken only when replicas have it too.

WAIT goes in the same packet as the script, because it covers only what its own connection has written. A lock that too
few replicas have is released again, because a failover might lose it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock.clock import monotonic
from django_rlock.drivers.base import Undo
from django_rlock.drivers.calls import ASKING, ScriptCall, pack_command
from django_rlock.drivers.server import PlainNode
from django_rlock.exceptions import LockUnavailableError
from django_rlock.links.link import Expected
from django_rlock.scripts import OK
from django_rlock.settings import get_settings

COUNT_FOR = 5.0
"""How long a count of connected replicas is used before they are counted again, in seconds."""
GIVE_BACK_WITHIN = 1.0
"""How long to retry releasing an unconfirmed lock, in seconds; after that, its lease ends it."""
_INFO = pack_command("INFO", "replication")
_REPLICAS = re.compile(rb"connected_slaves:(\d+)")


class UnconfirmedError(Exception):
    """The server executed the call, but fewer replicas than needed confirmed it."""

    def __init__(self, confirmed: int, needed: int, waited: float) -> None:
        super().__init__(confirmed, needed, waited)
        self.confirmed = confirmed
        self.needed = needed
        self.waited = waited

    def __str__(self) -> str:
        return f"{self.confirmed} of the {self.needed} replicas needed confirmed it within {self.waited:g} s"


async def take_confirmed(run: Any, call: ScriptCall, until: float | None, undo: Undo) -> list[Any]:
    """Run a script that takes a lock. If too few replicas confirm it, undo it and raise LockUnavailableError."""
    call.confirm = True
    try:
        reply: list[Any] = await run(call, until)
    except UnconfirmedError as error:
        await run(undo(), monotonic() + GIVE_BACK_WITHIN)
        raise LockUnavailableError(
            call.name,
            reason=str(error),
            advice="It was released; check the replicas, or lower REPLICA_ACKS.",
            noun=call.noun,
        ) from error
    return reply


class ConfirmingNode:
    """A node that waits for its replicas if a call must be confirmed. ``using`` is its alias."""

    def __init__(self, node: PlainNode, using: str) -> None:
        self._node = node
        self._using = using
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
        patience = min(get_settings(self._using).replica_ack_timeout, 0.8 * self._node.server.reply_limit)
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
        policy = get_settings(self._using).replica_acks
        if isinstance(policy, int):
            return policy
        # A server without replicas can confirm nothing, so no lock is taken there.
        return max(1, self._replicas if policy == "all" else (self._replicas + 1) // 2)

    async def _count(self, limit: float) -> None:
        """Read how many replicas are connected."""
        if isinstance(get_settings(self._using).replica_acks, str):
            (info,) = await self._node.converse(_INFO, [bytes], limit)
            if isinstance(info, RedisError):
                raise info
            found = _REPLICAS.search(info)
            if found is None:
                raise RedisConnectionError("The server does not report its replicas.")
            self._replicas = int(found[1])
        self._counted_at = monotonic()
