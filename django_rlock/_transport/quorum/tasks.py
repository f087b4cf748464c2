"""RedLock's nodes for asyncio: one connection to each, shared by all tasks of a loop; replies are counted on
arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core.clock import monotonic
from django_rlock._core.errors import is_reply_that_ends_connection
from django_rlock._core.foreign import server_error
from django_rlock._core.threads import Sleep
from django_rlock._redis.scripts import Script
from django_rlock._transport.async_connection import TaskConnection
from django_rlock._transport.async_pool import TASKS, connections_of
from django_rlock._transport.calls import next_nonce, pack
from django_rlock._transport.connection import ErrorReply, gone_silently
from django_rlock._transport.pool import KEEP_IDLE
from django_rlock._transport.quorum.nodes import ASK_WHO_IT_IS, POLLIN, new_poll, node_set
from django_rlock._transport.quorum.votes import Answer, Count, QuorumCall, may_ask_again


class _NodeSlot:
    """Hands the reply of one node to the session that sent the call."""

    __slots__ = ("call", "connection", "node", "session")

    # After an interruption it may get an error too, but only a node's first vote counts.
    done = staticmethod(bool)
    """Always False."""

    def __init__(self, node: int, connection: TaskConnection | None, call: QuorumCall, session: TaskSession) -> None:
        self.node = node
        self.connection = connection
        self.call = call
        self.session = session

    def set_result(self, reply: Any, /) -> None:
        if type(reply) is list:
            self.session.hear(self, reply)
        else:
            self.session.hear_failure(self, reply)


class TaskSession:
    """A session with the nodes; see ``votes.Session``. Replies that come after its end are dropped.

    Calls on one connection are executed in order: a late grant is followed by the release that undoes it.
    """

    def __init__(self, transport: TaskTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._connections: list[TaskConnection | None] = []
        self._down: dict[int, Exception] = {}
        self._awaited: set[_NodeSlot] = set()
        self._to_repeat: dict[int, list[QuorumCall]] = {}
        self._asked_again: set[int] = set()
        self._connecting: list[asyncio.Task[None]] = []
        self._answers: deque[Answer] = deque()
        self._count: Count | None = None
        self._error: Exception | None = None
        self._until = 0.0
        self._sleep: Sleep
        self._timer: asyncio.TimerHandle | None = None

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        nonce = next_nonce()
        packed = pack(call, nonce)
        expected = nonce, call.script
        for node in nodes:
            if node in self._to_repeat:  # after the calls before it
                self._to_repeat[node].append(call)
            else:
                self._send(node, call, packed, expected)

    def _send(self, node: int, call: QuorumCall, packed: bytes, expected: tuple[bytes, Script]) -> None:
        connection = self._connections[node]
        slot = _NodeSlot(node, connection, call, self)
        self._awaited.add(slot)
        if connection is not None and connection.is_open:
            connection.send(packed, expected, slot)
        else:
            slot.set_result(self._down.get(node) or RedisConnectionError("Its connection broke"))

    def hear(self, slot: _NodeSlot, reply: list[Any] | Exception) -> None:
        """Take a reply from a connection. It is counted here, so that the task is woken once, when enough have come."""
        answer = Answer(slot.node, slot.call, reply)
        if self._count is None:
            self._answers.append(answer)
            self._awaited.discard(slot)
            return
        try:
            enough = self._count(answer)
        except Exception as error:  # noqa: BLE001 - meant for the task that listens, not for the connection
            self._error, enough = error, True
        self._awaited.discard(slot)  # not before: an interruption would leave nothing that is asked again
        if enough or not (self._awaited or self._to_repeat):
            self._wake()

    def hear_failure(self, slot: _NodeSlot, reply: Exception) -> None:
        """The same for an error: repeat the call if that may help."""
        connection = slot.connection
        if isinstance(reply, ErrorReply) and connection is not None:
            if str(reply).startswith("NOSCRIPT"):
                if connection.is_open:
                    nonce = next_nonce()
                    connection.send(pack(slot.call, nonce, with_source=True), (nonce, slot.call.script), slot)
                else:
                    slot.set_result(RedisConnectionError("Its connection broke"))
                return
            reply = server_error(str(reply))
            if is_reply_that_ends_connection(reply):
                self._transport.nodes.note_error(slot.node, reply)
                connection.break_off(reply)  # which gives it to this slot, too
                return
        if not self._will_ask_again(slot, reply):
            self.hear(slot, reply)

    def _will_ask_again(self, slot: _NodeSlot, error: Exception) -> bool:
        """Note a call whose connection broke, or was refused; whether it will be sent over a new one, once in a
        session. Meanwhile the other nodes vote."""
        if slot not in self._awaited:  # it was noted before, or the session is over
            return True
        node = slot.node
        if node in self._asked_again or not may_ask_again(error):
            return False
        self._awaited.discard(slot)
        # If the new one fails, this remains the reason: NodeDownError would deny that the call was ever sent.
        self._down[node] = error
        if node not in self._to_repeat:
            self._to_repeat[node] = []
            self._connecting.append(self._loop.create_task(self._ask_again(node)))
        self._to_repeat[node].append(slot.call)
        return True

    async def _ask_again(self, node: int) -> None:
        try:
            await self._open(node)
        except Exception as error:  # noqa: BLE001 - such as two names of one server; for the task that listens
            self._error = error
        self._connections = self._transport.connections(self._loop)
        self._asked_again.add(node)
        for call in self._to_repeat[node]:
            call.sends += 1
            nonce = next_nonce()
            self._send(node, call, pack(call, nonce), (nonce, call.script))
        del self._to_repeat[node]  # not before: while there are some, no other answer is the last one
        if self._error is not None or not (self._awaited or self._to_repeat):
            self._wake()

    def _wake(self) -> None:
        """Wake the task, if it listens."""
        if self._count is not None:
            self._sleep.end()
            self._count = None

    async def listen(self, count: Count, until: float) -> None:
        self._until = until
        if not self._has_heard_enough(count):
            self._sleep = Sleep(self._loop)
            self._count = count
            try:
                # Also when the time is up: the loop reads first what has arrived while it was blocked.
                await self._sleep.until_end(self._until - monotonic())
            finally:
                self._count = None
                if self._timer is not None:
                    self._timer.cancel()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame

    def _has_heard_enough(self, count: Count) -> bool:
        """Count the answers that arrived before this call; returns whether the caller can go on without sleeping."""
        while self._answers:
            if count(self._answers.popleft()):
                return True
        return self._error is not None or not (self._awaited or self._to_repeat)

    def end_by(self, until: float) -> None:
        self._until = until
        if self._count is not None:
            self._timer = self._loop.call_later(until - monotonic(), self._sleep.end)

    async def __aenter__(self) -> TaskSession:
        self._connections = self._transport.connections(self._loop)
        closed = [node for node, connection in enumerate(self._connections) if connection is None]
        if closed:
            await TASKS.gather([self._open(node) for node in closed])
            self._connections = self._transport.connections(self._loop)
        return self

    async def _open(self, node: int) -> None:
        try:
            await self._transport.open(node)
        except RedisError as error:
            self._down.setdefault(node, error)

    async def __aexit__(self, *_: object) -> None:
        self._awaited.clear()
        for each in self._connecting:
            each.cancel()


class TaskTransport:
    """How the tasks of all loops reach the nodes of an alias; see ``votes.QuorumTransport``."""

    def __init__(self, using: str) -> None:
        self.nodes = node_set(using)
        self._servers = [self.nodes.server(node, "calls") for node in self.nodes.numbers]

    def session(self) -> TaskSession:
        return TaskSession(self)

    def connections(self, loop: asyncio.AbstractEventLoop) -> list[TaskConnection | None]:
        """The running loop's open connection to each node; a connection without a reply in time is given up."""
        shared = connections_of(loop).shared
        found = [shared.get(server) for server in self._servers]
        recently = monotonic() - self.nodes.timeout
        for each in found:
            if each is None or not (each.is_open and each.is_introduced and each.heard_at >= recently):
                break
        else:
            return found  # if one has ended since then, sending the call finds that, and the node is asked again
        _read_what_arrived(found)
        now = monotonic()
        return [each and self._usable(node, each, now) for node, each in enumerate(found)]

    def _usable(self, node: int, connection: TaskConnection, now: float) -> TaskConnection | None:
        if not connection.is_open or not connection.is_introduced:
            return None
        since = connection.silent_since()
        if since is None:
            if now - connection.heard_at <= KEEP_IDLE:
                return connection
            connection.break_off(gone_silently())  # a vote has no time to wait for a connection that may be gone
        elif now <= since + self.nodes.timeout:
            return connection
        else:
            error = RedisTimeoutError("did not reply in time")
            self.nodes.note_down(node, error)
            connection.break_off(error)
        return None

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
            raise self.nodes.unreachable(node, error) from error

    async def _connect(self, node: int) -> None:
        connections = connections_of(asyncio.get_running_loop())
        connection = connections.shared.get(self._servers[node])
        if connection is None or not connection.is_open:
            if connection is not None:
                self.nodes.note_lost_connection()
            within = self.nodes.connect_within
            connection = await connections.get(self._servers[node], within, within)
        if not connection.is_introduced:
            try:
                self.nodes.meet(node, *await connection.ask_all(ASK_WHO_IT_IS, 1, self.nodes.connect_within))
            except Exception as error:
                connection.break_off(error)
                raise
            connection.is_introduced = True


def _read_what_arrived(connections: Iterable[TaskConnection | None]) -> None:
    """Read what the loop has not read yet, because it was blocked: connections may have ended, or late replies come."""
    poll = new_poll()
    readable: dict[int, TaskConnection] = {}
    for connection in connections:
        if connection is not None and connection.is_open:
            if connection.connection.is_plain:
                readable[connection.fileno] = connection
                poll.register(connection.fileno, POLLIN)
            else:  # what TLS has decrypted already makes no socket readable
                connection.read()
    for fileno, _ in poll.poll(0):
        readable[fileno].read()
