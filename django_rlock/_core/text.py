"""Texts for display: without passwords and unprintable characters.

Every URL or setting's value in an error, a check or a page is shown through this. Anything that may be part of a
password is hidden: the text may lose a part of a URL, but never shows a password. Names come from clients and from
Redis, where anyone may have planted anything: errors, log records and labels show a line break as ``\\n``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote_plus

HIDDEN = "***"
_SECRETS = "pass", "secret", "token"
# Each pattern reads a text once, since a server or a client may have sent a long one: no part is tried in two ways.
# Hence the "++", after which nothing is given back, and the look ahead for a word that tells a secret.
_SECRET_NAME = rf"(?=[\w.-]*(?:{'|'.join(_SECRETS)}))[\w.-]++"
# Patterns are compiled on first use: that takes longer than most modules take to import, and few processes need it.
_QUOTED = r"""b?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?=[\s,)}\]]|$)"""
# Raw passwords contain slashes, at signs and question marks, so only white space certainly ends a URL.
_URL = r"(?<=://)\S++"
# Without an @, what follows a colon is a port or, where the host is missing, a password.
_PORT = r"""\d{1,5}(?:/\d*/?)?(?:\?[\w%]+=|[,;]\w+://|[,;.:'")\]}>]*(?:\s|$))"""
_NO_HOST = rf"(?<=://)((?:\[[^\s\[\]]*\]|(?:(?![,;]\w+://)[^\s:/?#@\[\]])*):)(?!(?<!://:){_PORT})\S+"
_IN_QUERY = r"[?&]([^\s=&?]*)="
_VALUE = r"[^\s&]*"
# As objects of redis-py 6 show themselves: raw, so a value may contain commas and brackets, and nothing certainly ends
# it. Later versions hide it themselves, and what follows says why they failed.
_ASSIGNED = rf"(?is)(?<![\w.?&%-])({_SECRET_NAME}=)(?!<REDACTED>).*"
_IN_DICT = rf"""(?is)(['"]{_SECRET_NAME}\\*['"]:\s*)(?:{_QUOTED}|.*)"""


def printable(text: object) -> str:
    """A text without line breaks, cursor movements and colours: control characters become escapes."""
    plain = str(text)
    return plain if plain.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)


def redacted(text: str) -> str:
    """The text with ``***`` for the user and password of each URL in it, for passwords in queries, and for the values
    of names that tell a secret, as in ``{"password": "…"}`` and ``password=…``.

    A URL ends at white space, a value after ``=`` with the text.
    """
    text = re.sub(_URL, _without_credentials, "".join(_without_secrets_in_queries(text)))
    for secret in (_NO_HOST, _IN_DICT, _ASSIGNED):
        text = re.sub(secret, rf"\1{HIDDEN}", text)
    return text


def reason_of(error: BaseException) -> str:
    """The text of an exception, without passwords and its full stop; its type if it has none, as many time-outs do."""
    return redacted(str(error)).rstrip(".") or type(error).__name__


def hide_secrets(error: BaseException | None) -> None:
    """Hide passwords in the texts of an exception and its causes: a traceback shows all of them."""
    while error is not None:
        error.args = tuple(redacted(each) if isinstance(each, str) else each for each in error.args)
        error = error.__cause__ or error.__context__


def shown(value: object) -> str:
    """The ``repr`` of a setting's value, without passwords in URLs and under keys that name a secret."""
    return repr(_without_passwords(value))


def suggestion(name: object, known: Iterable[object]) -> str:
    """Which of the known names was probably meant, for the end of an error's sentence; empty if none is close."""
    match = get_close_matches(str(name), [str(item) for item in known], n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _without_credentials(url: re.Match[str]) -> str:
    _credentials, at, host = url[0].rpartition("@")
    return f"{HIDDEN}@{host}" if at else host


def _without_secrets_in_queries(text: str) -> Iterator[str]:
    """The text in pieces. Of a value without a secret only the name is a piece, as it may contain another query."""
    start = 0
    for found in re.finditer(_IN_QUERY, text):
        if found.start() < start:
            continue  # inside a secret
        yield text[start : found.end()]
        start = found.end()
        if _is_secret(unquote_plus(found[1])):
            value = re.compile(_VALUE).match(text, start)
            # Either "@" is part of the password, or it ends one that contains all of this: hide what is before it too.
            yield f"{HIDDEN}@{HIDDEN}" if value and "@" in value[0] else HIDDEN
            start = value.end() if value else start
    yield text[start:]


def _is_secret(name: object) -> bool:
    return any(word in str(name).lower() for word in _SECRETS)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return _without_password(value)
    if isinstance(value, bytes):
        return _without_password(value.decode("latin-1")).encode("latin-1")
    if isinstance(value, Mapping):
        return {
            _without_passwords(key): HIDDEN if _is_secret(key) else _without_passwords(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_without_passwords, value))
    if isinstance(value, set | frozenset) and value:
        # Sorted, because equal sets may differ in order, and one mistake should have one text.
        return _Shown("{" + ", ".join(sorted(map(shown, value))) + "}")
    return _Shown(redacted(repr(value)))


def _without_password(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    if mark and any(map(str.isspace, rest)):
        return f"{scheme}{mark}{HIDDEN}"
    return redacted(text)


class _Shown(str):
    """A text whose ``repr`` is the text itself."""

    __slots__ = ()
    __repr__ = str.__str__
