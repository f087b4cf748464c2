"""The causes of a server that does not reply or refuses commands, each with its remedy as a separate finding."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from django_rlock._core.errors import FILE_ADVICE, MEANINGS, Meaning, meaning_of, unreadable_in
from django_rlock._core.redis_py import unreadable_file
from django_rlock._core.text import redacted
from django_rlock._transport.servers import address_of
from django_rlock.exceptions import LockUnavailableError, QuorumNotReachedError

LONGEST_TEXT = 200
"""The number of characters shown of another library's error: some errors list many objects."""


class Cause(NamedTuple):
    """A finding's check, its text, and one piece of advice."""

    check: str
    text: str
    advice: str


_NO_TLS = "The server does not use TLS on this port: write redis:// instead of rediss://, or use its TLS port."
_CLOSED = "Write rediss:// if the server accepts TLS only; read the log of the server, or of the proxy before it."
_HOST = (
    "Use a name of its certificate in LOCATION. If nodes or sentinels announce other addresses, map the addresses to "
    "names by NODE_ADDRESSES, let the servers announce host names, or set ssl_check_hostname to False."
)
_PEM = "Compare the files that the ssl_… options name: a certificate in PEM form, and the key that belongs to it."
_OTHER_TLS = "Compare the ssl_… options with the server's: does it need a client certificate?"
_RESP3 = "Set 'protocol': 2 in the options of redis-py: the server, or a proxy before it, does not support RESP3."
_REFUSED = "The server, or a provider or proxy before it, refuses; its text says why. Look it up in its documentation."
_SLOTS = "Some slots have no node: redis-cli --cluster fix assigns them, redis-cli --cluster check lists them."
_SENTINELS = "See the finding about the sentinels; if all of them reply, they count the primary as down: start it."
_SOCKET = "Let this user read and write the server's socket: see unixsocketperm, and the socket's group."
_PAUSED = "The server replies to other commands: a failover or CLIENT PAUSE stops writes; CLIENT UNPAUSE resumes them."

_REFUSALS = (
    ("unknown command 'hello'", "protocol", _RESP3),
    ("unknown command `hello`", "protocol", _RESP3),
    ("noproto", "protocol", _RESP3),
)
"""Checks and advice by a part of an error that the server sent, in lower case."""

_FAILURES = (
    ("certificate has expired", "tls", "Renew the server's certificate."),
    (
        "certificate is not yet valid",
        "tls",
        "Correct the clock of this machine, or of the certificate's authority.",
    ),
    ("hostname mismatch", "tls", _HOST),
    ("ip address mismatch", "tls", _HOST),
    (
        "certificate verify failed",
        "tls",
        "Set ssl_ca_certs to its authority, and use the host name of its certificate.",
    ),
    ("wrong version number", "tls", _NO_TLS),
    ("wrong_version_number", "tls", _NO_TLS),
    ("packet length too long", "tls", _NO_TLS),
    ("record layer failure", "tls", _NO_TLS),
    ("pem lib", "tls", _PEM),
    ("no_certificate_or_crl_found", "tls", _PEM),
    ("key_values_mismatch", "tls", _PEM),
    ("slots are not covered", "cluster", _SLOTS),
    ("protocol error", "protocol", "Correct the port in CACHES: another program than Redis replies there."),
)
"""The same for errors of redis-py and the system."""

_BY_KIND: tuple[tuple[tuple[type[BaseException], ...], str, str, str], ...] = (
    (
        (ssl.SSLError,),
        "tls",
        "{text}",
        "Compare the ssl_… options with the server's: does it need a client certificate?",
    ),
    ((socket.gaierror,), "name", "{text}", "Correct the host name in CACHES, or the DNS."),
    ((PermissionError,), "connection", "{text}", _SOCKET),
    (
        (ConnectionRefusedError, FileNotFoundError),
        "connection",
        "nothing listens at {where}",
        "Start the server, or correct its address in CACHES.",
    ),
)
"""Checks, texts and advice by the types of errors."""

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


def cause_at(error: BaseException, client: Any, has_replied: bool = False) -> Cause:
    """The cause of a client's error. A file of TLS that cannot be read counts first: redis-py does not name it."""
    pool = client.connection_pool
    by_tls = issubclass(pool.connection_class, redis.SSLConnection)
    return cause_of(unreadable_file(pool.connection_kwargs) or error, address_of(client), by_tls, has_replied)


def cause_of(error: BaseException, where: str, by_tls: bool = False, has_replied: bool = False) -> Cause:
    """The cause of an error at an address; ``by_tls`` if the connection was to use TLS, ``has_replied`` if the server
    has executed other commands.

    If the server explains the error, its explanation counts; only a connection that closes without a word leaves room
    for guesses.
    """
    # redis-py wraps the system's errors in its own.
    errors = list(_chain(error))
    text = f"{where}: {_shortened(error)}"
    if any(isinstance(each, MasterNotFoundError) for each in errors):
        return Cause("sentinels", f"{where}: no sentinel names a primary", _SENTINELS)
    return _refusal(errors, text) or _failure(errors, where, text, by_tls, has_replied)


def _refusal(errors: list[BaseException], text: str) -> Cause | None:
    """The cause if the server has replied with an error."""
    refusal, meaning = next(((each, found) for each in errors if (found := meaning_of(each))), (None, None))
    if refusal is None or meaning is None:
        return None
    if known := _known(_REFUSALS, [refusal], text):
        return known
    if meaning.advice is None:
        return Cause("refused", text, _REFUSED)
    return Cause(_BY_CODE.get(_code(meaning), "login"), text, meaning.advice)


def _failure(errors: list[BaseException], where: str, text: str, by_tls: bool, has_replied: bool) -> Cause:
    """The cause if no server has explained it."""
    if unreadable := next(filter(None, map(unreadable_in, errors)), None):
        return Cause("tls", f"{where}: {unreadable.filename} cannot be read: {unreadable.strerror}", FILE_ADVICE)
    # A text tells more than the type of its error: many causes arrive as a ConnectionError.
    if known := _known(_FAILURES, errors, text):
        return known
    for kinds, check, shown, advice in _BY_KIND:
        if _any(errors, kinds):
            return Cause(check, shown.format(where=where, text=text), advice)
    if _any(errors, (TimeoutError, RedisTimeoutError)):
        return Cause("connection", f"no reply from {where} in time", _silence(by_tls, has_replied))
    return Cause("connection", text, _CLOSED)


def _known(table: tuple[tuple[str, str, str], ...], errors: list[BaseException], text: str) -> Cause | None:
    texts = " ".join(map(str, errors)).lower()
    return next((Cause(check, text, advice) for part, check, advice in table if part in texts), None)


def _silence(by_tls: bool, has_replied: bool) -> str:
    if has_replied:
        return _PAUSED
    advice = "Check the address, and the firewalls on the way; the server may hang."
    return f"Check that this port uses TLS, or write redis://. {advice}" if by_tls else advice


def _any(errors: list[BaseException], kinds: tuple[type[BaseException], ...]) -> bool:
    return any(isinstance(each, kinds) for each in errors)


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


def advice_on_lock(error: LockUnavailableError) -> str:
    """Advice on a refused test lock, if the servers have replied to other commands."""
    refusal = error.__cause__
    if refusal is None or isinstance(error, QuorumNotReachedError):
        return error.advice
    return cause_of(refusal, error.lock_name or "", has_replied=True).advice
