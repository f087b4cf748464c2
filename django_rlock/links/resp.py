"""Parses a server's bytes into replies: hiredis's reader, or one in Python for the types that scripts return.

Both refuse what no server of ours sends, by one error: bytes that are not a reply, and replies that are too long or
nested too deep. A length is believed only as its bytes arrive.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from redis.exceptions import InvalidResponse

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


class ErrorReply(Exception):  # noqa: N818 - a reply, which is never raised
    """A server's error reply, with its text.

    It is a plain subclass, created in C, so that no signal handler can raise inside hiredis.
    """


class Reader(Protocol):
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
        self._feed, self._gets = reader.feed, reader.gets
        self._held = 0

    def feed(self, data: bytes) -> None:
        self._held += len(data)
        if self._held > LONGEST_REPLY:
            raise _too_long()
        self._feed(data)

    def gets(self) -> Any:
        try:
            reply = self._gets()
        except (MemoryError, TypeError) as error:  # lists of billions; keys of RESP3's maps that have no hash
            raise InvalidResponse(f"Protocol Error: {type(error).__name__}") from error
        if reply is not INCOMPLETE:
            self._held = 0
        return reply


class PythonReader:
    """Used if hiredis is not installed."""

    def __init__(self) -> None:
        self._buffer = b""

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


def _too_long() -> InvalidResponse:
    return InvalidResponse(f"Protocol Error: a reply of more than {LONGEST_REPLY // 2**20} MB")
