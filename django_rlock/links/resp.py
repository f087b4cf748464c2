"""Parses a server's bytes into replies: hiredis's reader, or one in Python for the types that scripts return."""

from __future__ import annotations

from typing import Any, Protocol

from redis.exceptions import InvalidResponse

hiredis: Any
try:
    import hiredis
except ImportError:
    hiredis = None

INCOMPLETE = object()
"""Stands for a reply whose bytes have not all arrived."""


class ErrorReply(Exception):  # noqa: N818 - a reply, which is never raised
    """A server's error reply, with its text.

    It is a plain subclass, created in C, so that no signal handler can raise inside hiredis.
    """


class Reader(Protocol):
    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""

    def gets(self) -> Any:
        """Return the next reply, or INCOMPLETE; errors as ErrorReply. Raises InvalidResponse for malformed data."""


def make_reader() -> Reader:
    if hiredis is None:
        return PythonReader()
    reader: Reader = hiredis.Reader(protocolError=InvalidResponse, replyError=ErrorReply, notEnoughData=INCOMPLETE)
    return reader


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
            return INCOMPLETE
        self._buffer = self._buffer[end:]
        return reply

    def _parse(self, at: int) -> tuple[Any, int]:
        """Return the value that begins at a position, and the position after it."""
        end = self._buffer.find(b"\r\n", at)
        if end < 0:
            raise EOFError
        kind, text, at = self._buffer[at : at + 1], self._buffer[at + 1 : end], end + 2
        if kind == b":":
            return int(text), at
        if kind == b"+":
            return text, at
        if kind == b"-":
            return ErrorReply(text.decode(errors="replace")), at
        if kind == b"_" or text == b"-1":
            return None, at
        if kind == b"$":
            return self._cut(at, int(text))
        if kind == b"*":
            values = []
            for _ in range(int(text)):
                value, at = self._parse(at)
                values.append(value)
            return values, at
        raise InvalidResponse(f"Protocol Error: {kind!r}")

    def _cut(self, at: int, size: int) -> tuple[bytes, int]:
        if len(self._buffer) < at + size + 2:
            raise EOFError
        return self._buffer[at : at + size], at + size + 2
