"""Replies out of the bytes that come from a server: hiredis's reader, or one in Python with what scripts answer."""

from __future__ import annotations

from typing import Any, Protocol

from redis._parsers import BaseParser
from redis.exceptions import InvalidResponse

hiredis: Any
try:
    import hiredis
except ImportError:
    hiredis = None

_parse_error: Any = BaseParser.parse_error

INCOMPLETE = object()
"""Stands for a reply of which more bytes are still to come."""


class Reader(Protocol):
    def feed(self, data: bytes) -> None:
        """Add what has come."""

    def gets(self) -> Any:
        """The next reply, or INCOMPLETE; the server's errors as redis-py's exceptions. InvalidResponse for others."""


def make_reader() -> Reader:
    if hiredis is None:
        return PythonReader()
    reader: Reader = hiredis.Reader(protocolError=InvalidResponse, replyError=_parse_error, notEnoughData=INCOMPLETE)
    return reader


class PythonReader:
    """For where hiredis is not installed."""

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
        """The value that begins at a place, and where it ends."""
        end = self._buffer.find(b"\r\n", at)
        if end < 0:
            raise EOFError
        kind, text, at = self._buffer[at : at + 1], self._buffer[at + 1 : end], end + 2
        if kind == b":":
            return int(text), at
        if kind == b"+":
            return text, at
        if kind == b"-":
            return _parse_error(text.decode(errors="replace")), at
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
