"""The asyncio driver: commands are awaited on the running loop's own connections.

Waiting goes through the process's one listener, whose thread wakes tasks as well; renewal and clean-up are the
background thread's, so a loop that is stalled for a while does not lose its locks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from django.core.signals import setting_changed
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.cluster import Address
from django_rlock.connections import UNSET_TIMEOUT, async_pool, command_pool, is_cluster
from django_rlock.drivers import pubsub
from django_rlock.drivers.base import ScriptCall, ScriptDriver, Waiter, check_nonce
from django_rlock.drivers.identity import Owner, task_owner
from django_rlock.once import once
from django_rlock.settings import get_settings


class AsyncDriver(ScriptDriver):
    """Awaits real asyncio I/O; the owner is the running task."""

    def __init__(self, using: str, node: Address | None = None) -> None:
        super().__init__(using)
        self._pool_key = using, node
        self.reply_limit = command_pool(using, node).connection_kwargs.get("socket_timeout") or UNSET_TIMEOUT

    def owner(self) -> Owner:
        return task_owner()

    def at(self, using: str) -> AsyncDriver:
        return async_driver(using)

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        pool: Any = await async_pool(self._pool_key)  # redis-py's connections are half typed
        try:
            # One limit around all is cheaper than redis-py's for each step, and also covers connecting.
            async with asyncio.timeout(min(timeout, self.reply_limit)):
                return await _exchange(pool, call, packed, nonce)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout talking to the server") from error

    async def converse(self, packed: bytes, nonces: Sequence[bytes | None], timeout: float) -> list[Any]:
        pool: Any = await async_pool(self._pool_key)
        try:
            async with asyncio.timeout(min(timeout, self.reply_limit)):
                return await _converse(pool, packed, nonces)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout talking to the server") from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def overhear(self, channel: str, token: str | None) -> Waiter | None:
        return pubsub.listener(self.using).overhear(channel, token, pubsub.TaskWaiter)

    async def listen(self, channel: str, token: str | None) -> Waiter:
        listener = await asyncio.to_thread(pubsub.listener, self.using)
        waiter = pubsub.TaskWaiter(listener, channel, token)
        listener.join(waiter)
        try:
            await asyncio.to_thread(listener.settle, channel)
        except BaseException:
            waiter.close()
            raise
        return waiter

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)


async def _exchange(pool: Any, call: ScriptCall, packed: bytes, nonce: bytes) -> list[Any]:
    connection = await pool.get_connection()
    call.sends += 1
    try:
        await connection.send_packed_command([packed])
        return check_nonce(await connection.read_response(disable_decoding=True), nonce)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


async def _converse(pool: Any, packed: bytes, nonces: Sequence[bytes | None]) -> list[Any]:
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command([packed])
        return [await _reply_or_error(connection, nonce) for nonce in nonces]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


async def _reply_or_error(connection: Any, nonce: bytes | None) -> Any:
    try:
        reply = await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
    return reply if nonce is None else check_nonce(reply, nonce)


@once
def async_driver(using: str) -> AsyncDriver:
    """The driver for callers in asyncio tasks."""
    if get_settings(using).nodes:
        from django_rlock.drivers.quorum_aio import quorum_driver

        return quorum_driver(using)
    if is_cluster(using):
        from django_rlock.drivers.cluster import ClusterAsyncDriver

        return ClusterAsyncDriver(using)
    return server_driver(using)


def server_driver(using: str, node: Address | None = None) -> AsyncDriver:
    """A driver for an alias on one server, or for a node of its cluster."""
    if get_settings(using).replica_acks:
        from django_rlock.drivers.acks import ConfirmingAsyncDriver

        return ConfirmingAsyncDriver(using, node)
    return AsyncDriver(using, node)


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        async_driver.cache_clear()


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.drivers.aio")
# A thread of the parent may have held a mutex of its drivers.
os.register_at_fork(after_in_child=async_driver.cache_clear)
