"""The face for threads and greenlets, which blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import NoScriptError

from django_rlock import threads
from django_rlock.clock import monotonic
from django_rlock.drivers.base import UNLIMITED, run_sync
from django_rlock.drivers.calls import ScriptCall, next_nonce, pack
from django_rlock.drivers.identity import thread_owner
from django_rlock.drivers.retrying import SHORTEST
from django_rlock.links.errors import ends_link, is_demotion, link_end_in
from django_rlock.links.link import Expected, Link, check_reply, replies_of
from django_rlock.links.server import Server

T = TypeVar("T")


class ThreadFace:
    """Blocks instead of suspending, so ``run_sync`` can run any flow over it."""

    owner = staticmethod(thread_owner)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def gather(self, coros: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        if len(coros) == 1:
            return [await coros[0]]
        outcomes = threads.gather([partial(run_sync, coro) for coro in coros])
        return [value_of(outcome) for outcome in outcomes]

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        limit = min(limit, server.reply_limit)
        link = server.take_idle()
        if link is None:
            link, limit = self._open(server, limit)
        try:
            call.sends += 1
            try:
                reply = check_reply(link.ask(packed, limit), nonce, call.prepared.script)
            except NoScriptError:
                reply = _ask_by_source(link, call, limit)
        except BaseException as error:
            let_go(server, link, error)
            raise
        server.give_back(link)
        return reply

    async def converse(self, server: Server, packed: bytes, expected: Sequence[Expected], limit: float) -> list[Any]:
        limit = min(limit, server.reply_limit)
        link = server.take_idle()
        if link is None:
            link, limit = self._open(server, limit)
        try:
            replies = replies_of(link.ask_all(packed, len(expected), limit), expected)
        except BaseException as error:
            let_go(server, link, error)
            raise
        if end := link_end_in(replies):
            let_go(server, link, end)
        else:
            server.give_back(link)
        return replies

    def _open(self, server: Server, limit: float) -> tuple[Link, float]:
        """A new link, and what is left of the limit."""
        started = monotonic()
        link = server.take(limit)
        return link, max(limit - (monotonic() - started), SHORTEST)


class BackgroundFace(ThreadFace):
    """The face of the package's own threads, which connect directly, because no signal interrupts them.

    No caller waits for them. So connecting and each reply have limits of their own, those of the server: however long
    it took to connect and to try before, a reply has its time.
    """

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        return await super().exchange(server, call, packed, nonce, UNLIMITED)

    def _open(self, server: Server, limit: float) -> tuple[Link, float]:
        return server.open(), limit


def _ask_by_source(link: Link, call: ScriptCall, limit: float) -> list[Any]:
    """Send a call over the same link with its script, which the server said that it does not have.

    That error echoed no nonce. If it was another command's, the next reply is that to the first call, and so is stale.
    """
    call.sends += 1
    nonce = next_nonce()
    left = max(link.used_at + limit - monotonic(), SHORTEST)
    reply = check_reply(link.ask_all(pack(call, nonce, with_source=True), 1, left)[0], nonce, call.script)
    call.sends -= 1  # the first one was certainly not executed
    return reply


def let_go(server: Server, link: Link, error: BaseException) -> None:
    """Close a link after an error, even an error reply: it echoes no nonce, so it may belong to another command."""
    server.drop(link, broken=ends_link(error))
    if is_demotion(error):
        server.leave()


def value_of(outcome: T | BaseException) -> T:
    """Return what a call returned, or raise what it raised."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


THREADS = ThreadFace()
BACKGROUND = BackgroundFace()
