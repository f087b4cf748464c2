"""The request among a call's arguments, its streaming response, and the project's URLconf."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import get_resolver
from django.utils.functional import LazyObject, empty

from django_rlock._core.callbacks import log
from django_rlock._transport.identity import current_owner
from django_rlock.exceptions import RLockError
from django_rlock.locks import BaseLock, MultiLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.ownership import TransferredHold
from django_rlock.locks.records import WorkingOn, context

# --- requests ---------------------------------------------------------------------------------------------------------

# Finds the request among a call's arguments, and describes it for the process report.


def request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The request that a view gets: its first argument, or its second after ``self``; None for other callables.

    It is Django's request, or Django REST framework's wrapper around it.
    """
    for candidate in (*args[:2], kwargs["request"]) if "request" in kwargs else args[:2]:
        if isinstance(candidate, HttpRequest) or django_request(candidate) is not None:
            return candidate
    return None


def django_request(request: Any) -> HttpRequest | None:
    """Django's request inside a wrapper of Django REST framework; None if the value is not such a wrapper."""
    # Read without attribute access, which could evaluate a lazy object.
    inner = getattr(request, "__dict__", {}).get("_request")
    return inner if isinstance(inner, HttpRequest) else None


def plain_request(request: Any) -> HttpRequest:
    """Django's request, without the wrapper of Django REST framework."""
    return request if isinstance(request, HttpRequest) else request._request  # noqa: SLF001


def reported(request: Any) -> AbstractContextManager[dict[str, str]]:
    """Name the request in the reports of the locks that are acquired inside the block. None names no request.

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


# --- urlconf ----------------------------------------------------------------------------------------------------------

# The project's URLconf.


def import_views() -> None:
    """Import the modules of all views, for checks that look at their decorators."""
    if getattr(settings, "ROOT_URLCONF", None):
        _ = get_resolver().url_patterns


# --- streaming --------------------------------------------------------------------------------------------------------

# A streaming response keeps its lock until it is closed, and a lazily rendered response until it is rendered, in any
# thread or task.
#
# A lock belongs to the thread or task that acquired it. But the server may close or render the response in another
# thread, and this thread may continue with the next request. So the hold is transferred from the thread to its owner
# id.

logger = logging.getLogger("django_rlock.web")

GiveBack = Callable[[], object]


def keep_for_response(lock: BaseLock, response: Any) -> BaseLock | None:
    """Let an incomplete response release the lock later; returns the lock if the caller still has to release it.

    A lock with a count above one stays with its owner, because an outer block still needs it.
    """
    hand_over = _hand_over(response)
    if hand_over is None or lock.lost:
        return lock  # releasing a lost lock raises
    owner, left = current_owner(), []
    for part in lock.parts:
        hold = HOLDS.get(part, owner)
        if hold is None or hold.count > 1:
            left.append(part)
        else:
            # Middleware may drop a response without closing or rendering it; that drops the transferred hold, too.
            hand_over(partial(_give_back, TransferredHold(hold)))
    return MultiLock(*left) if left else None


def _hand_over(response: Any) -> Callable[[GiveBack], object] | None:
    """A function that registers a callback for the response's completion; None if the response is complete."""
    if not isinstance(response, HttpResponseBase):
        return None
    if response.streaming:
        # Django closes these in close(), before it signals that the request has ended.
        closers: list[GiveBack] = response._resource_closers  # type: ignore[attr-defined]  # noqa: SLF001
        return closers.append
    if getattr(response, "is_rendered", True) or not callable(getattr(response, "render", None)):
        return None
    if hasattr(response, "data"):
        return None  # Django REST framework's: its data were read inside the view
    rendering = vars(response).get("render")
    if not isinstance(rendering, _Rendering):
        rendering = response.render = _Rendering(response)  # type: ignore[attr-defined]
    return rendering.then.append


class _Rendering:
    """Replaces a response's own ``render()`` once; releases locks after it, even if it fails."""

    def __init__(self, response: HttpResponseBase) -> None:
        self._response = weakref.ref(response)
        self.then: list[GiveBack] = []

    def __call__(self) -> Any:
        response: Any = self._response()
        del response.render
        try:
            return response.render()
        finally:
            for give_back in self.then:
                give_back()


def _give_back(detached: TransferredHold) -> None:
    try:
        detached.release()
    except SynchronousOnlyOperation:
        detached.drop()
    except RLockError as failure:
        # There is no caller to raise it to.
        log(logger, logging.ERROR, "A response was completed: %s", failure)
