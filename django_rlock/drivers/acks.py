"""REPLICA_ACKS: what takes a lock counts only when replicas have it too.

WAIT goes in the same packet as the script and on the same connection, since it asks for what that connection wrote. A
lock that too few replicas have is given back: a failover might lose it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from django_rlock.drivers.aio import AsyncDriver
from django_rlock.drivers.base import ASKING, ScriptCall, ScriptDriver
from django_rlock.drivers.sync import SyncDriver
from django_rlock.exceptions import LockUnavailableError
from django_rlock.settings import get_settings

COUNT_FOR = 5.0
"""How long the number of connected replicas is believed, in seconds."""
GIVE_BACK_WITHIN = 1.0
"""How long is tried to give back what was not confirmed, in seconds, before its lease has to end it."""
_INFO = b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n"
_REPLICAS = re.compile(rb"connected_slaves:(\d+)")


class UnconfirmedError(Exception):
    """The server did as it was told, and fewer replicas than needed have confirmed it."""

    def __init__(self, confirmed: int, needed: int, waited: float) -> None:
        super().__init__(confirmed, needed, waited)
        self.confirmed = confirmed
        self.needed = needed
        self.waited = waited

    def __str__(self) -> str:
        return f"{self.confirmed} of the {self.needed} replicas needed confirmed it within {self.waited:g} s"


async def take_confirmed(
    driver: ScriptDriver, call: ScriptCall, until: float | None, undo: Callable[[], ScriptCall]
) -> list[Any]:
    """Run a script that takes a lock; where too few replicas confirm it, undo it. LockUnavailableError says so."""
    call.confirm = True
    try:
        return await driver.run(call, until)
    except UnconfirmedError as error:
        await driver.run(undo(), driver.now() + GIVE_BACK_WITHIN)
        raise LockUnavailableError(
            call.name,
            reason=str(error),
            advice="It was given back; check the replicas, or lower REPLICA_ACKS.",
        ) from error


class _Confirming(ScriptDriver):
    """Asks the replicas for a call that is to be confirmed."""

    _replicas = 0
    _counted_at = -math.inf

    async def take(self, call: ScriptCall, until: float | None, undo: Callable[[], ScriptCall]) -> list[Any]:
        return await take_confirmed(self, call, until, undo)

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        if not call.confirm:
            return await super().exchange(call, packed, nonce, timeout)
        return await self._exchange_confirmed(call, packed, [nonce], timeout)

    async def exchange_asking(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        if not call.confirm:
            return await super().exchange_asking(call, packed, nonce, timeout)
        return await self._exchange_confirmed(call, ASKING + packed, [None, nonce], timeout)

    async def _exchange_confirmed(
        self, call: ScriptCall, packed: bytes, nonces: list[bytes | None], timeout: float
    ) -> list[Any]:
        if self.now() > self._counted_at + COUNT_FOR:
            await self._count(timeout)
        needed = self._needed()
        # Waited for longer than the connection waits for any reply, it would end as a lost connection.
        patience = min(get_settings(self.using).replica_ack_timeout, 0.8 * self.reply_limit)
        call.sends += 1
        *_, reply, confirmed = await self.converse(
            packed + _wait(needed, patience), [*nonces, None], timeout + patience
        )
        for error in (reply, confirmed):
            if isinstance(error, ResponseError):
                raise error
        if reply[1] == b"OK" and confirmed < needed:
            await self._count(timeout)  # one may have left
            if confirmed < self._needed():
                raise UnconfirmedError(confirmed, self._needed(), patience)
        return reply  # type: ignore[no-any-return]

    def _needed(self) -> int:
        policy = get_settings(self.using).replica_acks
        if isinstance(policy, int):
            return policy
        # A server without replicas confirms nothing, so it takes nothing.
        return max(1, self._replicas if policy == "all" else (self._replicas + 1) // 2)

    async def _count(self, timeout: float) -> None:
        """Learn how many replicas are connected."""
        if isinstance(get_settings(self.using).replica_acks, str):
            (info,) = await self.converse(_INFO, [None], timeout)
            if isinstance(info, ResponseError):
                raise info
            self._replicas = int(_REPLICAS.search(info)[1])  # type: ignore[index]  # every server tells
        self._counted_at = self.now()


class ConfirmingSyncDriver(_Confirming, SyncDriver):
    """Blocks."""


class ConfirmingAsyncDriver(_Confirming, AsyncDriver):
    """Awaits."""


def _wait(replicas: int, seconds: float) -> bytes:
    words = b"WAIT", b"%d" % replicas, b"%d" % math.ceil(seconds * 1000)
    return b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
