"""The connections of a server, which are kept for the next call, and how threads and greenlets use them."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from redis.exceptions import AuthenticationError, NoScriptError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import connection_end_in, ends_connection, is_demotion
from django_rlock._core.foreign import take_socket
from django_rlock._core.redis_py import (
    NOT_FOR_CONNECTIONS,
    UNSET_TIMEOUT,
    connection_of,
    limits,
    makes_its_own,
    naming_files,
    noted,
    noting_replies,
    prepared,
    unnoted,
    without,
)
from django_rlock._core.text import hide_secrets, shown
from django_rlock._transport.calls import REPLY_GRACE, UNLIMITED, ScriptCall, next_nonce, pack, run_sync
from django_rlock._transport.connection import (
    DOUBTED_AFTER,
    Connection,
    ConnectionSlot,
    Expected,
    check_reply,
    keep_alive,
    replies_of,
)
from django_rlock._transport.identity import thread_owner

if TYPE_CHECKING:
    from django_rlock._transport.async_connection import TaskConnection

# --- the connections of a server --------------------------------------------------------------------------------------

# One server as this process reaches it: its idle connections, their limit, and the callers that wait for one. Shared
# state is changed by single calls into C. If an interruption leaves a connection unused, garbage collection frees it
# and its slot.

Connect = Callable[[ConnectionSlot | None], Connection]
"""Opens a connection; raises redis-py's errors."""

FRESH = 1.0
"""A connection used within this time is assumed to be alive, in seconds."""
KEEP_IDLE = 60.0
"""How long an unused connection is kept, in seconds."""
SLOT_LOOK_EVERY = 0.05
"""How often a caller checks for a free slot, in seconds: the thread that should wake it may have been interrupted."""


class ConnectionWait:
    """A caller that waits for a connection, kept alive by its frames; ``slot`` is that of a connection being opened."""

    __slots__ = ("__weakref__", "_error", "slot", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.slot: ConnectionSlot | None = None
        self._error: BaseException | None = None

    def left(self, until: float, grace: float) -> float:
        """The seconds until a time, or until ``grace`` seconds after the server's last reply: a login takes many."""
        slot = self.slot
        return (until if slot is None else max(until, slot.heard_at + grace)) - monotonic()

    def fail(self, error: BaseException) -> None:
        """Have the caller raise an error."""
        self._error = error

    def check(self) -> None:
        """Raise the error with which opening a connection has failed, if it has."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame


class Server:
    """Connections to one server, ``max_connections`` at most (None: no limit). ``reply_limit`` is the maximum time for
    a reply. Times are seconds.

    ``close_all`` is called when the server has become a replica; it closes every connection to it.
    ``lent`` are the connections that event loops keep between their commands.
    """

    def __init__(
        self,
        connect: Connect,
        reply_limit: float,
        max_connections: int | None = None,
        close_all: Callable[[], object] | None = None,
    ) -> None:
        self._connect = connect
        self.close_all = self.close_idle if close_all is None else close_all
        self.reply_limit = reply_limit
        self._max_connections = math.inf if max_connections is None else max_connections
        self._taken = threads.Alive[ConnectionSlot]()
        self._waits: deque[ref[ConnectionWait]] = deque()
        self._closed = False
        self.idle: deque[Connection] = deque()
        self.lent: threads.Alive[TaskConnection] = threads.Alive()

    # --- taking a connection -----------------------------------------------------------------------------------------

    def take(self, limit: float, grace: float = 0.0) -> Connection:
        """Return an idle or a new connection, within ``limit`` seconds, or within ``grace`` seconds after each reply of
        the server to the login. Raises what redis-py raises if it cannot connect.

        A connection that opens too late is kept for the next caller.
        """
        connection = self.take_idle()
        if connection is not None:
            return connection
        event = threads.AutoResetEvent()
        wait = ConnectionWait(event.set)
        try:
            return self._await(wait, event, monotonic() + limit, grace)
        finally:
            self.remove(wait)

    def _await(self, wait: ConnectionWait, event: threads.AutoResetEvent, until: float, grace: float) -> Connection:
        while True:
            opens = self.ask_for(wait)
            # Again, since a connection that was returned before the wait was queued has woken nobody.
            connection = self.take_idle()
            if connection is not None:
                return connection
            left = wait.left(until, grace)
            if left <= 0:
                raise self.none_in_time(opens)
            event.wait(left if opens else min(left, SLOT_LOOK_EVERY))
            wait.check()
            connection = self.take_idle()
            if connection is not None:
                return connection

    def left_of(self, limit: float, started: float) -> float:
        """The limit for a reply of a server that has just replied, to the login or that it lacks a script. That may
        have used up the caller's time since ``started``, and a connection whose reply comes late must be closed."""
        return min(max(limit - (monotonic() - started), REPLY_GRACE), self.reply_limit)

    def none_in_time(self, opens: bool) -> RedisTimeoutError:
        """The error for a caller whose time is up; ``opens`` is whether a connection was being opened for it."""
        return RedisTimeoutError(
            "Timeout connecting to the server"
            if opens
            else f"All {self._max_connections} connections are in use, each by a thread that sends a command or by an "
            "event loop; raise MAX_CONNECTIONS, or use locks in fewer threads and event loops at the same time"
        )

    def take_idle(self, now: float | None = None) -> Connection | None:
        """Return an idle connection that is alive, if there is one. ``now`` is the time, if the caller has read it."""
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return None
            if now is None:
                now = monotonic()
            if now - connection.used_at < FRESH or connection.is_quiet:
                if now - connection.used_at > DOUBTED_AFTER:
                    connection.doubt()
                connection.used_at = now
                return connection
            connection.close()

    def ask_for(self, wait: ConnectionWait) -> bool:
        """Start opening a connection for a wait, which is woken when the connection is open. Returns False if the
        limit is reached; the wait is then queued for the next connection that is released."""
        if wait.slot is not None:
            return True
        # Taken before it is counted: two callers that want the last slot may both be refused, but never both get it.
        slot = ConnectionSlot(self._taken)
        if len(self._taken) > self._max_connections:
            for each in self.lent:
                each.take_back()
        if len(self._taken) > self._max_connections:
            slot.free()
            if ref(wait) not in self._waits:
                self._waits.append(ref(wait))
            return False
        wait.slot = slot
        # In a separate thread, so that no signal interrupts redis-py while it connects and logs in: it then holds
        # mutexes that all threads share. And a server that accepts a connection but never replies delays no caller
        # beyond its own time limit.
        try:
            threads.start(self._open_for, wait, slot)
        except RuntimeError:  # no threads left, or the interpreter exits
            self._open_for(wait, slot)
        return True

    def remove(self, wait: ConnectionWait) -> None:
        """Remove a wait from the queue."""
        with contextlib.suppress(ValueError):
            self._waits.remove(ref(wait))

    def _open_for(self, wait: ConnectionWait, slot: ConnectionSlot) -> None:
        try:
            self.idle.append(self.open(slot))
        except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
            slot.free()
            wait.fail(error)
        wait.slot = None
        wait.wake()
        if self._closed:
            self.close()

    def open(self, slot: ConnectionSlot | None = None) -> Connection:
        """Open a new connection in this thread. Raises what redis-py raises."""
        try:
            return self._connect(slot)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout connecting to the server") from error
        except OSError as error:
            raise RedisConnectionError(f"Error connecting to the server: {error}") from error

    # --- giving it back ----------------------------------------------------------------------------------------------

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next caller, after all its replies have been read."""
        # First, since a caller queues its wait before it looks for an idle connection.
        self.idle.append(connection)
        if self._waits:
            with contextlib.suppress(IndexError):
                self._wake_first()
        if self._closed:
            self.close()

    def _wake_first(self) -> None:
        wait = self._waits.popleft()()
        while wait is None:  # its task was dropped with its loop
            wait = self._waits.popleft()()
        wait.wake()

    def close_idle(self) -> None:
        """Close the idle connections."""
        with contextlib.suppress(IndexError):
            while True:
                self.idle.popleft().close()

    def prune(self, now: float, keep: int = 1) -> float:
        """Close all connections but ``keep`` that were unused for KEEP_IDLE; return when to check again."""
        while len(self.idle) > keep:
            try:
                connection = self.idle.popleft()
            except IndexError:  # callers have taken them meanwhile
                break
            if connection.used_at + KEEP_IDLE > now:
                self.idle.appendleft(connection)
                return connection.used_at + KEEP_IDLE
            connection.close()
        return math.inf

    def close(self) -> None:
        """Close idle connections now, and connections in use when they are returned: the settings no longer name the
        server."""
        self._closed = True
        self.close_idle()

    @property
    def may_grow(self) -> bool:
        """Whether a slot is free; if not, a failure to get a connection proves nothing about the server."""
        return len(self._taken) < self._max_connections

    @property
    def size(self) -> int:
        """How many connections are open or being opened."""
        return len(self._taken)


# --- how to connect ---------------------------------------------------------------------------------------------------

# How to connect to one server: by a pool of redis-py, whose class and options the project has chosen.

OVERRIDES = {"protocol": 2, "health_check_interval": 0}
"""Fixed options of connections: replies in the form that the scripts' readers expect, and no PING beside a call."""

_LOGIN = "username", "password", "credential_provider"
_WANTS_NONE = "without any password configured"
"""The reply to AUTH of a server that wants no password."""


class Source:
    """How to connect to one server. ``longest`` limits connecting and each reply, in seconds; None leaves the pool's
    limits. The pool's options are read for each connection, as a pool may change them: it may renew a password.
    """

    __slots__ = ("longest", "pool")

    def __init__(self, pool: Any, longest: float | None = None) -> None:
        self.pool = pool
        self.longest = longest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.options)})"

    @property
    def options(self) -> dict[str, Any]:
        """The options of a connection."""
        return self._for_connections(self.pool.connection_kwargs)

    def _for_connections(self, options: Mapping[str, Any]) -> dict[str, Any]:
        found = without(NOT_FOR_CONNECTIONS, options) | OVERRIDES
        return found if self.longest is None else found | limits(found, self.longest)

    @property
    def reply_limit(self) -> float:
        """How long a reply may take, in seconds."""
        return self.options.get("socket_timeout") or UNSET_TIMEOUT

    def within(self, longest: float | None) -> Source:
        """The same with other limits."""
        return Source(self.pool, longest)

    def connect(self, slot: ConnectionSlot | None = None) -> Connection:
        """Open a new connection. Raises what redis-py raises."""
        try:
            return self._open(slot, self._for_connections)
        except AuthenticationError as error:
            if _WANTS_NONE not in str(error):
                raise
        # The server takes any password by HELLO, and so the cache works; it refuses AUTH, by which connections log in.
        return self._open(slot, lambda options: without(_LOGIN, self._for_connections(options)))

    def _open(self, slot: ConnectionSlot | None, prepare: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Connection:
        opened = None
        try:
            with naming_files(self.pool.connection_kwargs), noting_replies(partial(_note_reply, slot)):
                opened = self._make(prepare)
                opened.connect()
            return self._connection(take_socket(opened), slot)
        except MasterNotFoundError:  # whose text lists the objects of redis-py
            asked = ", ".join(":".join(map(str, address)) for address in self._sentinels())
            raise MasterNotFoundError(f"No sentinel names the primary of {self.pool.service_name!r}: {asked}") from None
        except Exception as error:
            hide_secrets(error)  # redis-py 6.4 shows the sentinels' password where none of them replies
            raise
        finally:
            if opened is not None:
                opened.disconnect()
                unnoted(opened)

    def _connection(self, sock: socket.socket, slot: ConnectionSlot | None) -> Connection:
        try:
            if self.options.get("socket_keepalive", True) and not self.options.get("socket_keepalive_options"):
                keep_alive(sock)  # redis-py does so from version 8 on
            return Connection(sock, slot)
        except BaseException:  # the other end may be gone by now
            sock.close()
            raise

    def _sentinels(self) -> Iterator[tuple[object, object]]:
        for sentinel in self.pool.sentinel_manager.sentinels:
            options = sentinel.connection_pool.connection_kwargs
            yield options.get("host"), options.get("port")

    def _make(self, prepare: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
        if not makes_its_own(self.pool):
            return noted(self.pool.connection_class(**prepare(self.pool.connection_kwargs)))
        # The project's class decides how to connect, as it does for the cache. The copy shares its options, but keeps
        # its own books, since a connection never returns to a pool.
        pool = copy(self.pool)
        pool.reset()
        pool.connection_class = prepared(pool.connection_class, prepare)
        return connection_of(pool)


def _note_reply(slot: ConnectionSlot | None) -> None:
    if slot is not None:
        slot.heard_at = monotonic()


# --- threads ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class ThreadBinding:
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
        return [threads.value_of(outcome) for outcome in outcomes]

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        if not limit <= server.reply_limit:  # min() takes eight times as long
            limit = server.reply_limit
        connection = server.take_idle(call.sent_at)
        if connection is None:
            connection, limit = self._open(server, limit)
        try:
            call.sends += 1
            try:
                script = call.template.script
                raw = connection.ask(packed, limit, nonce)
                # As check_reply(), without a call.
                reply = [nonce, script.usual[0]] if raw is nonce and script.usual else check_reply(raw, nonce, script)
            except NoScriptError:
                reply = _ask_by_source(connection, call, server.left_of(limit, connection.used_at))
        except BaseException as error:
            # Its reply may still come, and would be read as the reply to the next command: rule 3 of
            # docs/design/architecture.md.
            close_after(error, server, connection)
            raise
        server.give_back(connection)
        return reply

    async def converse(self, server: Server, packed: bytes, expected: Sequence[Expected], limit: float) -> list[Any]:
        limit = min(limit, server.reply_limit)
        connection = server.take_idle()
        if connection is None:
            connection, limit = self._open(server, limit)
        try:
            replies = replies_of(connection.ask_all(packed, len(expected), limit), expected)
        except BaseException as error:
            close_after(error, server, connection)
            raise
        if end := connection_end_in(replies):
            close_after(end, server, connection)
        else:
            server.give_back(connection)
        return replies

    def _open(self, server: Server, limit: float) -> tuple[Connection, float]:
        """A new connection, and the limit for a reply."""
        started = monotonic()
        connection = server.take(limit, REPLY_GRACE)
        return connection, server.left_of(limit, started)


class BackgroundBinding(ThreadBinding):
    """The binding of the package's own threads, which connect directly, because no signal interrupts them.

    Connecting and each reply have the server's own limits, because no caller waits for these threads.
    """

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        return await super().exchange(server, call, packed, nonce, UNLIMITED)

    def _open(self, server: Server, limit: float) -> tuple[Connection, float]:
        return server.open(), limit


def _ask_by_source(connection: Connection, call: ScriptCall, limit: float) -> list[Any]:
    """Send a call over the same connection with its script, which the server said that it does not have."""
    # That error echoes no nonce, so it may belong to another command. Then the next reply is the one to the first call,
    # whose nonce is another one, and it is refused.
    call.sends += 1
    nonce = next_nonce()
    reply = check_reply(connection.ask_all(pack(call, nonce, with_source=True), 1, limit)[0], nonce, call.script)
    call.sends -= 1  # the first one was certainly not executed
    return reply


def close_after(error: BaseException, server: Server, connection: Connection) -> None:
    """Close a connection after an error."""
    # Even after an error reply: it echoes no nonce, so it may belong to another command.
    connection.close()
    if ends_connection(error):
        server.close_idle()  # the others are probably broken, too
    if is_demotion(error):
        server.close_all()


THREADS = ThreadBinding()
BACKGROUND = BackgroundBinding()
