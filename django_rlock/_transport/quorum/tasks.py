"""RedLock's nodes for asyncio: one connection to each, shared by all tasks of a loop; replies are counted on
arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core.clock import monotonic
from django_rlock._core.text import reason_of
from django_rlock._core.threads import Sleep, sleep
from django_rlock._transport.async_connection import TaskConnection
from django_rlock._transport.async_pool import TASKS, connections_of
from django_rlock._transport.calls import is_down, next_nonce, pack, pack_command
from django_rlock._transport.connection import ErrorReply, gone_silently
from django_rlock._transport.errors import is_reply_that_ends_connection, server_error
from django_rlock._transport.pool import KEEP_IDLE
from django_rlock._transport.quorum.nodes import node_set
from django_rlock._transport.quorum.votes import (
    WHO_ARE_YOU,
    Answer,
    Count,
    NodeDownError,
    QuorumCall,
    may_ask_again,
    run_id_in,
)


class _Slot:
    """Hands the reply of one node to the conversation that sent the call."""

    __slots__ = ("_call", "_connection", "_node", "_session")

    def __init__(self, node: int, connection: TaskConnection | None, call: QuorumCall, session: Session) -> None:
        self._node = node
        self._connection = connection
        self._call = call
        self._session = session

    def done(self) -> bool:
        """Never: after an interruption it may get an error too, but only a node's first vote counts."""
        return False

    def send(self, packed: bytes, nonce: bytes, down: Exception | None) -> None:
        """Send the call. ``down`` is the error that prevented a connection."""
        if self._connection is None or not self._connection.is_open:
            self.set_result(down or RedisConnectionError("Its connection broke"))
        else:
            self._connection.send(packed, (nonce, self._call.script), self)

    def set_result(self, reply: Any, /) -> None:
        if isinstance(reply, ErrorReply):
            if str(reply).startswith("NOSCRIPT"):
                nonce = next_nonce()
                self.send(pack(self._call, nonce, with_source=True), nonce, None)
                return
            reply = server_error(str(reply))
            if is_reply_that_ends_connection(reply) and self._connection is not None:
                self._session.note_error(self._node, reply)
                self._connection.break_off(reply)  # which gives it to this slot, too
                return
        if isinstance(reply, Exception) and self._session.will_ask_again(self, self._node, self._call, reply):
            return
        self._session.hear(self, Answer(self._node, self._call, reply))


class Session:
    """A conversation with the nodes; see ``votes.Conversation``. Replies that come after its end are dropped.

    Calls on one connection are executed in order: a late grant is followed by the release that undoes it.
    """

    def __init__(self, sessions: TaskSessions) -> None:
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._connections: list[TaskConnection | None] = []
        self._down: dict[int, Exception] = {}
        self._awaited: set[_Slot] = set()
        self._to_repeat: dict[int, list[QuorumCall]] = {}
        self._asked_again: set[int] = set()
        self._connecting: list[asyncio.Task[None]] = []
        self._answers: deque[Answer] = deque()
        self._count: Count | None = None
        self._error: Exception | None = None
        self._sleep: Sleep

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        nonce = next_nonce()
        packed = pack(call, nonce)
        for node in nodes:
            if node in self._to_repeat:  # after the calls before it
                self._to_repeat[node].append(call)
            else:
                self._send(node, call, packed, nonce)

    def _send(self, node: int, call: QuorumCall, packed: bytes, nonce: bytes) -> None:
        slot = _Slot(node, self._connections[node], call, self)
        self._awaited.add(slot)
        slot.send(packed, nonce, self._down.get(node))

    def hear(self, slot: _Slot, answer: Answer) -> None:
        """Take an answer from a connection. It is counted here, so that the task is woken once, when enough have
        come."""
        self._answers.append(answer)
        self._awaited.discard(slot)
        self._end_if_enough()

    def will_ask_again(self, slot: _Slot, node: int, call: QuorumCall, error: Exception) -> bool:
        """Note a call whose connection broke, or was refused; whether it will be sent over a new one, once in a
        conversation. Meanwhile the other nodes vote."""
        if slot not in self._awaited:  # it was noted before, or the conversation is over
            return True
        if node in self._asked_again or not may_ask_again(error):
            return False
        self._awaited.discard(slot)
        # If the new one fails, this remains the reason: NodeDownError would deny that the call was ever sent.
        self._down[node] = error
        if node not in self._to_repeat:
            self._to_repeat[node] = []
            self._connecting.append(self._loop.create_task(self._ask_again(node)))
        self._to_repeat[node].append(call)
        return True

    async def _ask_again(self, node: int) -> None:
        try:
            await self._open(node)
        except Exception as error:  # noqa: BLE001 - such as two names of one server; for the task that listens
            self._error = error
        self._connections = self._sessions.connections(self._loop)
        self._asked_again.add(node)
        for call in self._to_repeat[node]:
            call.sends += 1
            nonce = next_nonce()
            self._send(node, call, pack(call, nonce), nonce)
        del self._to_repeat[node]  # not before: while there are some, no other answer is the last one
        self._end_if_enough()

    def note_error(self, node: int, error: Exception) -> None:
        """Let others learn of an error that concerns their connections to a node as well."""
        self._sessions.nodes.note_error(node, error)

    def _end_if_enough(self) -> None:
        count = self._count
        if count is not None and self._is_enough(count):
            self._sleep.end()
            self._count = None

    def _is_enough(self, count: Count) -> bool:
        """Count the answers that have come; returns whether there is nothing more to listen for."""
        try:
            return self._decides(count) or not (self._awaited or self._to_repeat)
        except Exception as error:  # noqa: BLE001 - meant for the task that listens, not for the connection
            self._error = error
            return True

    def _decides(self, count: Count) -> bool:
        while self._answers:
            if count(self._answers.popleft()):
                return True
        return False

    async def listen(self, count: Count, until: float) -> None:
        if not self._is_enough(count):
            self._sleep = Sleep(self._loop)
            self._count = count
            try:
                # Also when the time is up: the loop reads first what has arrived while it was blocked.
                await self._sleep.until_end(until - monotonic())
            finally:
                self._count = None
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame

    async def __aenter__(self) -> Session:
        self._connections = self._sessions.connections(self._loop)
        closed = [node for node, connection in enumerate(self._connections) if connection is None]
        if closed:
            await self._open_all(closed)
        return self

    async def _open_all(self, nodes: Iterable[int]) -> None:
        await TASKS.gather([self._open(node) for node in nodes])
        self._connections = self._sessions.connections(self._loop)

    async def _open(self, node: int) -> None:
        try:
            await self._sessions.open(node)
        except RedisError as error:
            self._down.setdefault(node, error)

    async def __aexit__(self, *_: object) -> None:
        self._awaited.clear()
        for each in self._connecting:
            each.cancel()


class TaskSessions:
    """How the tasks of all loops reach the nodes of an alias; see ``votes.QuorumTransport``."""

    now = staticmethod(monotonic)
    sleep = staticmethod(sleep)

    def __init__(self, using: str) -> None:
        self.nodes = node_set(using)
        self.names = self.nodes.names
        self.timeout = self.nodes.timeout
        self.restarts = self.nodes.restarts
        self.proposals = self.nodes.proposals
        self._servers = [self.nodes.server(node, "calls") for node in range(len(self.names))]
        self._introduced: WeakSet[TaskConnection] = WeakSet()

    @property
    def lost_connections(self) -> bool:
        return self.nodes.lost_connections

    def conversation(self) -> Session:
        return Session(self)

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        self.nodes.send_later(undo, nodes)

    def connections(self, loop: asyncio.AbstractEventLoop) -> list[TaskConnection | None]:
        """The running loop's open connection to each node; a connection without a reply in time is given up."""
        shared, now = connections_of(loop).shared, self.now()
        return [self._usable(node, shared.get(server), now) for node, server in enumerate(self._servers)]

    def _usable(self, node: int, connection: TaskConnection | None, now: float) -> TaskConnection | None:
        if connection is None or not connection.is_open or connection not in self._introduced:
            return None
        # While the loop was blocked, the connection may have ended, or replies may have arrived.
        if not connection.read():
            return None
        if connection.was_idle(now, KEEP_IDLE):  # a vote has no time to wait for a connection that may be gone
            connection.break_off(gone_silently())
            return None
        since = connection.silent_since()
        if since is not None and now > since + self.timeout:
            error = RedisTimeoutError("did not reply in time")
            self.nodes.note_down(node, error)
            connection.break_off(error)
            return None
        return connection

    async def open(self, node: int) -> None:
        """Connect to a node, unless another task already has; raises NodeDownError when that fails."""
        self.nodes.require_up(node)
        try:
            try:
                await self._connect(node)
            except RedisConnectionError:
                # A connection that ended does not prove that the node is down.
                await self._connect(node)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            if self._servers[node].may_grow:
                self.nodes.note_down(node, error)
            raise NodeDownError(reason_of(error), is_down(error)) from error

    async def _connect(self, node: int) -> None:
        connections = connections_of(asyncio.get_running_loop())
        connection = connections.shared.get(self._servers[node])
        if connection is None or not connection.is_open:
            if connection is not None:
                self.nodes.note_lost_connection()
            connection = await connections.get(self._servers[node], self.nodes.connect_within)
        if connection not in self._introduced:
            await self._introduce(node, connection)

    async def _introduce(self, node: int, connection: TaskConnection) -> None:
        """Identify the server that a connection leads to."""
        try:
            (info,) = await connection.ask_all(pack_command(*WHO_ARE_YOU), 1, self.nodes.connect_within)
            self.restarts.meet(node, run_id_in(info))
        except Exception as error:
            connection.break_off(error)
            raise
        self._introduced.add(connection)
        self.nodes.note_up(node)
