"""The blocking driver: for threads and greenlets, and for the background thread."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis
from django.core.exceptions import SynchronousOnlyOperation
from django.core.signals import setting_changed

from django_rlock.cluster import Address
from django_rlock.connections import UNSET_TIMEOUT, background_pool, command_pool, is_cluster
from django_rlock.drivers import background, pubsub
from django_rlock.drivers.base import (
    ScriptCall,
    ScriptDriver,
    Waiter,
    check_nonce,
    next_nonce,
    pack,
    run_sync,
    unavailable,
)
from django_rlock.drivers.identity import Owner, thread_owner
from django_rlock.exceptions import LockUnavailableError
from django_rlock.once import once
from django_rlock.settings import get_settings

MakePool = Callable[[str, Address | None], redis.ConnectionPool]

_BATCH = 500


class SyncDriver(ScriptDriver):
    """Blocks instead of suspending, so ``run_sync`` can run any flow over it."""

    def __init__(self, using: str, pool: MakePool = command_pool, node: Address | None = None) -> None:
        super().__init__(using)
        self._pool: Any = pool(using, node)  # redis-py's connections are half typed
        self.reply_limit = self._pool.connection_kwargs.get("socket_timeout") or UNSET_TIMEOUT

    def check_caller(self) -> None:
        # get_running_loop() raises where there is none, which is the usual case and five times as dear.
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - in __all__ of asyncio.events
            raise SynchronousOnlyOperation(
                "A lock was used synchronously inside an event loop, which would block it. "
                "Use the async methods (aacquire, arelease, async with) or sync_to_async."
            )

    def owner(self) -> Owner:
        return thread_owner()

    def at(self, using: str) -> SyncDriver:
        return sync_driver(using)

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        pool = self._pool
        connection = pool.get_connection()
        call.sends += 1
        try:
            connection.send_packed_command([packed])
            return check_nonce(_read_within(connection, timeout), nonce)
        except AttributeError as error:  # redis-py's, of a connection that a signal left half connected
            connection.disconnect()
            raise redis.ConnectionError("The connection was not set up to its end.") from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    async def run_all(self, calls: list[ScriptCall]) -> list[Any]:
        """Run many calls in few round trips; an exception stands in for a reply that did not come."""
        replies: dict[ScriptCall, Any] = {}
        for node, batch in self.batches(calls):
            try:
                answers = await node.exchange_all(batch)
            except (redis.RedisError, OSError) as error:
                self.note_silence(batch)
                answers = [unavailable(call.name, error) for call in batch]
            replies |= zip(batch, answers, strict=True)
        return [await self._alone(call, replies[call]) for call in calls]

    def batches(self, calls: list[ScriptCall]) -> Iterable[tuple[SyncDriver, list[ScriptCall]]]:
        """The calls in parts that are sent together, each with the driver that sends it."""
        return ((self, calls[start : start + _BATCH]) for start in range(0, len(calls), _BATCH))

    def note_silence(self, calls: list[ScriptCall]) -> None:
        """One of these parts was not answered; a driver that chooses among servers may choose another next time."""

    async def exchange_all(self, calls: list[ScriptCall]) -> list[Any]:
        """Send calls together and read their replies, errors among them."""
        nonces = [next_nonce() for _ in calls]
        sent_at = self.now()
        replies = await self.converse(b"".join(map(pack, calls, nonces)), nonces, math.inf)
        for call in calls:
            call.sent_at = sent_at
        return replies

    async def converse(self, packed: bytes, nonces: Sequence[bytes | None], timeout: float) -> list[Any]:
        pool = self._pool
        connection = pool.get_connection()
        try:
            connection.send_packed_command([packed])
            return [_reply_or_error(connection, nonce, timeout) for nonce in nonces]
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    async def _alone(self, call: ScriptCall, reply: Any) -> Any:
        """The reply; where it is the server's error, what the call answers when it is sent by itself."""
        if not isinstance(reply, redis.ResponseError):
            return reply
        try:
            return await self.run(call, until=self.now())
        except LockUnavailableError as error:
            return error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def overhear(self, channel: str, token: str | None) -> Waiter | None:
        return pubsub.listener(self.using).overhear(channel, token, pubsub.ThreadWaiter)

    async def listen(self, channel: str, token: str | None) -> Waiter:
        listener = pubsub.listener(self.using)
        waiter = pubsub.ThreadWaiter(listener, channel, token)
        listener.join(waiter)
        try:
            listener.settle(channel)
        except BaseException:
            waiter.close()
            raise
        return waiter

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def _read_within(connection: Any, timeout: float) -> Any:
    """The reply, within ``timeout`` seconds or the connection's own limit."""
    limit = connection.socket_timeout
    if limit is not None and limit <= timeout:
        return connection.read_response(disable_decoding=True)
    # redis-py before 8 has no timeout for one read, so the socket's own is set and put back.
    connection._sock.settimeout(min(timeout, limit or UNSET_TIMEOUT))  # noqa: SLF001
    reply = connection.read_response(disable_decoding=True)
    connection._sock.settimeout(limit)  # noqa: SLF001
    return reply


def _reply_or_error(connection: Any, nonce: bytes | None, timeout: float) -> Any:
    try:
        reply = _read_within(connection, timeout)
    except redis.ResponseError as error:
        return error
    return reply if nonce is None else check_nonce(reply, nonce)


@once
def sync_driver(using: str) -> SyncDriver:
    """The driver for callers in threads."""
    return make_driver(using, command_pool)


@once
def background_driver(using: str) -> SyncDriver:
    """The driver of the background thread, on connections that no request closes."""
    return make_driver(using, background_pool)


def make_driver(using: str, pool: MakePool) -> SyncDriver:
    """A driver for an alias, whatever it consists of."""
    if get_settings(using).nodes:
        from django_rlock.drivers.quorum_sync import quorum_driver

        return quorum_driver(using)
    if is_cluster(using):
        from django_rlock.drivers.cluster import ClusterSyncDriver

        return ClusterSyncDriver(using, pool)
    return server_driver(using, pool)


def server_driver(using: str, pool: MakePool, node: Address | None = None) -> SyncDriver:
    """A driver for an alias on one server, or for a node of its cluster."""
    if get_settings(using).replica_acks:
        from django_rlock.drivers.acks import ConfirmingSyncDriver

        return ConfirmingSyncDriver(using, pool, node)
    return SyncDriver(using, pool, node)


def defer(using: str, call: ScriptCall, until: float, after: float = 0.0) -> None:
    """Have the background thread run a call until it succeeds or the monotonic time ``until`` has come.

    It begins ``after`` seconds from now.
    """

    def attempt() -> None:
        run_sync(background_driver(using).run(call, until=time.monotonic()))

    background.defer(attempt, until, after)


def _reset() -> None:
    sync_driver.cache_clear()
    background_driver.cache_clear()


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        _reset()


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.drivers.sync")
os.register_at_fork(after_in_child=_reset)
