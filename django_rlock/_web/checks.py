"""The system checks of decorators: does the route provide the template's names, and does RLOCK have the alias?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver

from django_rlock._web.arguments import Arguments
from django_rlock._web.calls import Options
from django_rlock._web.decorator import OPERATIONS, PLACES, TEMPLATES, Decorator, without_a_template
from django_rlock._web.keytemplates import check_converters, check_names
from django_rlock._web.requests import import_views
from django_rlock.settings import get_aliases, unknown_alias

HINT = "See key templates in the documentation of django-rlock: docs/decorator.md#key-templates"


def check_routes(**_: Any) -> list[CheckMessage]:
    """E010: a view's key template has a name that its route does not provide, or an unknown converter."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return []
    # A view with several operations has several entries in the URLconf.
    problems = dict.fromkeys(_problems(get_resolver(), "", ()))
    return [Error(problem, hint=HINT, id="django_rlock.E010") for problem in problems]


def check_aliases(**_options: Any) -> list[CheckMessage]:
    """E011: a decorator names an alias that RLOCK does not have. Only imported modules are checked, which include the
    modules that the URLconf imports."""
    import_views()
    try:
        known = get_aliases()
    except ImproperlyConfigured:
        return []  # another check reports it, once
    places = sorted((*place, options.using) for options, place in PLACES.items() if options.using not in known)
    return [
        Error(
            f"{module}, line {line}: @distributed_lock: {unknown_alias(using)}",
            hint="See the documentation of django-rlock: docs/checks.md#django_rlocke011",
            id="django_rlock.E011",
        )
        for module, line, using in places
    ]


def _problems(resolver: URLResolver, prefix: str, outer: tuple[str, ...]) -> Iterator[str]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        names = (*outer, *entry.pattern.regex.groupindex)
        if isinstance(entry, URLResolver):
            yield from _problems(entry, route, (*names, *entry.default_kwargs))
        else:
            yield from _view_problems(entry, route, (*names, *entry.default_args))


def _view_problems(entry: URLPattern, route: str, names: tuple[str, ...]) -> Iterator[str]:
    for function, place, own_names in _functions(entry.callback, _place(entry)):
        if (without := _without_template(function)) is not None:
            yield f"{place}: {without_a_template(without)}"
            continue
        available = dict.fromkeys([*names, *own_names, "request"])
        for template in getattr(function, TEMPLATES, ()):
            problem = check_converters(template) or check_names(template, available, f"route `{route}`")
            if problem is not None:
                yield f"{place}: {problem}"


def _without_template(function: Any) -> Any:
    """The functions above which a ``@distributed_lock`` without a key template was put, at once or over others."""
    inner = inspect.unwrap(function, stop=lambda each: isinstance(each, Decorator))
    if isinstance(inner, Decorator):
        return inner.options.templates[0]
    # method_decorator() decorates a function of its own, and gives its attributes to the method; as_view() gives those
    # of dispatch() to the view.
    if not isinstance(getattr(function, "options", None), Options):
        return None
    return function.view_class.dispatch if hasattr(function, "view_class") else function


def _place(entry: URLPattern) -> str:
    """The view's module and name. Django reads the name of every view that is not a class."""
    view = entry.callback
    if isinstance(view, Decorator):
        named_by = view.options.templates[0]
        return f"{named_by.__module__}.{getattr(named_by, '__qualname__', named_by)}"
    return entry.lookup_str


def _functions(view: Any, place: str) -> Iterator[tuple[Any, str, list[str]]]:
    """The view, and the other functions that handle its requests, such as the methods of a class; each with its own
    names."""
    while isinstance(view, partial):
        view = view.func
    yield view, place, _defaults(view)
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's, Django REST framework's
    if cls is not None:
        methods = getattr(view, "actions", None) or {name: name for name in cls.http_method_names}
        for method in filter(None, (getattr(cls, name, None) for name in dict.fromkeys(methods.values()))):
            yield method, f"{place}.{getattr(method, '__name__', method)}", [*_defaults(method), "self"]
    for operation in getattr(view, OPERATIONS, ()):
        yield operation, f"{operation.__module__}.{operation.__qualname__}", list(_parameters(operation))


def _defaults(function: Any) -> list[str]:
    return [name for name, parameter in _parameters(function).items() if parameter.default is not parameter.empty]


def _parameters(function: Any) -> Mapping[str, Any]:
    signature = Arguments(function).signature
    return signature.parameters if signature is not None else {}
