"""RedLock's nodes for asyncio: a task for each call to a node."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

import redis
from django.core.signals import setting_changed

from django_rlock.connections import async_pool
from django_rlock.drivers.aio import AsyncDriver
from django_rlock.drivers.base import check_nonce, next_nonce, pack
from django_rlock.drivers.quorum import Answer, NodeDownError, QuorumCall, QuorumDriver
from django_rlock.drivers.quorum_sync import site


class Link:
    """A connection to a node. Who sends first reads first, so each reads what is meant for it."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.pool: Any = None
        self.owed = 0
        self._sending = asyncio.Lock()
        self._reading = asyncio.Lock()

    async def open(self, driver: AsyncQuorumDriver, node: int) -> None:
        if self.connection is None:
            self.pool, self.connection = await driver.connect(node)

    async def exchange(self, driver: AsyncQuorumDriver, node: int, packed: bytes, nonce: bytes) -> list[Any]:
        async with self._sending:
            await self.open(driver, node)
            self.owed += 1
            await self.connection.send_packed_command([packed], check_health=False)
        async with self._reading:
            try:
                reply = await self.connection.read_response(disable_decoding=True)
            except redis.ResponseError:
                self.owed -= 1
                raise
            self.owed -= 1
            return check_nonce(reply, nonce)

    async def leave(self) -> None:
        """Give the connection back, closed if a reply is still to come on it."""
        if self.connection is not None:
            if self.owed:
                await self.connection.disconnect(nowait=True)
            await self.pool.release(self.connection)
            self.connection = None


class Talk:
    """A conversation with the nodes; see ``quorum.Conversation``."""

    def __init__(self, driver: AsyncQuorumDriver) -> None:
        self._driver = driver
        self._links: dict[int, Link] = {}
        self._answers: deque[Answer] = deque()
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        for node in nodes:
            task = asyncio.create_task(self._ask(node, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, node: int, call: QuorumCall) -> None:
        link = self._links.setdefault(node, Link())
        reply: Any
        try:
            try:
                nonce = next_nonce()
                reply = await link.exchange(self._driver, node, pack(call, nonce), nonce)
            except redis.exceptions.NoScriptError:
                nonce = next_nonce()
                reply = await link.exchange(self._driver, node, pack(call, nonce, "EVAL"), nonce)
        except (redis.RedisError, OSError) as error:
            reply = error
            if not isinstance(error, redis.ResponseError):
                self._links.pop(node, None)
                await link.leave()
        self._answers.append(Answer(node, call, reply))
        self._news.set()

    async def receive(self, until: float) -> Answer | None:
        while not self._answers:
            left = until - self._driver.now()
            if left <= 0 or not self._tasks:
                return None
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._answers.popleft()

    async def __aenter__(self) -> Talk:
        self._links = {node: Link() for node in range(self._driver.size)}
        opening = [link.open(self._driver, node) for node, link in self._links.items()]
        try:
            # Who is down tells so again when it is asked.
            await asyncio.gather(*opening, return_exceptions=True)
        except BaseException:
            await self._end(within=0)
            raise
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._tasks and (error is None or isinstance(error, redis.RedisError)):
            # A node may still be working on it.
            self._driver.see_off(self._end(within=self._driver.timeout))
        else:
            await self._end(within=0)

    async def _end(self, within: float) -> None:
        try:
            if self._tasks and within:
                await asyncio.wait(self._tasks, timeout=within)
        finally:
            for task in self._tasks:
                task.cancel()
            for link in self._links.values():
                await link.leave()


class AsyncQuorumDriver(QuorumDriver, AsyncDriver):
    """Awaits real asyncio I/O; the owner is the running task."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.site = site(using)
        self.node_names = self.site.names
        self.timeout = self.site.timeout
        self.census = self.site.census
        self._leaving: set[asyncio.Task[None]] = set()

    now = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def conversation(self) -> Talk:
        return Talk(self)

    async def connect(self, node: int) -> tuple[Any, Any]:
        """A connection from the running loop's pool, and that pool."""
        self.site.require_up(node)
        pool: Any = await async_pool((self.site.aliases[node], None))
        try:
            async with asyncio.timeout(4 * self.timeout):
                return pool, await pool.get_connection()
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if not isinstance(error, redis.exceptions.MaxConnectionsError):
                self.site.note_down(node, error)
            raise NodeDownError(str(error)) from error

    def see_off(self, ending: Any) -> None:
        """Have a conversation end by itself."""
        task = asyncio.create_task(ending)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        self.site.tell_later(undo, nodes, self.now() + undo.lease)


@cache
def quorum_driver(using: str) -> AsyncQuorumDriver:
    """The driver for callers in asyncio tasks."""
    return AsyncQuorumDriver(using)


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        quorum_driver.cache_clear()


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.drivers.quorum_aio")
