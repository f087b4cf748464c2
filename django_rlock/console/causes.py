"""The causes of a server that does not reply or refuses commands, each with its remedy as a separate finding."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from django_rlock._core.errors import MEANINGS, Meaning, meaning_of
from django_rlock._core.text import redacted

LONGEST_TEXT = 200
"""The number of characters shown of another library's error: some errors list many objects."""


class Cause(NamedTuple):
    """A finding's check, its text, and one piece of advice."""

    check: str
    text: str
    advice: str


_NO_TLS = "The server does not use TLS on this port: write redis:// instead of rediss://, or use its TLS port."
_CLOSED = "Write rediss:// if the server accepts TLS only; read the log of the server, or of the proxy before it."
_RESP3 = "Set 'protocol': 2 in the options of redis-py: the server, or a proxy before it, does not support RESP3."

_BY_TEXT = (
    (
        "certificate verify failed",
        "tls",
        "Set ssl_ca_certs to its authority, and use the host name of its certificate.",
    ),
    ("wrong version number", "tls", _NO_TLS),
    ("wrong_version_number", "tls", _NO_TLS),
    ("packet length too long", "tls", _NO_TLS),
    ("record layer failure", "tls", _NO_TLS),
    ("unknown command 'hello'", "protocol", _RESP3),
    ("unknown command `hello`", "protocol", _RESP3),
    ("noproto", "protocol", _RESP3),
)
"""Checks and advice by a part of an error's text, in lower case."""

_BY_CODE = {
    "LOADING": "loading",
    "BUSY": "busy",
    "MAXCLIENTS": "clients",
    "OOM": "memory",
    "MISCONF": "persistence",
    "READONLY": "replicas",
    "MASTERDOWN": "replicas",
    "NOREPLICAS": "replicas",
    "CLUSTERDOWN": "cluster",
    "MOVED": "cluster",
    "ASK": "cluster",
    "TRYAGAIN": "cluster",
    "CROSSSLOT": "slots",
    "NOPERM": "rights",
    "DENIED": "protected",
    "NODB": "database",
    "UNKNOWN": "proxy",
    "WRONGTYPE": "key",
}
"""Checks by the codes of the server's errors; other codes are errors of the login."""


def cause_of(error: BaseException, where: str, by_tls: bool = False) -> Cause:
    """The cause of an error at an address; ``by_tls`` if the connection was to use TLS."""
    # redis-py wraps the system's errors in its own.
    errors = list(_chain(error))
    text = f"{where}: {_shortened(error)}"
    if any(isinstance(each, MasterNotFoundError) for each in errors):
        advice = (
            "Start the sentinels, and list them in SENTINELS. The host in LOCATION must be their name of the primary."
        )
        return Cause("sentinels", f"{where}: no sentinel names a primary", advice)
    # A text tells more than the type of its error: many causes arrive as a ConnectionError.
    texts = " ".join(str(each) for each in errors).lower()
    for part, check, advice in _BY_TEXT:
        if part in texts:
            return Cause(check, text, advice)
    return _by_meaning(errors, text) or _by_kind(errors, where, text, by_tls)


def _by_meaning(errors: list[BaseException], text: str) -> Cause | None:
    for each in errors:
        meaning = meaning_of(each)
        if meaning is not None and meaning.advice:
            return Cause(_BY_CODE.get(_code(meaning), "login"), text, meaning.advice)
    return None


def _by_kind(errors: list[BaseException], where: str, text: str, by_tls: bool) -> Cause:
    kinds = tuple(map(type, errors))
    if _any(kinds, ssl.SSLError):
        return Cause("tls", text, "Compare the ssl_… options with the server's: does it need a client certificate?")
    if _any(kinds, socket.gaierror):
        return Cause("name", text, "Correct the host name in CACHES, or the DNS.")
    if _any(kinds, ConnectionRefusedError, FileNotFoundError):
        return Cause("connection", f"nothing listens at {where}", "Start the server, or correct its address in CACHES.")
    if _any(kinds, TimeoutError, RedisTimeoutError):
        advice = "Check the address, and the firewalls on the way; the server may hang."
        advice = f"Check that this port uses TLS, or write redis://. {advice}" if by_tls else advice
        return Cause("connection", f"no reply from {where} in time", advice)
    return Cause("connection", text, _CLOSED)


def _any(kinds: tuple[type[BaseException], ...], *wanted: type[BaseException]) -> bool:
    return any(issubclass(kind, wanted) for kind in kinds)


def _code(meaning: Meaning) -> str:
    return next(code for code, each in MEANINGS.items() if each is meaning)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, each once."""
    # Errors may refer to each other in a circle.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _shortened(error: BaseException) -> str:
    text = redacted(str(error)) or type(error).__name__
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
