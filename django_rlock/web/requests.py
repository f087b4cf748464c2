"""Finds the request among a call's arguments, and describes it for the process report."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from django_rlock.locks.records import WorkingOn, context


def request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The request that a view gets: its first argument, or the one after ``self``; None for other callables.

    It is Django's request, or the one that Django REST framework wraps around it.
    """
    for candidate in (*args[:2], kwargs["request"]) if "request" in kwargs else args[:2]:
        if isinstance(candidate, HttpRequest) or django_request(candidate) is not None:
            return candidate
    return None


def django_request(request: Any) -> HttpRequest | None:
    """Django's request inside one of Django REST framework; None if there is none."""
    # Read without attribute access, which could evaluate a lazy object.
    inner = getattr(request, "__dict__", {}).get("_request")
    return inner if isinstance(inner, HttpRequest) else None


def plain_request(request: Any) -> HttpRequest:
    """Django's request, of that itself or of the one of Django REST framework."""
    return request if isinstance(request, HttpRequest) else request._request  # noqa: SLF001


def reported(request: Any) -> AbstractContextManager[dict[str, str]]:
    """Name the request in the report of the locks taken inside. None names nothing.

    The user is named only if it has been loaded already, because a report is not worth a query.
    """
    if request is None:
        return nullcontext({})
    request, outer = plain_request(request), context.get()
    if outer is not None and "route" in outer:
        outer.update(_user(request))
        return nullcontext(outer)
    return WorkingOn({"route": f"{request.method} {request.path}", **_user(request)})


def _user(request: HttpRequest) -> dict[str, str]:
    known = vars(request)
    user = known.get("user")
    if isinstance(user, LazyObject):
        user = user._wrapped  # noqa: SLF001 - Django has no public way
        if user is empty:
            user = known.get("_acached_user")
    pk = getattr(user, "pk", None)
    return {} if pk is None else {"user": str(pk)}
