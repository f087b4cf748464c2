"""Values of key templates: found in the arguments or the request, and encoded.

Equal values have the same text, which consists of ``[A-Za-z0-9_.@%-]`` only, and different values differ.
"""

from __future__ import annotations

import difflib
import json
import re
import string
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import Any
from uuid import UUID

from django.urls.converters import DEFAULT_CONVERTERS, get_converters
from django.utils.functional import LazyObject, empty

from django_rlock._core import foreign

MAX_BYTES = 200
DIGEST_BYTES = 16
_PREFIX_BYTES = MAX_BYTES - len("~") - 2 * DIGEST_BYTES
_PLAIN_CHARS = frozenset(string.ascii_letters + string.digits + "_.@-")
VALUE_CHARS = _PLAIN_CHARS | {"%"}
_PERCENT_CODES = {byte: f"%{byte:02X}" for byte in range(256) if chr(byte) not in _PLAIN_CHARS}
_is_plain = re.compile(r"[A-Za-z0-9_.@-]+").fullmatch


class UnusableValueError(Exception):
    """The reason why a template or a value is refused; the caller adds the place."""


class MissingError(UnusableValueError):
    """A value is missing, which a placeholder with ``?`` allows."""


def no_converter(name: str) -> str:
    close = difflib.get_close_matches(name, [*get_converters(), *OWN_CONVERTERS], n=1)
    advice = f"did you mean {close[0]!r}?" if close else "register it in the URLconf, or use a built-in converter"
    return f"no path converter {name!r}; {advice}"


def step(value: Any, segment: str) -> Any:
    if isinstance(value, Mapping):
        if segment not in value:
            raise MissingError(f"is missing: there is no item {segment!r}")
        found = value[segment]
    else:
        try:
            found = getattr(value, segment)
        except AttributeError as error:
            raise MissingError(f"is missing: {_kind(value)} has no {segment!r}") from error
    if callable(found):
        raise UnusableValueError(f"is not a value: {segment!r} is callable, and templates do not call anything")
    if found is None and _is_anonymous(value):
        raise MissingError(f"is None, as the user is {_kind(value)}: nobody is logged in")
    return found


def _data(request: Any) -> Any:
    if hasattr(request, "data"):  # Django REST framework's request
        return request.data
    if request.content_type != "application/json" and not request.content_type.endswith("+json"):
        return request.POST
    if not hasattr(request, "rlock_json"):
        try:
            request.rlock_json = json.loads(request.body)
        except (ValueError, RecursionError) as error:  # RecursionError: a body of "[[[[..."
            raise UnusableValueError("cannot be read: the body of the request is not valid JSON") from error
    return request.rlock_json


FROM_REQUEST: dict[str, Callable[[Any], Any]] = {
    "GET": lambda request: request.GET,
    "POST": lambda request: request.POST,
    "header": lambda request: request.headers,
    "data": _data,
}


def _present(value: Any) -> Any:
    while isinstance(value, LazyObject):  # request.user
        found = foreign.unwrapped(value)
        value = foreign.unwrap(value) if found is empty else found
    if value is None or (isinstance(value, str) and not value):
        raise MissingError("is None" if value is None else "is an empty string")
    if _is_anonymous(value):
        raise MissingError(f"is {_kind(value)}: nobody is logged in")
    return value


def _is_anonymous(value: Any) -> bool:
    return getattr(value, "is_anonymous", False) is True


def _kind(value: Any) -> str:
    return str(value.__class__.__name__)


def encoded(value: Any, colon: str, read: list[Any]) -> str:
    if type(value) is str and _is_plain(value):  # nearly every value is one of these two
        return value
    if type(value) is int:
        return _text(value)
    from django.db.models import Model

    value = _present(value)
    if not isinstance(value, Model):
        return _quote(_text(value))
    read.append(value)
    return _instance(value, colon)


def _instance(instance: Any, colon: str) -> str:
    if instance.pk is None:
        raise MissingError(f"is {_kind(instance)} without a primary key: save it first")
    # Use the concrete class, because a proxy is the same row.
    label = instance._meta.concrete_model._meta.label_lower  # noqa: SLF001 (documented API)
    return f"{_quote(label)}{colon}{_quote(_text(_present(instance.pk)))}"


def converted(name: str, value: Any) -> str:
    """Return the text that the converter writes into a URL, encoded.

    A string is parsed first, as from a URL: "007" and 7 mean the same row, so they must be the same lock. Otherwise a
    client could bypass the lock with a zero.
    """
    value, converter = _present(value), find_converter(name)
    if converter is None:
        raise UnusableValueError(f"cannot be read: {no_converter(name)}")
    try:
        if isinstance(value, str) or name in DEFAULT_CONVERTERS:  # whose to_url() takes str() of anything
            value = converter.to_python(_matching(converter, name, _text(value)))
        written = converter.to_url(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise UnusableValueError(f"is {_kind(value)} that converter {name!r} fails on; check the caller") from error
    return _quote(_matching(converter, name, _text(_present(written))))


class _Casefold:
    """A converter that gives one text to all spellings that a database may compare as equal.

    Databases differ in what they ignore, so it ignores everything that one of them does: case, accents, invisible
    characters, blanks at the ends, and the form of Unicode. Texts that share a lock needlessly only wait.
    """

    regex = r"(?s:.*)"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: Any) -> str:
        text = _text(value)
        if len(text) > _LONGEST_FOLDED:
            raise UnusableValueError(f"has more than {_LONGEST_FOLDED:,} characters, which take too long to fold")
        decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
        return "".join(char for char in decomposed if unicodedata.category(char) not in _IGNORED).strip()


_IGNORED = {"Cc", "Cf", "Me", "Mn"}
_LONGEST_FOLDED = 1_000
"""Normalizing takes quadratic time for long rows of combining characters."""

OWN_CONVERTERS = {"casefold": _Casefold()}
"""Converters for templates, beside those of the URLconf. A project may register another one under the same name."""


def find_converter(name: str) -> Any:
    """The path converter with this name; None if there is none."""
    return get_converters().get(name) or OWN_CONVERTERS.get(name)


def _matching(converter: Any, name: str, text: str) -> str:
    if re.fullmatch(converter.regex, text) is None:
        # Without the value, which may be personal, or a megabyte long.
        raise UnusableValueError(f"does not match {converter.regex!r} of converter {name!r}; check what was passed")
    return text


def _text(value: Any) -> str:
    """Return a text that is the same for equal values, and different for other values of their type."""
    try:
        return (_WRITERS.get(type(value)) or _writer(value))(value)
    except (ValueError, OverflowError) as error:  # an int of 5,000 digits, a date next to year 1
        raise UnusableValueError(f"is {_kind(value)} out of range: {error}") from error


def _writer(value: Any) -> Callable[[Any], str]:
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write
    raise UnusableValueError(
        f"is {_kind(value)}; keys take str, int, bool, UUID, Decimal, date, datetime, Enum and saved model "
        f"instances; use an attribute of such a type, as in <order.pk>"
    )


def _float(_value: float) -> str:
    # 0.1 + 0.2 and 0.3 would be two locks although the caller considers them one value; nan does not even equal itself.
    raise UnusableValueError("is float, which rounding can turn into another lock; use int, Decimal or str")


def _decimal(value: Decimal) -> str:
    if not value.is_finite() or (value and abs(value.adjusted()) > MAX_BYTES):
        raise ValueError("not finite, or too many digits")  # 1E+999999999 would be written out
    text = format(value, "f") if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


# The first match counts: a choice is a str, a bool an int, a datetime a date. True is not "1", a common pk.
_WRITERS: dict[type, Callable[[Any], str]] = {
    # A choices field contains the member before the row is read back, and its value afterwards.
    Enum: lambda member: _text(_present(member.value)),
    str: str.__str__,
    bool: bool.__repr__,
    int: int.__repr__,
    UUID: str,
    Decimal: _decimal,
    datetime: lambda moment: (moment if moment.utcoffset() is None else moment.astimezone(UTC)).isoformat(),
    date: date.isoformat,
    float: _float,
}


def _quote(text: str) -> str:
    if _is_plain(text):
        return text
    # surrogatepass: half of a surrogate pair, which JSON can contain, makes a key like any other text.
    return text.encode("utf-8", "surrogatepass").decode("latin-1").translate(_PERCENT_CODES)


def shortened(key: str) -> str:
    raw = key.encode()
    if len(raw) <= MAX_BYTES:
        return key
    digest = blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()
    return f"{raw[:_PREFIX_BYTES].decode('utf-8', 'ignore')}~{digest}"
