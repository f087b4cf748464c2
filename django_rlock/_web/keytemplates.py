"""Key templates: ``"stock:<int:id>"`` and the arguments of a call, by name, make the name of a lock."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from django_rlock._core.process import MadeOnce
from django_rlock._web import values
from django_rlock.exceptions import KeyTemplateError

# --- templates --------------------------------------------------------------------------------------------------------

# A template never gives one key to two different bindings:
#
# * values are percent-encoded outside ``[A-Za-z0-9_.@-]``, so the characters of a value are known;
# * two placeholders are separated by a character that no value can contain: read from the left, the first such
#   character ends the value, so each value can be read back, even an empty one;
# * only a shortened key contains ``~``.
#
# Different spellings of one value share a key: ``1`` and ``"1"`` (tests and JSON pass strings where views pass
# integers), ``True`` and ``"True"``, an enum member and its value, ``Decimal("1.0")`` and ``Decimal("1.00")``, one
# instant in two time zones. If two values share a key, one caller waits needlessly; if one value had two keys, two
# callers would run at once.

_TOKEN = re.compile(r"(<<|<[^<>]*>)")


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
        return "request" if self.path and self.root in values.FROM_REQUEST else self.root

    def render(self, namespace: Mapping[str, Any], colon: str, read: list[Any]) -> str:
        try:
            value = namespace[self.root] if self.root in namespace else self._from_request(namespace)
            for segment in self.path:
                read.append(value)
                value = values.step(value, segment)
            return values.converted(self.converter, value) if self.converter else values.encoded(value, colon, read)
        except values.MissingError as missing:
            if self.optional:
                return ""
            advice = f"pass a value, or write {str(self)[:-1]}?> if it may be missing"
            raise values.UnusableValueError(f"{self} {missing}; {advice}") from missing.__cause__
        except values.UnusableValueError as refused:
            raise values.UnusableValueError(f"{self} {refused}") from refused.__cause__

    def _from_request(self, namespace: Mapping[str, Any]) -> Any:
        # A bound argument takes precedence over the request's GET, POST, header and data: the body works with it, and
        # the signature fixes it. Otherwise a client could choose the key by sending a field of that name.
        if self.needs not in namespace:
            raise values.MissingError(f"is missing: there is no {self.needs!r}")
        return values.FROM_REQUEST[self.root](namespace["request"])


def names_user(placeholder: _Placeholder) -> bool:
    """Whether a placeholder reads the user of the request."""
    return placeholder.root == "request" and placeholder.path[:1] == ("user",)


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A parsed template, made once and rendered for each call. Templates with the same source are equal.

    ``names`` are the names that it looks up: ``{"order"}`` for ``<order.pk>``, ``{"request"}`` for ``<GET.q>``::

        KeyTemplate.parse("stock:<int:id>").render({"id": 7})  # "stock:7"
    """

    source: str
    names: frozenset[str] = field(compare=False)
    _format: str = field(compare=False, repr=False)
    placeholders: tuple[_Placeholder, ...] = field(compare=False, repr=False)
    _colon: str = field(compare=False, repr=False)

    @classmethod
    def parse(cls, source: str) -> KeyTemplate:
        """Compile a template. Raises KeyTemplateError, which says what is wrong and what to write instead."""
        try:
            parts = tuple(_parse(source))
            separators = [set(text) for text in _separators(parts)]
        except values.UnusableValueError as refused:
            shown = source if source and str(source).isprintable() else ascii(source)
            raise KeyTemplateError(f"{shown}: {refused}", template=source) from None
        literals = "".join("%s" if isinstance(part, _Placeholder) else part.replace("%", "%%") for part in parts)
        placeholders = tuple(part for part in parts if isinstance(part, _Placeholder))
        names = frozenset(placeholder.needs for placeholder in placeholders)
        # The colon of "shop.order:7" stays plain only if a colon does not end a value. Strings give upper-case
        # escapes, so with either spelling an instance shares its key with no string.
        colon = ":" if all(text - values.VALUE_CHARS - {":"} for text in separators) else "%3a"
        return cls(source, names, literals, placeholders, colon)

    def render(self, namespace: Mapping[str, Any], read: list[Any] | None = None) -> str:
        """Return the key for these arguments. Raises KeyTemplateError if a value is missing or cannot be part of a key.

        The objects on the way to its values are added to ``read``. Exceptions from properties pass through, except
        ``AttributeError``: they are not the template's fault.
        """
        colon, read = self._colon, [] if read is None else read
        try:
            key = self._format % tuple([each.render(namespace, colon, read) for each in self.placeholders])
        except values.UnusableValueError as refused:
            text = check_names(self, namespace, "the call") or f"{self.source}: {refused}"
            raise KeyTemplateError(text, template=self.source) from refused.__cause__
        return key if len(key) <= values.MAX_BYTES and key.isascii() else values.shortened(key)


def check_names(template: KeyTemplate, available: Collection[str], what: str) -> str | None:
    """Return an error text, with a close match, if the template needs a name that is not available.

    ``what`` describes where these names come from: ``buy(request, pk)`` or ``route 'buy/<int:pk>/'``.
    """
    for placeholder in template.placeholders:
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
    """Return an error text if the template uses a path converter that is not registered.

    Call it once the URLconf is loaded, where projects register their converters; templates are parsed before.
    """
    for name in (placeholder.converter for placeholder in template.placeholders):
        if name and values.find_converter(name) is None:
            return f"{template.source}: {values.no_converter(name)}"
    return None


def _closest(name: str, available: Collection[str], template: KeyTemplate) -> str | None:
    used = {placeholder.root for placeholder in template.placeholders}
    free = [other for other in available if other not in used | {"request", "self", "cls", "task"}]
    fields = list(values.FROM_REQUEST) if "request" in available else []
    folded = {other.lower(): other for other in (*fields, *free)}
    if close := difflib.get_close_matches(name.lower(), list(folded), n=1):
        return folded[close[0]]
    likely = [other for other in free if {name, other} == {"id", "pk"} or other.endswith(f"_{name}")] or free
    return likely[0] if len(likely) == 1 else None


def _parse(source: object) -> Iterator[str | _Placeholder]:
    if not isinstance(source, str) or not source.strip():
        raise values.UnusableValueError("a key template is a string that is not empty, such as 'stock:<id>'")
    literal, empty_key = "", True
    for piece in _TOKEN.split(source):
        if "<" not in piece or piece == "<<":
            literal += piece[:1] if piece == "<<" else piece
            continue
        if not piece.endswith(">"):
            raise values.UnusableValueError(
                f"{piece[piece.index('<') :]!r} is not closed; write '<<' for a literal '<'"
            )
        if literal:
            yield _literal(literal)
        placeholder = _placeholder(piece[1:-1])
        empty_key = empty_key and placeholder.optional and not literal
        literal = ""
        yield placeholder
    if literal:
        yield _literal(literal)
    elif empty_key:
        raise values.UnusableValueError(
            "without the optional values the key would be empty; begin with a name, as 'stock:'"
        )


def _literal(text: str) -> str:
    for char in text:
        if char in "{}~" or not char.isprintable():
            raise values.UnusableValueError(
                f"no {char!a} in a template: braces and '~' are reserved for the library, and the rest must be "
                f"printable; remove it, or write <name> where a value is meant"
            )
    return text


def _placeholder(text: str) -> _Placeholder:
    shown = repr(f"<{text}>")
    converter, colon, dotted = text.removesuffix("?").rpartition(":")
    root, *path = dotted.split(".")
    words = [segment.replace("-", "").replace("_", "") for segment in path]  # headers have hyphens
    if not root.isidentifier() or not all(map(str.isalnum, words)) or (colon and not converter.isidentifier()):
        raise values.UnusableValueError(
            f"{shown} is not a placeholder; write <name>, <int:name> or <name.attribute>, with '?' at the "
            f"end if it may be missing, and no calls, indexes or spaces; '<<' is a literal '<'"
        )
    if any(segment.startswith("_") for segment in (root, *path)):
        raise values.UnusableValueError(f"{shown} reads a private name; use a name without a leading underscore")
    return _Placeholder(converter, root, tuple(path), text.endswith("?"))


def _separators(parts: tuple[str | _Placeholder, ...]) -> Iterator[str]:
    """Yield the texts between placeholders; refuse a text that could be part of a value.

    Converters do not help, though ``<int:a>x<int:b>`` is clear: their regexes may change elsewhere.
    """
    left, text = None, ""
    for part in parts:
        if isinstance(part, str):
            text = part
            continue
        if left is not None:
            if values.VALUE_CHARS.issuperset(text):
                raise values.UnusableValueError(
                    f"'{left}{text}{part}' is ambiguous: values may contain letters, digits and '_.@-%', so "
                    f"two calls could get one key; put a separator such as ':' between, as in '{left}:{part}'"
                )
            yield text
        left, text = part, ""


# --- arguments of calls -----------------------------------------------------------------------------------------------

_STRINGS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations may refer to names that are imported for type checkers only.
    _STRINGS["annotation_format"] = annotationlib.Format.STRING


class Arguments:
    """Names the arguments of calls of one function; ``names`` is None if any name is allowed."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.signature = None
        # Django's method_decorator decorates a partial of the bound method in each request: its signature would cost
        # too much. Arguments from the URL have names.
        if not is_partial_method(func):
            with suppress(TypeError, ValueError):
                self.signature = inspect.signature(func, **_STRINGS)
        # A decorator below may accept other arguments than the function that it wraps.
        self.is_certain = self.signature is not None and not hasattr(func, "__wrapped__")
        parameters = () if self.signature is None else self.signature.parameters.values()
        has_names = self.is_certain and not any(each.kind is each.VAR_KEYWORD for each in parameters)
        self.names = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL] if has_names else None
        self._name = definition(func).__qualname__

    def of_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, with defaults. Raises TypeError if they do not fit, like the call itself."""
        if self.signature is None:
            return dict(kwargs)
        try:
            return self._bind(*args, **kwargs)
        except TypeError:
            if self.is_certain:
                raise
            return dict(kwargs)

    def of_part(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a call that may leave out arguments."""
        if self.signature is None:
            return dict(kwargs)
        try:
            bound = self.signature.bind_partial(*args, **kwargs)
        except TypeError:
            if self.is_certain:
                raise
            return dict(kwargs)
        bound.apply_defaults()
        for each in self.signature.parameters.values():
            if each.kind is each.VAR_KEYWORD:
                bound.arguments.update(bound.arguments.pop(each.name))
        return bound.arguments

    @MadeOnce
    def _bind(self) -> Callable[..., dict[str, Any]]:
        """Has the function's name and parameters, and returns its arguments by name: the interpreter binds them ten
        times as fast as ``signature.bind()``."""
        signature: Any = self.signature
        parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        # Names of parameters are identifiers. Defaults may be any objects, so None stands for each in the code.
        plain = [each if each.default is each.empty else each.replace(default=None) for each in parameters]
        names = [(each.name, each.kind is each.VAR_KEYWORD) for each in parameters]
        items = [f"**{name}" if is_rest else f"{name!r}: {name}" for name, is_rest in names]
        bind: Any = eval(f"lambda {str(inspect.Signature(plain))[1:-1]}: {{{', '.join(items)}}}")  # noqa: S307
        given = [each for each in parameters if each.default is not each.empty]
        bind.__defaults__ = tuple([each.default for each in given if each.kind is not each.KEYWORD_ONLY])
        bind.__kwdefaults__ = {each.name: each.default for each in given if each.kind is each.KEYWORD_ONLY}
        bind.__qualname__ = self._name
        return bind  # type: ignore[no-any-return]


def is_partial_method(func: object) -> bool:
    """Whether a callable is a partial of a bound method, as Django's method_decorator makes it."""
    return isinstance(func, functools.partial) and isinstance(func.func, MethodType)


def definition(func: Any) -> Any:
    """What names a callable in the code: a function; the function of a partial; the class of another object."""
    while isinstance(func, functools.partial) and not hasattr(func, "__qualname__"):
        func = func.func
    return func if hasattr(func, "__qualname__") else type(func)
