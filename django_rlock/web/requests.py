"""Requests: found among a call's arguments, and described for the process report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from django_rlock.locks.holds import context


def request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The request that a view gets: its first argument, or the one after ``self``; None for other callables.

    It is Django's, or the one that Django REST framework makes of it.
    """
    for candidate in (*args[:2], kwargs.get("request")):
        if isinstance(candidate, HttpRequest) or django_request(candidate) is not None:
            return candidate
    return None


def django_request(request: Any) -> HttpRequest | None:
    """Django's request inside of the one of Django REST framework; None where there is none inside."""
    # Read without attribute access, which could evaluate a lazy object.
    inner = getattr(request, "__dict__", {}).get("_request")
    return inner if isinstance(inner, HttpRequest) else None


@contextmanager
def reported(request: Any) -> Iterator[dict[str, str]]:
    """Name the request in the report of the locks taken inside. None names nothing.

    The user is named when somebody has loaded it already: a report is not worth a query.
    """
    outer = context.get()
    if request is None:
        yield {}
    elif outer is not None and "route" in outer:
        outer.update(_user(request))
        yield outer
    else:
        plain = django_request(request) or request
        about = {"route": f"{plain.method} {plain.path}", **_user(request)}
        token = context.set(about)
        try:
            yield about
        finally:
            context.reset(token)


def _user(request: Any) -> dict[str, str]:
    known = vars(django_request(request) or request)
    user = known.get("user")
    if isinstance(user, LazyObject):
        user = user._wrapped  # noqa: SLF001 - Django has no public way
        if user is empty:
            user = known.get("_acached_user")
    pk = getattr(user, "pk", None)
    return {} if pk is None else {"user": str(pk)}
