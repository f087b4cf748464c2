"""The arguments of a function by name, for key templates."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

_PLAIN = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
_STRINGS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations may refer to names that are imported for type checkers only.
    _STRINGS["annotation_format"] = annotationlib.Format.STRING


class Arguments:
    """Names the arguments of calls of one function; ``names`` is None if any name is allowed."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.signature = _signature(func)
        # A decorator below may accept other arguments than the function that it wraps.
        self.is_certain = self.signature is not None and not hasattr(func, "__wrapped__")
        parameters = [] if self.signature is None else self.signature.parameters.values()
        self._is_plain = self.signature is not None and {each.kind for each in parameters} <= _PLAIN
        self._positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self._defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        self._known = {each.name for each in parameters}

    @property
    def names(self) -> list[str] | None:
        if self.signature is None or not self.is_certain:
            return None
        parameters = self.signature.parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]

    def of_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, with defaults. Raises TypeError if they do not fit, like the call itself."""
        if self._is_plain:
            # Most calls are of this kind, and bind() takes ten times as long.
            given = dict(zip(self._positional, args, strict=False), **kwargs)
            found = self._defaults | given if self._defaults else given
            # Every argument has a name, and none was given twice.
            if len(given) == len(args) + len(kwargs) and found.keys() == self._known:
                return found
        return dict(kwargs) if self.signature is None else self._bound(self.signature, args, kwargs)

    def of_part(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a call that may leave out arguments."""
        return dict(kwargs) if self.signature is None else self._bound(self.signature, args, kwargs, is_part=True)

    def _bound(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_part: bool = False
    ) -> dict[str, Any]:
        try:
            bound = (signature.bind_partial if is_part else signature.bind)(*args, **kwargs)
        except TypeError:
            if self.is_certain:
                raise
            return dict(kwargs)
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            else:
                found[name] = value
        return found


def _signature(func: Callable[..., Any]) -> inspect.Signature | None:
    # Django's method_decorator decorates a partial of the bound method in each request. Its signature would cost too
    # much and is not needed, because arguments from the URL have names.
    if isinstance(func, functools.partial):
        return None
    try:
        return inspect.signature(func, **_STRINGS)
    except (TypeError, ValueError):
        return None
