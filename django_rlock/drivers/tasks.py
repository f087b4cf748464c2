"""The face for asyncio: one link to each server carries the commands of all tasks of a loop.

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

from django_rlock import threads
from django_rlock.drivers.base import monotonic
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.identity import task_owner
from django_rlock.drivers.retrying import SHORTEST
from django_rlock.drivers.threads import let_go
from django_rlock.links.link import Link, demotion_in, replies_of
from django_rlock.links.server import LinkWait, Server
from django_rlock.links.tasks import TaskLink
from django_rlock.process import Owned
from django_rlock.redis_internals import error_from

T = TypeVar("T")

_MOST_HELPERS = 8
"""How many threads of a process call functions for tasks, at most."""
_helpers: Owned[threads.Helpers] = Owned("drivers", partial(threads.Helpers, _MOST_HELPERS), outlives_settings=True)

_LOOK_AGAIN = 0.05
"""How often a task checks for a free connection by itself, in seconds."""


class LoopLinks:
    """The links of one event loop, which are given back when the loop ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.shared: dict[Server, TaskLink] = {}
        self._opening: dict[Server, asyncio.Future[TaskLink]] = {}
        self._lifeline: AsyncGenerator[None] | None = None

    async def get(self, server: Server, limit: float) -> TaskLink:
        """The loop's link to a server; if there is none, one is opened once for all tasks."""
        opening = self._opening.get(server)
        if opening is None or opening.done():  # nobody notes its end if its first caller was interrupted here
            opening = self._opening[server] = asyncio.ensure_future(self._open(server, limit))
            opening.add_done_callback(partial(self._note_opened, server))
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(opening)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout connecting to the server") from error

    def _note_opened(self, server: Server, opened: asyncio.Future[TaskLink]) -> None:
        if self._opening.get(server) is opened:
            del self._opening[server]
        if not opened.cancelled():
            opened.exception()  # all tasks that waited for it may have left

    async def _open(self, server: Server, limit: float) -> TaskLink:
        if self._lifeline is None:
            # asyncio.run(), asgiref and the ASGI servers close a loop's async generators before they close the loop.
            self._lifeline = self._end_with_loop()
            await anext(self._lifeline)
        link = await take_link(server, limit)
        opened = self.shared[server] = TaskLink(link, self.loop)
        return opened

    async def _end_with_loop(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            _loops.value.pop(self.loop, None)
            self.give_back()

    def give_back(self) -> None:
        """Return the links to their servers, for the next loop or for threads."""
        while self.shared:
            server, shared = self.shared.popitem()
            if shared.is_open and not shared.owes:
                detach(server, shared)
            else:
                shared.break_off(RedisTimeoutError("The event loop has ended"))


def _give_all_back(loops: dict[asyncio.AbstractEventLoop, LoopLinks]) -> None:
    for links in list(loops.values()):
        with contextlib.suppress(RuntimeError):  # the loop was closed
            links.loop.call_soon_threadsafe(links.give_back)


_loops: Owned[dict[asyncio.AbstractEventLoop, LoopLinks]] = Owned("connections", dict, stop=_give_all_back)


def links_of(loop: asyncio.AbstractEventLoop) -> LoopLinks:
    """The links of a loop, made on first use."""
    known = _loops.value.get(loop)
    if known is None:
        _drop_closed_loops()
        known = _loops.value[loop] = LoopLinks(loop)
    return known


def _drop_closed_loops() -> None:
    """Forget loops that were closed without their async generators being closed."""
    for loop, links in _loops.value.copy().items():
        if loop.is_closed():
            _loops.value.pop(loop, None)
            links.give_back()


class LoopBell:
    """Wakes the one task that waits for it, from any thread. One ring is kept until it is used.

    asyncio.Event takes a mutex of all loops when a task first waits for it, and a signal may leave that locked.
    """

    __slots__ = ("_loop", "_sleep", "has_rung")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleep: asyncio.Future[None] | None = None
        self.has_rung = False

    def ring(self) -> None:
        self.call(self.ring_here)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the bell's loop."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(function)

    def ring_here(self) -> None:
        """Ring it in its loop."""
        self.has_rung = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it rings (True) or for ``timeout`` seconds (False); None means no time limit."""
        if not self.has_rung:
            self._sleep = self._loop.create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._sleep
            except TimeoutError:
                return False
        self.has_rung = False
        return True


async def take_link(server: Server, limit: float) -> Link:
    """Return an idle or a new link, within ``limit`` seconds. Raises what redis-py raises if it cannot connect."""
    link = server.take_idle()
    if link is not None:
        return link
    bell = LoopBell()
    claim = LinkWait(bell.ring)
    try:
        return await _await(server, claim, bell, monotonic() + limit)
    finally:
        server.forget(claim)


async def _await(server: Server, claim: LinkWait, bell: LoopBell, until: float) -> Link:
    while True:
        opens = server.ask_for(claim)
        left = until - monotonic()
        if left <= 0:
            raise server.none_in_time(opens)
        await bell.wait(left if opens else min(left, _LOOK_AGAIN))
        if claim.error is not None:
            raise claim.error
        link = server.take_idle()
        if link is not None:
            return link


def detach(server: Server, link: TaskLink) -> None:
    """Return a link that owes no reply to its server."""
    link.release()
    link.link.block()
    link.link.used_at = monotonic()
    server.give_back(link.link)


class TaskFace:
    """The face for asyncio: it awaits, and the owner is the running task."""

    owner = staticmethod(task_owner)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        # Not by to_thread(): to start its thread, the loop takes a mutex shared by the executors of all threads.
        bell = LoopBell()
        call = threads.Call(partial(function, *args), bell.ring)
        _helpers.value.take(call)
        await bell.wait()
        return call.result()

    async def gather(self, coros: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return await asyncio.gather(*coros)

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        limit = min(limit, server.reply_limit)
        links = links_of(asyncio.get_running_loop())
        link = links.shared.get(server)
        if link is None or not link.is_open:
            started = monotonic()
            link = await links.get(server, limit)
            limit = max(limit - (monotonic() - started), SHORTEST)
        call.sends += 1
        try:
            reply = await link.ask(packed, nonce, limit)
        except RedisConnectionError as broken:
            let_go(server, link.link, broken)
            raise
        if type(reply) is list:
            return reply
        error = error_from(str(reply))
        if demotion_in([error]):
            link.break_off(error)
        raise error

    async def converse(self, server: Server, packed: bytes, nonces: Sequence[bytes | None], limit: float) -> list[Any]:
        limit = min(limit, server.reply_limit)
        link = TaskLink(await take_link(server, limit), asyncio.get_running_loop())
        try:
            replies = await link.ask_all(packed, len(nonces), limit)
            checked = replies_of(replies, nonces)
        except BaseException as error:
            link.break_off(error if isinstance(error, Exception) else RedisTimeoutError("It was interrupted"))
            raise
        if demotion := demotion_in(checked):
            link.break_off(demotion)
        else:
            detach(server, link)
        return checked


TASKS = TaskFace()
