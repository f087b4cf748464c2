"""The names that a function's arguments have, for key templates."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

_STRINGS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations may name what is imported for type checkers only.
    _STRINGS["annotation_format"] = annotationlib.Format.STRING


class Arguments:
    """Names the arguments of calls of one function; ``names`` is None where any name may come."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.signature = _signature(func)
        # A decorator below may take other arguments than the function that it wraps.
        self.is_certain = self.signature is not None and not hasattr(func, "__wrapped__")

    @property
    def names(self) -> list[str] | None:
        if self.signature is None or not self.is_certain:
            return None
        parameters = self.signature.parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]

    def of_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included. TypeError when they do not fit, as the call itself."""
        if self.signature is None:
            return dict(kwargs)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            if self.is_certain:
                raise
            return dict(kwargs)
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            else:
                found[name] = value
        return found


def _signature(func: Callable[..., Any]) -> inspect.Signature | None:
    # Django's method_decorator decorates a partial of the bound method in each request: that would cost too much, and
    # tell nothing, since what it gets from the URL has names.
    if isinstance(func, functools.partial):
        return None
    try:
        return inspect.signature(func, **_STRINGS)
    except (TypeError, ValueError):
        return None
