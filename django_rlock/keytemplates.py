"""Key templates: ``"stock:<int:id>"`` and the arguments of a call make the name of a lock.

A template never gives one key to two different bindings:

* values are percent-encoded outside ``[A-Za-z0-9_.@-]``, so it is known what they can consist of;
* between two placeholders stands a character that no value can contain: read from the left, the first such
  character ends the value, so each value can be read back, an empty one too;
* only a shortened key contains ``~``.

Two spellings of one thing share a key: ``1`` and ``"1"`` (tests and JSON pass strings where views pass
integers), ``True`` and ``"True"``, an enum member and its value, ``Decimal("1.0")`` and ``Decimal("1.00")``,
one instant in two time zones. A key too few makes somebody wait; a key too many lets two in.
"""

from __future__ import annotations

import difflib
import json
import re
import string
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import Any
from uuid import UUID

from django.urls.converters import DEFAULT_CONVERTERS, get_converters
from django.utils.functional import LazyObject, empty

from .exceptions import KeyTemplateError

MAX_BYTES = 200
_DIGEST_BYTES = 16
_PREFIX_BYTES = MAX_BYTES - len("~") - 2 * _DIGEST_BYTES

_PLAIN = frozenset(string.ascii_letters + string.digits + "_.@-")
_VALUE_CHARS = _PLAIN | {"%"}
_ESCAPES = {byte: f"%{byte:02X}" for byte in range(256) if chr(byte) not in _PLAIN}
_is_plain = re.compile(r"[A-Za-z0-9_.@-]+").fullmatch
_TOKEN = re.compile(r"(<<|<[^<>]*>)")


class _RefusedError(Exception):
    """Why a template or a value is not taken; the caller adds where."""


class _MissingError(_RefusedError):
    """There is no value, which ``?`` allows."""


@dataclass(frozen=True, slots=True)
class _Placeholder:
    converter: str
    root: str
    path: tuple[str, ...]
    optional: bool

    def spelled(self, root: str) -> str:
        converter = f"{self.converter}:" if self.converter else ""
        return f"<{converter}{'.'.join((root, *self.path))}{'?' * self.optional}>"

    def __str__(self) -> str:
        return self.spelled(self.root)

    @property
    def needs(self) -> str:
        return "request" if self.path and self.root in _FROM_REQUEST else self.root

    def render(self, namespace: Mapping[str, Any], colon: str) -> str:
        try:
            value = self._find(namespace)
            return _converted(self.converter, value) if self.converter else _encoded(value, colon)
        except _MissingError as missing:
            if self.optional:
                return ""
            advice = f"pass a value, or write {str(self)[:-1]}?> if it may be missing"
            raise _RefusedError(f"{self} {missing}; {advice}") from missing.__cause__
        except _RefusedError as refused:
            raise _RefusedError(f"{self} {refused}") from refused.__cause__

    def _find(self, namespace: Mapping[str, Any]) -> Any:
        # A bound argument wins over the request's GET, POST, header and data: it is what the body works with,
        # and the signature fixes it. Otherwise a client could choose the key by sending a field of that name.
        if self.root in namespace:
            value = namespace[self.root]
        elif self.needs in namespace:
            value = _FROM_REQUEST[self.root](namespace["request"])
        else:
            raise _MissingError(f"is missing: there is no {self.needs!r}")
        for segment in self.path:
            value = _step(value, segment)
        return value


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A parsed template, made once and rendered for each call; equal to another of the same source.

    ``names`` are what it looks up: ``{"order"}`` for ``<order.pk>``, ``{"request"}`` for ``<GET.q>``.

        template = KeyTemplate.parse("stock:<int:id>")
        template.render({"id": 7})  # "stock:7"
    """

    source: str
    names: frozenset[str] = field(compare=False)
    _parts: tuple[str | _Placeholder, ...] = field(compare=False, repr=False)
    _colon: str = field(compare=False, repr=False)

    @classmethod
    def parse(cls, source: str) -> KeyTemplate:
        """Compile a template; ``KeyTemplateError`` says what is wrong with it and what to write instead."""
        try:
            parts = tuple(_parse(source))
            separators = [set(text) for text in _separators(parts)]
        except _RefusedError as refused:
            shown = source if source and str(source).isprintable() else ascii(source)
            raise KeyTemplateError(f"{shown}: {refused}", template=source) from None
        names = frozenset(part.needs for part in parts if isinstance(part, _Placeholder))
        # The colon of "shop.order:7" is plain only where a colon does not end a value. Strings give
        # upper-case escapes, so with either spelling an instance shares its key with no string.
        colon = ":" if all(text - _VALUE_CHARS - {":"} for text in separators) else "%3a"
        return cls(source, names, parts, colon)

    def render(self, namespace: Mapping[str, Any]) -> str:
        """Return the key for these arguments; ``KeyTemplateError`` if a value is missing or no part of a key.

        What properties raise passes through, except ``AttributeError``: it is not the template's fault.
        """
        colon = self._colon
        try:
            key = "".join([p if isinstance(p, str) else p.render(namespace, colon) for p in self._parts])
        except _RefusedError as refused:
            text = check_names(self, namespace, "the call") or f"{self.source}: {refused}"
            raise KeyTemplateError(text, template=self.source) from refused.__cause__
        return key if len(key) <= MAX_BYTES and key.isascii() else _shortened(key)

    def placeholders(self) -> list[_Placeholder]:
        return [part for part in self._parts if isinstance(part, _Placeholder)]


def check_names(template: KeyTemplate, available: Collection[str], what: str) -> str | None:
    """Return the error, with a close match, if the template needs a name that is not available.

    ``what`` tells the reader what has these names: ``buy(request, pk)`` or ``route 'buy/<int:pk>/'``.
    """
    for placeholder in template.placeholders():
        name, needs = placeholder.root, placeholder.needs
        if placeholder.optional or name in available or needs in available:
            continue
        source = "" if needs == name else f" and no {needs!r} to take it from"
        has = ", ".join(map(repr, available)) or "no arguments"
        text = f"{template.source}: no argument {name!r}{source}; {what} has {has}"
        if close := _closest(name, available, template):
            better = template.source.replace(str(placeholder), placeholder.spelled(close))
            text += f"; did you mean {better!r}?"
        return text
    return None


def check_converters(template: KeyTemplate) -> str | None:
    """Return the error if the template uses a path converter that is not registered.

    To be called once the URLconf is loaded: projects register theirs there, usually below the import of the
    views, which is when templates are parsed.
    """
    for name in (placeholder.converter for placeholder in template.placeholders()):
        if name and name not in get_converters():
            return f"{template.source}: {_no_converter(name)}"
    return None


def _no_converter(name: str) -> str:
    close = difflib.get_close_matches(name, list(get_converters()), n=1)
    advice = f"did you mean {close[0]!r}?" if close else "register it in the URLconf, or take a built-in one"
    return f"no path converter {name!r}; {advice}"


def _closest(name: str, available: Collection[str], template: KeyTemplate) -> str | None:
    used = {placeholder.root for placeholder in template.placeholders()}
    free = [other for other in available if other not in used | {"request", "self", "cls", "task"}]
    fields = list(_FROM_REQUEST) if "request" in available else []
    folded = {other.lower(): other for other in (*fields, *free)}
    if close := difflib.get_close_matches(name.lower(), list(folded), n=1):
        return folded[close[0]]
    likely = [other for other in free if {name, other} == {"id", "pk"} or other.endswith(f"_{name}")] or free
    return likely[0] if len(likely) == 1 else None


# ---- parsing -----------------------------------------------------------------------------------------------


def _parse(source: object) -> Iterator[str | _Placeholder]:
    if not isinstance(source, str) or not source.strip():
        raise _RefusedError("a key template is a string with something in it, such as 'stock:<id>'")
    literal, empty_key = "", True
    for piece in _TOKEN.split(source):
        if "<" not in piece or piece == "<<":
            literal += piece[:1] if piece == "<<" else piece
            continue
        if not piece.endswith(">"):
            raise _RefusedError(f"{piece[piece.index('<') :]!r} is not closed; write '<<' for a literal '<'")
        if literal:
            yield _literal(literal)
        placeholder = _placeholder(piece[1:-1])
        empty_key = empty_key and placeholder.optional and not literal
        literal = ""
        yield placeholder
    if literal:
        yield _literal(literal)
    elif empty_key:
        raise _RefusedError("without the optional values the key would be empty; begin with a name, as 'stock:'")


def _literal(text: str) -> str:
    for char in text:
        if char in "{}~" or not char.isprintable():
            raise _RefusedError(
                f"no {char!a} in a template: braces and '~' are for the library to set, and the rest must be "
                f"printable; take it out, or write <name> where a value is meant"
            )
    return text


def _placeholder(text: str) -> _Placeholder:
    shown = repr(f"<{text}>")
    converter, colon, dotted = text.removesuffix("?").rpartition(":")
    root, *path = dotted.split(".")
    words = [segment.replace("-", "").replace("_", "") for segment in path]  # headers have hyphens
    if not root.isidentifier() or not all(map(str.isalnum, words)) or (colon and not converter.isidentifier()):
        raise _RefusedError(
            f"{shown} is not a placeholder; write <name>, <int:name> or <name.attribute>, with '?' at the "
            f"end if it may be missing, and no calls, indexes or spaces; '<<' is a literal '<'"
        )
    if any(segment.startswith("_") for segment in (root, *path)):
        raise _RefusedError(f"{shown} reads a private name; take one without a leading underscore")
    return _Placeholder(converter, root, tuple(path), text.endswith("?"))


def _separators(parts: tuple[str | _Placeholder, ...]) -> Iterator[str]:
    """Yield the texts between placeholders; refuse one that could be a piece of a value.

    Converters do not relax it, though ``<int:a>x<int:b>`` is clear: their regex may change far from here.
    """
    left, text = None, ""
    for part in parts:
        if isinstance(part, str):
            text = part
            continue
        if left is not None:
            if _VALUE_CHARS.issuperset(text):
                raise _RefusedError(
                    f"'{left}{text}{part}' is ambiguous: values may contain letters, digits and '_.@-%', so "
                    f"two calls could get one key; put a separator such as ':' between, as in '{left}:{part}'"
                )
            yield text
        left, text = part, ""


# ---- finding values ----------------------------------------------------------------------------------------


def _step(value: Any, segment: str) -> Any:
    if isinstance(value, Mapping):
        if segment not in value:
            raise _MissingError(f"is missing: there is no item {segment!r}")
        found = value[segment]
    else:
        try:
            found = getattr(value, segment)
        except AttributeError as error:
            raise _MissingError(f"is missing: {_kind(value)} has no {segment!r}") from error
    if callable(found):
        raise _RefusedError(f"is no value: {segment!r} is callable, and templates call nothing")
    if found is None and _is_anonymous(value):
        raise _MissingError(f"is None, as the user is {_kind(value)}: nobody is logged in")
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
            raise _RefusedError("cannot be read: the body of the request is not valid JSON") from error
    return request.rlock_json


_FROM_REQUEST: dict[str, Callable[[Any], Any]] = {
    "GET": lambda request: request.GET,
    "POST": lambda request: request.POST,
    "header": lambda request: request.headers,
    "data": _data,
}


def _present(value: Any) -> Any:
    while isinstance(value, LazyObject):  # request.user
        if value._wrapped is empty:  # noqa: SLF001 (Django has no public way)
            value._setup()  # noqa: SLF001
        value = value._wrapped  # noqa: SLF001
    if value is None or (isinstance(value, str) and not value):
        raise _MissingError("is None" if value is None else "is an empty string")
    if _is_anonymous(value):
        raise _MissingError(f"is {_kind(value)}: nobody is logged in")
    return value


def _is_anonymous(value: Any) -> bool:
    return getattr(value, "is_anonymous", False) is True


def _kind(value: Any) -> str:
    return str(value.__class__.__name__)


# ---- values to text ----------------------------------------------------------------------------------------


def _encoded(value: Any, colon: str) -> str:
    if type(value) is str and _is_plain(value):  # nearly every value is one of these two
        return value
    if type(value) is not int:
        from django.db.models import Model

        value = _present(value)
        if isinstance(value, Model):
            return _instance(value, colon)
    return _quote(_text(value))


def _instance(instance: Any, colon: str) -> str:
    if instance.pk is None:
        raise _MissingError(f"is {_kind(instance)} without a primary key: save it first")
    # The concrete class, as a proxy is the same row.
    label = instance._meta.concrete_model._meta.label_lower  # noqa: SLF001 (documented API)
    return f"{_quote(label)}{colon}{_quote(_text(_present(instance.pk)))}"


def _converted(name: str, value: Any) -> str:
    """Return what the converter writes into a URL, encoded.

    A string is read first, as from a URL: "007" and 7 are one row, so they must be one lock, or a client
    steps past the lock with a zero.
    """
    value, converter = _present(value), get_converters().get(name)
    if converter is None:
        raise _RefusedError(f"cannot be read: {_no_converter(name)}")
    try:
        if isinstance(value, str) or name in DEFAULT_CONVERTERS:  # whose to_url() takes str() of anything
            value = converter.to_python(_matching(converter, name, _text(value)))
        written = converter.to_url(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise _RefusedError(f"is {_kind(value)} that converter {name!r} fails on; check the caller") from error
    return _quote(_matching(converter, name, _text(_present(written))))


def _matching(converter: Any, name: str, text: str) -> str:
    if re.fullmatch(converter.regex, text) is None:
        # Without the value, which may be personal, or a megabyte long.
        raise _RefusedError(f"does not match {converter.regex!r} of converter {name!r}; check what was passed")
    return text


def _text(value: Any) -> str:
    """Return a text that is the same for equal values, and another for others of their type."""
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            try:
                return write(value)
            except (ValueError, OverflowError) as error:  # an int of 5,000 digits, a date next to year 1
                raise _RefusedError(f"is {_kind(value)} out of range: {error}") from error
    raise _RefusedError(
        f"is {_kind(value)}; keys take str, int, bool, UUID, Decimal, date, datetime, Enum and saved model "
        f"instances; take an attribute of such a type, as in <order.pk>"
    )


def _enum(value: Enum) -> str:
    # A choices field holds the member before the row is read back, and its value after.
    return _text(_present(value.value))


def _float(_value: float) -> str:
    # 0.1 + 0.2 and 0.3 would be two locks for what the caller takes for one; nan does not even equal itself.
    raise _RefusedError("is float, which rounding can turn into another lock; use int, Decimal or str")


def _decimal(value: Decimal) -> str:
    if not value.is_finite() or (value and abs(value.adjusted()) > MAX_BYTES):
        raise ValueError("not finite, or too many digits")  # 1E+999999999 would be written out
    text = format(value, "f") if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(value: datetime) -> str:
    return (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat()


# The first that fits: a choice is a str, a bool an int, a datetime a date. True is not "1", a usual pk.
_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Enum, _enum),
    (str, str.__str__),
    (bool, bool.__repr__),
    (int, int.__repr__),
    (UUID, str),
    (Decimal, _decimal),
    (datetime, _moment),
    (date, date.isoformat),
    (float, _float),
)


def _quote(text: str) -> str:
    if _is_plain(text):
        return text
    # surrogatepass: half a surrogate pair, which JSON can carry, makes a key like any other text.
    return text.encode("utf-8", "surrogatepass").decode("latin-1").translate(_ESCAPES)


def _shortened(key: str) -> str:
    raw = key.encode()
    if len(raw) <= MAX_BYTES:
        return key
    digest = blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()
    return f"{raw[:_PREFIX_BYTES].decode('utf-8', 'ignore')}~{digest}"
