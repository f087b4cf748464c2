"""The system check of key templates against the URLconf: does the route provide what the lock is named after?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error
from django.urls import URLPattern, URLResolver, get_resolver

from django_rlock.arguments import Arguments
from django_rlock.decorators import TEMPLATES
from django_rlock.keytemplates import check_converters, check_names

HINT = "See key templates in the documentation of django-rlock: docs/decorator.md#key-templates"


def check_routes(**_: Any) -> list[CheckMessage]:
    """E010: a view's key template has a name that its route does not provide, or an unknown converter."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return []
    return [Error(problem, hint=HINT, id="django_rlock.E010") for problem in _problems(get_resolver(), "", ())]


def _problems(resolver: URLResolver, prefix: str, outer: tuple[str, ...]) -> Iterator[str]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        names = (*outer, *entry.pattern.regex.groupindex)
        if isinstance(entry, URLResolver):
            yield from _problems(entry, route, (*names, *entry.default_kwargs))
        else:
            yield from _view_problems(entry, route, (*names, *entry.default_args))


def _view_problems(entry: URLPattern, route: str, names: tuple[str, ...]) -> Iterator[str]:
    for function, own_names in _functions(entry.callback):
        available = dict.fromkeys([*names, *own_names, "request"])
        for template in getattr(function, TEMPLATES, ()):
            problem = check_converters(template) or check_names(template, available, f"route `{route}`")
            if problem is not None:
                method = "" if function is entry.callback else f".{function.__name__}"
                yield f"{entry.lookup_str}{method}: {problem}"


def _functions(view: Any) -> Iterator[tuple[Any, list[str]]]:
    """The view, and for a class-based one the methods that answer requests; with the names that each has of its own."""
    yield view, _defaults(view)
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's, Django REST framework's
    if cls is not None:
        methods = getattr(view, "actions", None) or {name: name for name in cls.http_method_names}
        for method in filter(None, (getattr(cls, name, None) for name in dict.fromkeys(methods.values()))):
            yield method, [*_defaults(method), "self"]


def _defaults(function: Any) -> list[str]:
    signature = Arguments(function).signature
    parameters = signature.parameters.values() if signature is not None else ()
    return [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
