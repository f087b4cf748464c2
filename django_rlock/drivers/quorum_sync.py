"""RedLock's nodes for threads: one connection to each, all read by the same poll, so they work at the same time."""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
from django.core.signals import setting_changed

from django_rlock.drivers.base import check_nonce, next_nonce, pack
from django_rlock.drivers.census import WHO_ARE_YOU, identity
from django_rlock.drivers.quorum import Answer, NodeDownError, QuorumCall
from django_rlock.drivers.quorum_site import SiteDriver
from django_rlock.drivers.sync import SyncDriver
from django_rlock.exceptions import RLockError
from django_rlock.once import once


class Link:
    """A connection to a node, and the nonces and calls whose replies are still to come on it, in their order."""

    __slots__ = ("_poll", "connection", "fileno", "node", "owed", "since")

    def __init__(self, node: int, connection: Any) -> None:
        self.node = node
        self.connection = connection
        self.fileno: int = connection._sock.fileno()  # noqa: SLF001 - redis-py has no other way to wait for several
        self.owed: deque[tuple[bytes, QuorumCall, Talk]] = deque()
        self.since = 0.0
        self._poll = select.poll()
        self._poll.register(self.fileno, select.POLLIN)

    @property
    def has_reply(self) -> bool:
        return bool(self.connection.can_read(0))

    def identity(self) -> tuple[str, int]:
        """The run id and the uptime of the server that it leads to."""
        self.connection.send_command(*WHO_ARE_YOU)
        return identity(self.connection.read_response(disable_decoding=True))

    def send(self, packed: bytes, nonce: bytes, call: QuorumCall, talk: Talk) -> None:
        self.connection.send_packed_command([packed], check_health=False)
        self.since = time.monotonic()
        self.owed.append((nonce, call, talk))

    def send_source(self, call: QuorumCall, talk: Talk) -> None:
        """Send a call again, to a node that does not know its script."""
        nonce = next_nonce()
        self.send(pack(call, nonce, "EVAL"), nonce, call, talk)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing came unasked, as the connection's end would."""
        return not self._poll.poll(0)


class Talk:
    """A conversation with the nodes; see ``quorum.Conversation``.

    A slow node may still owe a reply when the conversation ends. The next conversation on its connection reads what is
    not meant for it before its own: a late grant is followed there by the release that undoes it.
    """

    def __init__(self, driver: SyncQuorumDriver) -> None:
        self._driver = driver
        self._links: dict[int, Link] = {}
        self._answers: deque[Answer] = deque()
        self._poll = select.poll()

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        nonce = next_nonce()
        packed = pack(call, nonce)
        for node in nodes:
            self._send(node, call, nonce, packed)

    def _send(self, node: int, call: QuorumCall, nonce: bytes, packed: bytes) -> None:
        try:
            link = self._links.get(node) or self._join(node)
            link.send(packed, nonce, call, self)
        except (redis.RedisError, OSError, AttributeError) as error:
            self._answers.append(Answer(node, call, error))
            self._part(node, error)

    def _join(self, node: int) -> Link:
        link = self._links[node] = self._driver.take_link(node)
        self._poll.register(link.fileno, select.POLLIN)
        return link

    def _part(self, node: int, error: Exception) -> None:
        """Give a connection up, and with it the replies that it still owes."""
        link = self._links.pop(node, None)
        if link is not None:
            self._poll.unregister(link.fileno)
            self._driver.drop_link(link)
            self._answers += (Answer(node, call, error) for _, call, talk in link.owed if talk is self)

    async def receive(self, until: float) -> Answer | None:
        while not self._answers:
            left = until - self._driver.now()
            if left <= 0 or not any(link.owed for link in self._links.values()):
                return None
            ready = {fileno for fileno, _ in self._poll.poll(math.ceil(left * 1000))}
            for link in [link for link in self._links.values() if link.fileno in ready]:
                self._read(link)
        return self._answers.popleft()

    def _read(self, link: Link) -> None:
        try:
            while link.owed:
                call, talk, reply = read_reply(link)
                if isinstance(reply, redis.exceptions.NoScriptError):
                    link.send_source(call, talk)
                elif talk is self:
                    self._answers.append(Answer(link.node, call, reply))
                if not link.owed or not link.has_reply:
                    return
            raise redis.ConnectionError("The server closed the connection.")
        except (redis.RedisError, OSError, AttributeError) as error:
            self._part(link.node, error)

    async def __aenter__(self) -> Talk:
        try:
            for node in range(self._driver.size):
                with suppress(redis.RedisError):  # which is told when it is asked
                    self._join(node)
        except BaseException:
            self._give_back_links(as_they_are=False)
            raise
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Anything unforeseen, as an exception that a signal raised, may have stopped a reply half way.
        self._give_back_links(as_they_are=error is None or isinstance(error, RLockError))

    def _give_back_links(self, as_they_are: bool) -> None:
        for link in self._links.values():
            if as_they_are:
                self._driver.keep_link(link)
            else:
                self._driver.drop_link(link)


def read_reply(link: Link) -> tuple[QuorumCall, Talk, Any]:
    """The next reply on a connection, and what it answers."""
    nonce, call, talk = link.owed[0]
    reply: Any
    try:
        reply = check_nonce(link.connection.read_response(disable_decoding=True), nonce)
    except redis.ResponseError as refused:
        reply = refused
    link.owed.popleft()
    return call, talk, reply


class SyncQuorumDriver(SiteDriver, SyncDriver):
    """Blocks, for threads, greenlets and the background thread."""

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._kept: list[list[Link]] = [[] for _ in self.site.pools]

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def conversation(self) -> Talk:
        return Talk(self)

    def take_link(self, node: int) -> Link:
        """A connection that nobody uses; the replies that it owes are read or on their way.

        The driver keeps them itself: redis-py's pool takes longer to give one out and back than a node to answer.
        """
        while self._kept[node]:
            try:
                link = self._kept[node].pop()
            except IndexError:  # another thread took it
                break
            if self._is_alive(link):
                return link
        self.site.require_up(node)
        try:
            return self._introduced(Link(node, self.site.pools[node].get_connection()))
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if not isinstance(error, redis.exceptions.MaxConnectionsError):
                self.site.note_down(node, error)
            raise NodeDownError(str(error)) from error

    def _introduced(self, link: Link) -> Link:
        try:
            self.census.meet(link.node, *link.identity(), self.now())
        except BaseException:
            self.drop_link(link)
            raise
        return link

    def _is_alive(self, link: Link) -> bool:
        try:
            while link.owed and link.has_reply:
                call, talk, reply = read_reply(link)
                if isinstance(reply, redis.exceptions.NoScriptError):
                    link.send_source(call, talk)
        except (redis.RedisError, OSError, AttributeError):
            self.drop_link(link)
            return False
        if not link.owed and not (link.is_quiet and self.site.is_up(link.node)):
            self.drop_link(link)
            return False
        if link.owed and self.now() > link.since + self.timeout:
            self.drop_link(link)
            self.site.note_down(link.node, redis.TimeoutError("did not answer in time"))
            return False
        return True

    def keep_link(self, link: Link) -> None:
        self._kept[link.node].append(link)

    def drop_link(self, link: Link) -> None:
        link.connection.disconnect()
        self.site.pools[link.node].release(link.connection)


@once
def quorum_driver(using: str) -> SyncQuorumDriver:
    """The driver for threads, the background one included."""
    return SyncQuorumDriver(using)


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        quorum_driver.cache_clear()


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.drivers.quorum_sync")
os.register_at_fork(after_in_child=quorum_driver.cache_clear)
