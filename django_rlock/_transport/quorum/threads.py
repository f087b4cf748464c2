"""RedLock's nodes for threads: one connection to each, all read by the same poll, so that they work at the same
time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import is_reply_that_ends_connection
from django_rlock._core.foreign import server_error
from django_rlock._transport.calls import next_nonce, pack
from django_rlock._transport.connection import INCOMPLETE, Connection, ErrorReply, check_reply, stray
from django_rlock._transport.pool import KEEP_IDLE, Server
from django_rlock._transport.quorum.nodes import ASK_WHO_IT_IS, POLLIN, new_poll, node_set
from django_rlock._transport.quorum.votes import Answer, Count, QuorumCall, may_ask_again
from django_rlock.exceptions import RLockError

_POLL_EVERY = 0.001
"""The interval at which a session checks whether a new connection is open, in seconds."""


class NodeConnection:
    """A connection to a node, with the nonces, calls and askers of the replies still to come, in order.

    An asker identifies a session without keeping it alive.
    """

    __slots__ = ("connection", "fileno", "node", "owed", "since")

    def __init__(self, node: int, connection: Connection) -> None:
        self.node = node
        self.connection = connection
        connection.sock.settimeout(0)
        self.fileno = connection.fileno()
        self.owed: deque[tuple[bytes, QuorumCall, object]] = deque()
        self.since = monotonic()

    def send(self, packed: bytes, nonce: bytes, call: QuorumCall, asker: object, limit: float) -> None:
        self.owed.append((nonce, call, asker))  # before it may fail
        self.connection.send_now(packed, limit)
        self.since = monotonic()

    def close(self) -> None:
        self.owed.clear()
        self.connection.close()

    def read(self, limit: float, once: bool = False) -> Iterator[tuple[QuorumCall, object, Any]]:
        """Read what has arrived: all of it, or with ``once`` one piece. Yields the calls, their askers and the replies.

        Raises an error if the connection has ended, or brings stray data. A call whose script the node does not know is
        sent again.
        """
        while self.connection.receive():
            if not self.owed:
                raise stray()
            for reply in iter(self.connection.next_reply, INCOMPLETE):
                if not self.owed:
                    raise stray()
                nonce, call, asker = self.owed.popleft()
                if type(reply) is not ErrorReply:
                    yield call, asker, check_reply(reply, nonce, call.script)
                elif str(reply).startswith("NOSCRIPT"):
                    nonce = next_nonce()
                    self.send(pack(call, nonce, with_source=True), nonce, call, asker, limit)
                else:
                    yield call, asker, server_error(str(reply))
            if once:
                break


class ThreadSession:
    """A session with the nodes; see ``votes.Session``.

    A slow node may still owe a reply when the session ends. The next session on the connection skips that
    reply. Calls on one connection are executed in order: a late grant is followed by the release that undoes it.
    """

    def __init__(self, transport: ThreadTransport) -> None:
        self._transport = transport
        self._asker = object()
        self._connections: dict[int, NodeConnection] = {}
        self._answers: deque[Answer] = deque()
        self._to_repeat: dict[int, tuple[threads.Call, list[QuorumCall]]] = {}
        self._asked_again: dict[int, Exception] = {}
        self._by_fileno: dict[int, NodeConnection] = {}
        self._poll = new_poll()
        self._until = 0.0

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        nonce = next_nonce()
        packed = pack(call, nonce)
        for node in nodes:
            self._send(node, call, nonce, packed)

    def _send(self, node: int, call: QuorumCall, nonce: bytes, packed: bytes) -> None:
        if node in self._to_repeat:  # after the calls before it
            self._to_repeat[node][1].append(call)
            return
        connection = self._connections.get(node)
        try:
            connection = connection or self._add(self._transport.take_connection(node))
            connection.send(packed, nonce, call, self._asker, self._transport.send_within)
        except (RedisError, OSError) as error:
            if connection is None:
                # If the node was asked before, it may have executed the call, and NodeDownError would deny that.
                self._answers.append(Answer(node, call, self._asked_again.get(node, error)))
            else:
                self._part(connection, error)

    def _add(self, connection: NodeConnection) -> NodeConnection:
        self._connections[connection.node] = self._by_fileno[connection.fileno] = connection
        self._poll.register(connection.fileno, POLLIN)
        return connection

    def _remove(self, connection: NodeConnection) -> None:
        del self._connections[connection.node]
        self._poll.unregister(connection.fileno)

    def _part(self, connection: NodeConnection, error: Exception) -> None:
        """Give up a connection. The calls that have no reply yet are sent over a new one, once in a session."""
        node = connection.node
        self._remove(connection)
        calls = [call for _, call, asker in connection.owed if asker is self._asker]
        connection.close()
        self._transport.nodes.note_lost_connection()
        if calls and may_ask_again(error) and node not in self._asked_again:
            self._asked_again[node] = error
            # In a thread: meanwhile the other nodes vote.
            self._to_repeat[node] = threads.Call(partial(self._transport.connect, node)).start(), calls
        else:
            self._answers += (Answer(node, call, error) for call in calls)

    def _ask_again(self) -> None:
        """Repeat the calls that failed with their connections over the new connections that are open by now."""
        for node in [node for node, (opening, _) in self._to_repeat.items() if opening.wait(0)]:
            _, calls = self._to_repeat.pop(node)
            for call in calls:
                call.sends += 1
                self.send(call, [node])

    async def listen(self, count: Count, until: float) -> None:
        self._until = until
        answers = self._answers
        while True:
            while answers:
                if count(answers.popleft()):
                    return
            if self._to_repeat:
                self._ask_again()
            if not self._to_repeat and not any(connection.owed for connection in self._connections.values()):
                if answers:
                    continue
                return
            # A process that stalled until now did not make the replies late that have arrived meanwhile.
            left = self._until - monotonic()
            arrived = self._poll.poll(max(math.ceil(1000 * (min(left, _POLL_EVERY) if self._to_repeat else left)), 0))
            if left <= 0 and not arrived:
                return
            for fileno, _ in arrived:
                self._read(self._by_fileno[fileno])

    def end_by(self, until: float) -> None:
        self._until = until

    def _read(self, connection: NodeConnection) -> None:
        # It is polled again; but what TLS has decrypted already makes no socket readable.
        arrived = connection.read(self._transport.send_within, once=connection.connection.is_plain)
        try:
            self._hear(connection, arrived)
        except (RedisError, OSError) as error:  # the answers before it count
            self._part(connection, error)

    def _hear(self, connection: NodeConnection, arrived: Iterator[tuple[QuorumCall, object, Any]]) -> None:
        for call, asker, reply in arrived:
            if isinstance(reply, Exception) and is_reply_that_ends_connection(reply):
                connection.owed.appendleft((b"", call, asker))  # the connection has refused it, not the node
                self._transport.nodes.note_error(connection.node, reply)
                raise reply
            if asker is self._asker:
                self._answers.append(Answer(connection.node, call, reply))

    async def __aenter__(self) -> ThreadSession:
        try:
            self._take_connections()
        except BaseException:
            self._close()
            raise
        return self

    def _take_connections(self) -> None:
        transport = self._transport
        self._connect(transport.without_connection())
        kept = [transport.take_kept(node) for node in transport.nodes.numbers if node not in self._connections]
        for connection in kept:
            if connection is not None:
                self._add(connection)
        readable = {fileno for fileno, _ in self._poll.poll(0)}
        for connection in kept:
            if connection is not None and not transport.is_alive(connection, connection.fileno in readable):
                self._remove(connection)
        for node in transport.nodes.numbers:
            if node not in self._connections:
                with suppress(RedisError):  # reported when a call is sent to this node
                    self._add(transport.take_connection(node))

    def _connect(self, nodes: Sequence[int]) -> None:
        """Connect to several nodes at once, so that an unreachable one does not delay the others."""
        if len(nodes) < 2:
            return
        outcomes = threads.gather([partial(self._transport.take_connection, node) for node in nodes])
        for connection in outcomes:
            if isinstance(connection, NodeConnection):
                self._add(connection)
        for error in outcomes:
            if not isinstance(error, NodeConnection | RedisError):
                raise error

    def _close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Any other exception, such as one raised by a signal handler, may have cut off a reply half way.
        if error is None or isinstance(error, RLockError):
            while self._connections:
                self._transport.keep_connection(self._connections.popitem()[1])
        else:
            self._close()


class ThreadTransport:
    """How threads, including the background thread, reach the nodes of an alias; see ``votes.QuorumTransport``."""

    def __init__(self, using: str) -> None:
        self.nodes = node_set(using)
        self.nodes.closing.append(self._close_kept)
        self.send_within = self.nodes.connect_within
        self._kept: list[deque[NodeConnection]] = [deque() for _ in self.nodes.numbers]

    def session(self) -> ThreadSession:
        return ThreadSession(self)

    def take_kept(self, node: int) -> NodeConnection | None:
        """The idle connection used last, which may have ended meanwhile; None if there is none."""
        kept = self._kept[node]
        try:
            return kept.pop() if kept else None
        except IndexError:  # another thread was faster
            return None

    def take_connection(self, node: int) -> NodeConnection:
        """Return an idle or a new connection; replies still owed on an idle one have been read or are on their way."""
        while (connection := self.take_kept(node)) is not None:
            if self.is_alive(connection):
                return connection
        self.nodes.require_up(node)
        reached = self.nodes.server(node, "calls")
        try:
            try:
                return self._connected(node, reached)
            except RedisConnectionError:
                # A connection that ended does not prove that the node is down.
                return self._connected(node, reached)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise self.nodes.unreachable(node, error) from error

    def _connected(self, node: int, reached: Server) -> NodeConnection:
        """A new connection, once the server that it leads to has been identified."""
        connection = reached.take(self.nodes.connect_within, self.nodes.connect_within)
        try:
            self.nodes.meet(node, *connection.ask_all(ASK_WHO_IT_IS, 1, self.nodes.connect_within))
        except BaseException:
            connection.close()
            raise
        return NodeConnection(node, connection)

    def is_alive(self, connection: NodeConnection, is_readable: bool = True) -> bool:
        """Whether an idle connection can be used; it is closed if not."""
        try:
            # Nobody waits for these replies any more. A socket is not readable for data that TLS has decrypted already.
            if is_readable or not connection.connection.is_plain:
                deque(connection.read(self.send_within), maxlen=0)
            # A vote has no time to wait for a connection that may be gone.
            is_usable = self.nodes.is_up(connection.node) and monotonic() < connection.since + KEEP_IDLE
        except (RedisError, OSError):
            is_usable = False
        if not is_usable:
            if connection.owed:
                self.nodes.note_lost_connection()
            connection.close()
            return False
        if connection.owed and monotonic() > connection.since + self.nodes.timeout:
            connection.close()
            self.nodes.note_down(connection.node, RedisTimeoutError("did not reply in time"))
            return False
        return True

    def connect(self, node: int) -> None:
        """Have a connection for a session that needs one; raises NodeDownError when that fails."""
        self.keep_connection(self.take_connection(node))

    def keep_connection(self, connection: NodeConnection) -> None:
        """Keep a connection for the next session."""
        self._kept[connection.node].append(connection)
        if self.nodes.is_closed:
            self._close_kept(connection.node)

    def without_connection(self) -> list[int]:
        """The nodes to which no connection is kept, and which may be up."""
        return [node for node, kept in enumerate(self._kept) if not kept and self.nodes.may_be_up(node)]

    def _close_kept(self, node: int) -> None:
        kept = self._kept[node]
        with suppress(IndexError):
            while True:
                kept.pop().close()
