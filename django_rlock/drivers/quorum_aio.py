"""RedLock's nodes for asyncio: one lasting connection to each for all tasks of a loop, whose replies need no task."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import redis
from django.core.signals import setting_changed

from django_rlock.connections import async_pool, drop_closed_loops
from django_rlock.drivers.aio import AsyncDriver
from django_rlock.drivers.base import check_nonce, next_nonce, pack
from django_rlock.drivers.census import WHO_ARE_YOU, identity
from django_rlock.drivers.quorum import Answer, NodeDownError, QuorumCall
from django_rlock.drivers.quorum_site import SiteDriver
from django_rlock.drivers.resp import INCOMPLETE, make_reader
from django_rlock.once import once


class Link(asyncio.Protocol):
    """A connection to a node, and the calls whose replies are still to come on it, in their order.

    redis-py connects and logs in; then this takes its place at the transport, where a reply costs no task's turn.
    """

    def __init__(self, node: int, connection: Any, pool: Any) -> None:
        self.node = node
        self._connection = connection
        self._pool = pool
        self._transport: asyncio.WriteTransport = connection._writer.transport  # noqa: SLF001 - see above
        self._former = self._transport.get_protocol()
        self._reader = make_reader()
        self._owed: deque[tuple[bytes, QuorumCall, Talk, float]] = deque()
        self.is_open = not self._transport.is_closing()
        self._transport.set_protocol(self)

    def waits_since(self) -> float | None:
        """When the oldest call was sent to which no reply has come."""
        return self._owed[0][3] if self._owed else None

    def send(self, packed: bytes, nonce: bytes, call: QuorumCall, talk: Talk) -> None:
        self._owed.append((nonce, call, talk, time.monotonic()))
        self._transport.write(packed)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while self.is_open and (reply := self._reader.gets()) is not INCOMPLETE:
                self._take(reply)
        except (redis.RedisError, IndexError) as error:  # a reply that nobody has asked for
            self.break_off(error)

    def _take(self, reply: Any) -> None:
        nonce, call, talk, _ = self._owed[0]
        if not isinstance(reply, redis.ResponseError):
            check_nonce(reply, nonce)
        self._owed.popleft()
        if isinstance(reply, redis.exceptions.NoScriptError):
            nonce = next_nonce()
            self.send(pack(call, nonce, "EVAL"), nonce, call, talk)
        else:
            talk.hear(Answer(self.node, call, reply))

    def break_off(self, error: Exception) -> None:
        """Close the connection; nobody is told any more what was sent on it."""
        self._transport.abort()
        self._lose(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._former.connection_lost(error)  # redis-py may be waiting for it
        self._lose(redis.ConnectionError(str(error or "The server closed the connection.")))

    def _lose(self, error: Exception) -> None:
        self.is_open = False
        while self._owed:
            _, call, talk, _ = self._owed.popleft()
            talk.hear(Answer(self.node, call, error))

    async def give_back(self) -> None:
        """Return a broken connection to its pool."""
        await self._connection.disconnect(nowait=True)
        await self._pool.release(self._connection)


class Links:
    """The links of one event loop."""

    def __init__(self, driver: AsyncQuorumDriver) -> None:
        self._driver = driver
        self._links: dict[int, Link] = {}
        self._opening = [asyncio.Lock() for _ in range(driver.size)]

    def get(self, node: int) -> Link | None:
        """The open link to a node; one that has not answered in time is given up."""
        link = self._links.get(node)
        if link is None or not link.is_open:
            return None
        since = link.waits_since()
        if since is not None and self._driver.now() > since + self._driver.timeout:
            error = redis.TimeoutError("did not answer in time")
            self._driver.site.note_down(node, error)
            link.break_off(error)
            return None
        return link

    async def open(self, node: int) -> None:
        """Connect to a node, if nobody has meanwhile; NodeDownError when that fails."""
        self._driver.site.require_up(node)
        async with self._opening[node]:
            if self.get(node) is None:
                broken = self._links.pop(node, None)
                if broken is not None:
                    await broken.give_back()
                self._links[node] = await self._driver.connect(node)


class Talk:
    """A conversation with the nodes; see ``quorum.Conversation``. Replies that come after its end are dropped.

    What is sent later on the same link is obeyed later: a late grant is followed by the release that undoes it.
    """

    def __init__(self, driver: AsyncQuorumDriver) -> None:
        self._driver = driver
        self._links = driver.links()
        self._down: dict[int, Exception] = {}
        self._answers: deque[Answer] = deque()
        self._awaited = 0
        self._waiter: asyncio.Future[None] | None = None

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        nonce = next_nonce()
        packed = pack(call, nonce)
        for node in nodes:
            self._awaited += 1
            link = self._links.get(node)
            if link is None:
                self.hear(Answer(node, call, self._down.get(node) or NodeDownError("its connection broke")))
            else:
                link.send(packed, nonce, call, self)

    def hear(self, answer: Answer) -> None:
        """Take what a link has received."""
        self._awaited -= 1
        self._answers.append(answer)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self, until: float) -> Answer | None:
        if not self._answers and self._awaited and (left := until - self._driver.now()) > 0:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(left, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self._answers.popleft() if self._answers else None

    async def __aenter__(self) -> Talk:
        closed = [node for node in range(self._driver.size) if self._links.get(node) is None]
        if closed:
            opened = await asyncio.gather(*map(self._links.open, closed), return_exceptions=True)
            for node, error in zip(closed, opened, strict=True):
                if isinstance(error, redis.RedisError):
                    self._down[node] = error
                elif error is not None:
                    raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class AsyncQuorumDriver(SiteDriver, AsyncDriver):
    """Awaits real asyncio I/O; the owner is the running task."""

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, Links] = WeakKeyDictionary()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def conversation(self) -> Talk:
        return Talk(self)

    def links(self) -> Links:
        """The running loop's; they end with its pools."""
        loop = asyncio.get_running_loop()
        links = self._links.get(loop)
        if links is None:
            drop_closed_loops(self._links)
            links = self._links[loop] = Links(self)
        return links

    async def connect(self, node: int) -> Link:
        """A new link, on a connection of the running loop's pool."""
        pool: Any = await async_pool((self.site.aliases[node], None))
        try:
            async with asyncio.timeout(4 * self.timeout):
                return await self._introduced(node, await pool.get_connection(), pool)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if not isinstance(error, redis.exceptions.MaxConnectionsError):
                self.site.note_down(node, error)
            raise NodeDownError(str(error)) from error

    async def _introduced(self, node: int, connection: Any, pool: Any) -> Link:
        try:
            await connection.send_command(*WHO_ARE_YOU)
            info = await connection.read_response(disable_decoding=True)
            self.census.meet(node, *identity(info), self.now())
        except BaseException:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        return Link(node, connection, pool)


@once
def quorum_driver(using: str) -> AsyncQuorumDriver:
    """The driver for callers in asyncio tasks."""
    return AsyncQuorumDriver(using)


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        quorum_driver.cache_clear()


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.drivers.quorum_aio")
# What a loop of the parent has open is not the child's.
os.register_at_fork(after_in_child=quorum_driver.cache_clear)
