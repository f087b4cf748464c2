"""The connections of an event loop, and how its tasks use them: one to each server carries the commands of all tasks.

Renewal and clean-up run in background threads, so a loop that is blocked for a while does not lose its locks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import connection_end_in, ends_connection
from django_rlock._core.foreign import server_error
from django_rlock._core.process import Owned
from django_rlock._core.threads import LoopEvent, Sleep, sleep
from django_rlock._transport.async_connection import TaskConnection
from django_rlock._transport.calls import REPLY_GRACE, ScriptCall, next_nonce, pack
from django_rlock._transport.cluster import Address
from django_rlock._transport.connection import Connection, ErrorReply, Expected, replies_of
from django_rlock._transport.identity import task_owner
from django_rlock._transport.pool import SLOT_LOOK_EVERY, ConnectionWait, Server, close_after
from django_rlock._transport.servers import server as server_of
from django_rlock._transport.servers import when_closed

T = TypeVar("T")

_MOST_HELPERS = 8
"""How many threads of a process call functions for tasks, at most."""
_helpers: Owned[threads.Helpers] = Owned("drivers", partial(threads.Helpers, _MOST_HELPERS), outlives_settings=True)


class LoopConnections:
    """The connections of one event loop, which owns them: they are released when the loop ends, and collected with it
    if the project drops it without closing it. ``group`` is the process's group to which they belong.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.group = _loops.value
        self.shared: dict[Server, TaskConnection] = {}
        self._opening: dict[Server, tuple[asyncio.Future[TaskConnection], TaskConnectionWait]] = {}
        self._lifeline: AsyncGenerator[None] | None = None

    async def get(self, server: Server, limit: float, grace: float = 0.0) -> TaskConnection:
        """The loop's connection to a server; if there is none, one is opened once for all tasks. ``limit`` and
        ``grace`` are those of ``Server.take``."""
        until = monotonic() + limit
        known = self._opening.get(server)
        if known is None or known[0].done():  # nobody notes its end if its first caller was interrupted here
            wait = TaskConnectionWait()
            opening: asyncio.Future[TaskConnection] = asyncio.ensure_future(self._open(server, limit, grace, wait))
            known = self._opening[server] = opening, wait
            opening.add_done_callback(partial(self._note_opened, server))
        opening, wait = known
        while not opening.done():
            left = wait.left(until, grace)
            if left <= 0:
                raise RedisTimeoutError("Timeout connecting to the server")
            await _wait_for(opening, left)
        return opening.result()

    def _note_opened(self, server: Server, opened: asyncio.Future[TaskConnection]) -> None:
        if (known := self._opening.get(server)) and known[0] is opened:
            del self._opening[server]
        if not opened.cancelled():
            opened.exception()  # all tasks that waited for it may have left

    async def _open(self, server: Server, limit: float, grace: float, wait: TaskConnectionWait) -> TaskConnection:
        if self._lifeline is None:
            # asyncio.run(), asgiref and the ASGI servers close a loop's async generators before they close the loop.
            self._lifeline = self._end_with_loop()
            await anext(self._lifeline)
        connection = await take_connection(server, limit, grace, wait)
        known = self.shared.get(server)
        if known is not None and known.is_open:  # the task that opened it was interrupted before it noted that
            server.give_back(connection)
            return known
        opened = self.shared[server] = lend(server, connection, self.loop)
        try:
            opened.attach()
        except BaseException:
            opened.break_off_interrupted()
            raise
        return opened

    async def _end_with_loop(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.give_back()
            self.forget()

    def forget(self) -> None:
        """Let the loop have other connections, if it needs any again."""
        self.group.discard(self)
        if vars(self.loop).get(_OWNED) is self:
            vars(self.loop).pop(_OWNED, None)

    def give_back(self) -> None:
        """Return the connections to their servers, for the next loop or for threads."""
        for server, shared in threads.snapshot(self.shared.items()):
            if shared.is_open and not shared.owes:
                server.give_back(shared.give())
            else:
                shared.break_off(RedisTimeoutError("The event loop has ended"))
            self.shared.pop(server, None)


def _give_all_back(loops: threads.Alive[LoopConnections]) -> None:
    for connections in loops:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            connections.loop.call_soon_threadsafe(connections.give_back)


_OWNED = "_django_rlock_connections"
"""The attribute of a loop that has its connections. A table of the process would keep each loop that the project drops
without closing it."""
_loops: Owned[threads.Alive[LoopConnections]] = Owned(
    "connections", threads.Alive[LoopConnections], stop=_give_all_back
)


def _close_in_loops(using: str, node: Address | None) -> None:
    """Break off the connections of all loops to a server that has become a replica."""
    left = server_of(using, node)
    error = RedisConnectionError("The connection was closed, because its server has become a replica.")
    for connections in _loops.value:
        connection = connections.shared.get(left)
        if connection is not None and connection.is_open:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                connections.loop.call_soon_threadsafe(connection.break_off, error)


when_closed(_close_in_loops)


def connections_of(loop: asyncio.AbstractEventLoop) -> LoopConnections:
    """The connections of a loop, made on first use."""
    known: LoopConnections | None = getattr(loop, _OWNED, None)
    if known is None or known.group is not _loops.value:  # made before a fork, or for other settings
        for connections in _loops.value:
            if connections.loop.is_closed():  # without its async generators being closed
                connections.forget()
                connections.give_back()
        known = LoopConnections(loop)
        setattr(loop, _OWNED, known)
        known.group.add(known)
    return known


def lend(server: Server, connection: Connection, loop: asyncio.AbstractEventLoop) -> TaskConnection:
    """Let a loop use a connection; the server may take it back while the loop does not run."""
    lent = TaskConnection(connection, loop)
    server.lent.add(lent)
    return lent


async def _wait_for(future: asyncio.Future[Any], limit: float) -> None:
    """Wait until it is done, for ``limit`` seconds at most."""
    sleep = Sleep(future.get_loop())
    future.add_done_callback(sleep.end_after)
    try:
        await sleep.until_end(limit)
    finally:
        future.remove_done_callback(sleep.end_after)


class TaskConnectionWait(ConnectionWait):
    """A task that waits for a connection."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = LoopEvent()
        super().__init__(self.event.set)


async def take_connection(
    server: Server, limit: float, grace: float, wait: TaskConnectionWait | None = None
) -> Connection:
    """As ``Server.take``."""
    connection = server.take_idle()
    if connection is not None:
        return connection
    if wait is None:
        wait = TaskConnectionWait()
    try:
        return await _await(server, wait, monotonic() + limit, grace)
    finally:
        server.remove(wait)


async def _await(server: Server, wait: TaskConnectionWait, until: float, grace: float) -> Connection:
    while True:
        opens = server.ask_for(wait)
        # Again, since a connection that was returned before the wait was queued has woken nobody.
        connection = server.take_idle()
        if connection is not None:
            return connection
        left = wait.left(until, grace)
        if left <= 0:
            raise server.none_in_time(opens)
        await wait.event.wait(left if opens else min(left, SLOT_LOOK_EVERY))
        wait.check()
        connection = server.take_idle()
        if connection is not None:
            return connection


class TaskBinding:
    """The binding for asyncio: it awaits, and the owner is the running task."""

    owner = staticmethod(task_owner)
    sleep = staticmethod(sleep)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        # Not by to_thread(): to start its thread, the loop takes a mutex shared by the executors of all threads.
        event = LoopEvent()
        call = threads.Call(partial(function, *args), event.set)
        _helpers.value.take(call)
        await event.wait()
        return call.result()

    async def gather(self, coros: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        # Not by asyncio.gather(), whose callbacks are Python, see ``Sleep``. The first error is raised when all have
        # ended; but a caller that is cancelled does not wait for them.
        tasks = [asyncio.create_task(coro) for coro in coros]
        try:
            outcomes = [await _outcome(task) for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
        return [threads.value_of(outcome) for outcome in outcomes]

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        if not limit <= server.reply_limit:  # min() takes eight times as long
            limit = server.reply_limit
        connections = connections_of(asyncio.get_running_loop())
        connection = connections.shared.get(server)
        if connection is None or not connection.is_open:
            started = monotonic()
            connection = await connections.get(server, limit, REPLY_GRACE)
            limit = server.left_of(limit, started)
        call.sends += 1
        reply = await connection.ask(packed, (nonce, call.template.script), limit)
        if type(reply) is list:
            return reply
        if isinstance(reply, ErrorReply) and str(reply).startswith("NOSCRIPT") and connection.is_open:
            reply = await self._ask_by_source(connection, call, limit)
            if type(reply) is list:
                return reply
        error: Exception = server_error(str(reply)) if isinstance(reply, ErrorReply) else reply
        if ends_connection(error):
            connection.break_off(error)
            close_after(error, server, connection.connection)
        raise error.with_traceback(None)  # it may be others' as well, whose frames it would keep

    async def _ask_by_source(self, connection: TaskConnection, call: ScriptCall, limit: float) -> Any:
        """Send a call over the same connection with its script, as in ``pool``."""
        call.sends += 1
        nonce = next_nonce()
        reply = await connection.ask(pack(call, nonce, with_source=True), (nonce, call.script), limit)
        if type(reply) is list:
            call.sends -= 1  # the first one was certainly not executed
        return reply

    async def converse(self, server: Server, packed: bytes, expected: Sequence[Expected], limit: float) -> list[Any]:
        limit, started = min(limit, server.reply_limit), monotonic()
        connection = lend(server, await take_connection(server, limit, REPLY_GRACE), asyncio.get_running_loop())
        limit = server.left_of(limit, started)
        try:
            return await self._converse(server, connection, packed, expected, limit)
        except BaseException:  # also from a signal handler just before the connection was broken off
            connection.break_off_interrupted()
            raise

    async def _converse(
        self, server: Server, connection: TaskConnection, packed: bytes, expected: Sequence[Expected], limit: float
    ) -> list[Any]:
        try:
            connection.attach()
            replies = replies_of(await connection.ask_all(packed, len(expected), limit), expected)
        except BaseException:
            connection.break_off_interrupted()
            raise
        if end := connection_end_in(replies):
            connection.break_off(end)
            close_after(end, server, connection.connection)
        elif connection.is_open:  # or a signal has interrupted the loop since it read the replies
            server.give_back(connection.give())
        return replies


async def _outcome(task: asyncio.Task[T]) -> T | Exception:
    try:
        return await task
    except Exception as error:  # noqa: BLE001 - for who waits for all of them
        return error


TASKS = TaskBinding()
