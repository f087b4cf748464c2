"""One connection: a socket that redis-py has connected and logged in, and the parser of its replies."""

from __future__ import annotations

import _socket
import contextlib
import os
import re
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core.clock import monotonic
from django_rlock._core.foreign import server_error
from django_rlock._core.interruptions import disarm, guard
from django_rlock._core.threads import Alive
from django_rlock._redis.scripts import OK, Script

# --- parsing replies --------------------------------------------------------------------------------------------------

# Parses a server's bytes into replies: hiredis's reader, or one in Python for the types that scripts return.
#
# Both refuse what no server of ours sends, by one error: bytes that are not a reply, and replies that are too long or
# nested too deep. A length is believed only as its bytes arrive.

hiredis: Any
try:
    import hiredis
except ImportError:
    hiredis = None

INCOMPLETE = object()
"""Stands for a reply whose bytes have not all arrived."""

LONGEST_REPLY = 64 * 2**20
"""How many bytes a reply may have."""
_DEEPEST = 9
"""How deep lists may be nested in a reply."""
_LENGTH = re.compile(rb"-?\d{1,18}")

MALFORMED = MemoryError, SystemError, TypeError
"""What hiredis raises for lists of billions (PyPy raises SystemError), and for keys of RESP3's maps without a hash."""


class ErrorReply(Exception):  # noqa: N818 - a reply, which is never raised
    """A server's error reply, with its text.

    It is a plain subclass, created in C, so that no signal handler can raise inside hiredis.
    """


Unchecked = tuple[Callable[[bytes], object], Callable[[], Any]]


class Reader(Protocol):
    @property
    def unchecked(self) -> Unchecked:
        """The fast path: ``feed`` without the size limit (first piece only); ``gets``, which lets MALFORMED through."""

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived. Raises InvalidResponse if a reply is too long."""

    def gets(self) -> Any:
        """Return the next reply, or INCOMPLETE; errors as ErrorReply. Raises InvalidResponse for malformed data."""


def make_reader() -> Reader:
    return PythonReader() if hiredis is None else HiredisReader()


class HiredisReader:
    """hiredis's reader, within limits."""

    def __init__(self) -> None:
        reader = hiredis.Reader(protocolError=InvalidResponse, replyError=ErrorReply, notEnoughData=INCOMPLETE)
        self.unchecked = self._feed, self._gets = reader.feed, reader.gets
        self._held = 0

    def feed(self, data: bytes) -> None:
        self._held += len(data)
        if self._held > LONGEST_REPLY:
            raise _too_long()
        self._feed(data)

    def gets(self) -> Any:
        try:
            reply = self._gets()
        except MALFORMED as error:
            raise _malformed(error) from error
        if reply is not INCOMPLETE:
            self._held = 0
        return reply


class PythonReader:
    """Used if hiredis is not installed."""

    def __init__(self) -> None:
        self._buffer = b""

    @property
    def unchecked(self) -> Unchecked:
        return self.feed, self.gets

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def gets(self) -> Any:
        try:
            reply, end = self._parse(0)
        except EOFError:
            if len(self._buffer) > LONGEST_REPLY:
                raise _too_long() from None
            return INCOMPLETE
        self._buffer = self._buffer[end:]
        return reply

    def _parse(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value that begins at a position, and the position after it."""
        end = self._buffer.find(b"\r\n", at)
        if end < 0:
            if self._buffer[at : at + 1] not in b"+-:_$*":
                raise InvalidResponse(f"Protocol Error: {self._buffer[at : at + 1]!r}")
            raise EOFError
        kind, text, at = self._buffer[at : at + 1], self._buffer[at + 1 : end], end + 2
        if kind == b"+":
            return text, at
        if kind == b"-":
            return ErrorReply(text.decode(errors="replace")), at
        if kind == b"_":
            return None, at
        if kind not in b":$*" or _LENGTH.fullmatch(text) is None or depth > _DEEPEST:
            raise InvalidResponse(f"Protocol Error: {kind!r}")
        number = int(text)
        if kind == b":":
            return number, at
        if number == -1:
            return None, at
        if number < 0:
            raise InvalidResponse(f"Protocol Error: a length of {number}")
        return self._cut(at, number) if kind == b"$" else self._list(at, number, depth)

    def _cut(self, at: int, size: int) -> tuple[bytes, int]:
        if len(self._buffer) < at + size + 2:
            raise EOFError
        return self._buffer[at : at + size], at + size + 2

    def _list(self, at: int, length: int, depth: int) -> tuple[list[Any], int]:
        values = []
        for _ in range(length):
            value, at = self._parse(at, depth + 1)
            values.append(value)
        return values, at


def _malformed(error: BaseException) -> InvalidResponse:
    return InvalidResponse(f"Protocol Error: {type(error).__name__}")


def _too_long() -> InvalidResponse:
    return InvalidResponse(f"Protocol Error: a reply of more than {LONGEST_REPLY // 2**20} MB")


# --- a connection -----------------------------------------------------------------------------------------------------

# One connection: a socket that redis-py has connected and logged in, and a reader for what arrives on it.
#
# An open connection is idle in its server's deque, or is used by one call. A call that ends in an exception closes its
# connection, as replies may still come. If an interruption leaves a connection unused, garbage collection closes it.

TICK = 1.0
"""The time limit that the kernel applies to a plain socket, in seconds; smaller limits are set on the socket."""
_TIMEVAL = struct.pack("ll", int(TICK), 0)
_DISCARD = struct.pack("ii", 1, 0)
_MOST_SENT_AT_ONCE = 32_768
"""How many bytes the kernel certainly accepts without blocking."""
DOUBTED_AFTER = 10.0
"""After this many seconds without use, the other end may be gone without notice: firewalls forget idle connections."""
ALIVE_WITHIN = 0.5
"""How soon the first reply after that must begin, in seconds; otherwise the connection is replaced."""
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""When the kernel probes the peer of an idle connection, by the platforms' names of the options."""
_READ = 65_536
_READ_FIRST = 448
"""How many bytes are read first. A lock's reply is shorter, and Python allocates 512 bytes several times as fast."""

_NONCE_ALONE = b"$15\r\n%b\r\n"
LATER = BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError, TimeoutError
"""The errors of a socket that currently has nothing to read, or cannot accept more data."""

Expected = tuple[bytes, Script] | type | None
"""The expected reply: a script's reply that echoes a nonce, or a reply of a type; None accepts any reply."""


class StaleReplyError(RedisConnectionError):
    """A reply that belongs to another command."""


class ConnectionSlot:
    """One of the connections that a server may have, from its making until ``free``.

    It is also freed when it is collected, if an interruption kept its user from calling ``free``.
    """

    __slots__ = ("__weakref__", "_taken", "heard_at")

    def __init__(self, taken: Alive[ConnectionSlot]) -> None:
        self._taken = taken
        self.heard_at = 0.0  # when the server last replied to the login
        taken.add(self)

    def free(self) -> None:
        """Let another connection have it."""
        self._taken.discard(self)


class Connection:
    """A connection for commands and their replies, in order. Time limits are seconds.

    The kernel limits the waits of a plain blocking socket to TICK, so that the usual call neither sets a limit nor
    polls. When that limit has passed and the call may take longer, reading goes on with an exact limit. TLS and
    gevent's sockets, which are not plain, always use exact limits.

    ``next_reply`` returns the next reply of the bytes that have been received, or INCOMPLETE.

    A connection that was idle for long ``is_doubted``: unless its next reply begins soon, the connection is broken.
    """

    is_plain: bool

    __slots__ = (
        "__weakref__",
        "_feed",
        "_gets",
        "_guard",
        "_is_swift",
        "_pid",
        "_reader",
        "is_doubted",
        "is_plain",
        "next_reply",
        "slot",
        "sock",
        "used_at",
    )

    def __init__(self, sock: socket.socket, slot: ConnectionSlot | None = None) -> None:
        self.sock = sock
        self.slot = slot
        self._pid = os.getpid()
        self._guard = guard(self, partial(_close, sock, self._pid))
        self._reader = make_reader()
        self.next_reply = self._reader.gets
        self._feed, self._gets = self._reader.unchecked
        self.used_at = monotonic()
        self.is_doubted = False
        self.block()

    def block(self) -> None:
        """Make the socket blocking, for use by threads."""
        sock = self.sock
        sock.settimeout(None)
        # gevent's and TLS sockets have their own recv(), which ignores the kernel's limit.
        self.is_plain = getattr(type(sock), "recv", None) is _socket.socket.recv
        if self.is_plain:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL)
        self._is_swift = self.is_plain and not self.is_doubted

    def doubt(self) -> None:
        """Expect the next reply soon, because the connection was idle for long."""
        self.is_doubted, self._is_swift = True, False

    def fileno(self) -> int:
        return self.sock.fileno()

    # --- blocking exchanges ------------------------------------------------------------------------------------------

    def ask(self, packed: bytes, limit: float, nonce: bytes = b"") -> Any:
        """Return the reply to one command; a server's error is an ErrorReply. A reply that is the nonce alone needs no
        parser. ``limit`` begins when the connection was taken. Close it after any exception."""
        if not self._is_swift or limit < TICK or len(packed) > _MOST_SENT_AT_ONCE:
            return self.ask_all(packed, 1, limit)[0]
        sock = self.sock
        try:
            sock.sendall(packed)
            data = sock.recv(_READ_FIRST)
            if not data:
                raise _closed()
            if data == _NONCE_ALONE % nonce:
                return nonce
            self._feed(data)
            reply = self._gets()
        except BlockingIOError:
            return self._read_until(self.used_at + limit)
        except OSError as error:
            raise _broken(error) from error
        except MALFORMED as error:
            raise _malformed(error) from error
        return self._read_until(self.used_at + limit) if reply is INCOMPLETE else reply

    def ask_all(self, packed: bytes, replies: int, limit: float) -> list[Any]:
        """Send commands and return that many replies; the last one comes within ``limit`` seconds."""
        self.used_at = started = monotonic()
        self.send(packed, limit)
        if self.is_doubted:
            self._hear_soon(limit)
        return self.read(replies, started + limit)

    def send(self, packed: bytes, limit: float) -> None:
        """Send commands whose replies are read later."""
        self.sock.settimeout(limit)
        try:
            self.sock.sendall(packed)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout writing to the server") from error
        except OSError as error:
            raise _broken(error) from error

    def send_now(self, packed: bytes, limit: float) -> None:
        """The same on a non-blocking socket, which usually accepts a command in one piece."""
        try:
            sent = self.sock.send(packed)
        except LATER:
            sent = 0
        except OSError as error:
            raise _broken(error) from error
        if sent < len(packed):
            self.send(packed[sent:], limit)
            self.sock.settimeout(0)

    def read(self, replies: int, until: float) -> list[Any]:
        """Return the next replies, which must come before the monotonic time ``until``."""
        return [self._read_until(until, last=number == replies - 1) for number in range(replies)]

    def _read_until(self, until: float, last: bool = True) -> Any:
        while (reply := self.next_reply()) is INCOMPLETE:
            left = until - monotonic()
            if left <= 0:
                raise RedisTimeoutError("Timeout reading from the server")
            self.sock.settimeout(left)
            self._reader.feed(self._receive())
        if last:
            self.sock.settimeout(None)
        return reply

    def _hear_soon(self, limit: float) -> None:
        self.sock.settimeout(min(limit, ALIVE_WITHIN))
        try:
            self._reader.feed(self._receive())
        except RedisTimeoutError as error:
            raise gone_silently() from error
        self.is_doubted, self._is_swift = False, self.is_plain

    def _receive(self) -> bytes:
        try:
            data = self.sock.recv(_READ)
        except LATER as error:
            raise RedisTimeoutError("Timeout reading from the server") from error
        except OSError as error:
            raise _broken(error) from error
        if not data:
            raise _closed()
        return data

    # --- by readiness ------------------------------------------------------------------------------------------------

    def receive(self, nonce: bytes = b"") -> bool | bytes:
        """Receive what has arrived on a readable, non-blocking socket, for ``next_reply``; returns whether any has, or
        the nonce if the reply is that alone."""
        try:
            data = self.sock.recv(_READ_FIRST)
        except LATER:
            return False
        except OSError as error:
            raise _broken(error) from error
        if not data:
            raise _closed()
        if data == _NONCE_ALONE % nonce:
            return nonce
        self._reader.feed(data)
        if len(data) == _READ_FIRST:
            with contextlib.suppress(RedisError):  # no more has arrived; or the end, which the next call will find
                self._reader.feed(self._receive())
        return True

    def arrived(self) -> list[Any]:
        """The replies that have arrived on a readable, non-blocking socket; none if only a part of one has arrived.

        More may have arrived, although the socket is not readable, if it is not plain: TLS decrypts whole records."""
        return list(iter(self.next_reply, INCOMPLETE)) if self.receive() else []

    @property
    def is_quiet(self) -> bool:
        """Whether the idle connection is clean: no stray bytes, and not closed by the server."""
        self.sock.settimeout(0)
        try:
            self.sock.recv(1)
        except LATER:
            self.sock.settimeout(None)
            return True
        except OSError:
            pass
        return False

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket."""
        self.free_slot()
        _close(self.sock, self._pid)
        disarm(self._guard)

    def free_slot(self) -> None:
        """Let another connection have its slot."""
        if self.slot is not None:
            self.slot.free()


def _close(sock: socket.socket, pid: int) -> None:
    if pid == os.getpid():  # a forked child shares the socket's options with its parent
        # The kernel then drops data that it has not sent yet: the command must no longer be executed.
        with contextlib.suppress(OSError):  # it is broken or closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
    sock.close()


def check_reply(reply: Any, nonce: bytes, script: Script) -> list[Any]:
    """Return a script's reply if it echoes ``nonce`` and has values that the script returns; otherwise raise redis-py's
    exception for the error."""
    # A connection may bring the reply to another command, whose caller was interrupted before it read that: rule 2 of
    # docs/design/architecture.md.
    if reply == nonce and script.usual:
        return [nonce, script.usual[0]]
    if type(reply) is list and reply and reply[0] == nonce:
        if len(reply) == 2:
            if reply[1] in script.usual:  # without a further call
                return reply
        elif tuple(map(type, reply)) in script.grants and reply[1] == OK:
            return reply
        if script.may_reply(reply[1:]):
            return reply
    raise reply_error(reply)


def reply_error(reply: Any) -> RedisError:
    """The exception for a reply that is not the expected one."""
    if isinstance(reply, ErrorReply):
        return server_error(str(reply))
    return StaleReplyError("The connection brought the reply to another command, or a malformed one; it was closed.")


def stray() -> RedisConnectionError:
    """The exception for a reply without a command."""
    return RedisConnectionError("The connection received a reply without a command; it was closed.")


def gone_silently() -> RedisConnectionError:
    """The exception for a connection that was idle for long, and got no reply."""
    return RedisConnectionError("The connection was idle for long, and then got no reply; it was closed.")


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice when the other end of an idle connection is gone; firewalls then remember it, too."""
    if sock.family in {socket.AF_INET, socket.AF_INET6}:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, number in KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)


def replies_of(replies: Sequence[Any], expected: Sequence[Expected]) -> list[Any]:
    """The replies, each checked against what is expected, with server errors as redis-py's exceptions."""
    return [_checked(*pair) for pair in zip(replies, expected, strict=True)]


def _checked(reply: Any, expected: Expected) -> Any:
    if isinstance(reply, ErrorReply):
        return server_error(str(reply))
    if isinstance(expected, tuple):
        return check_reply(reply, *expected)
    if expected is None or type(reply) is expected:
        return reply
    raise reply_error(reply)


def _broken(error: OSError) -> RedisConnectionError:
    return RedisConnectionError(f"The connection broke: {error}")


def _closed() -> RedisConnectionError:
    return RedisConnectionError("The server closed the connection.")
