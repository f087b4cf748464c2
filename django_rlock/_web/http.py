"""The HTTP side of a locked view: its request, its streaming response, and the response if its lock is taken or lost.

The status is 423 (or LOCKED_STATUS) if the lock is taken, and 503 if Redis is unreachable or the lock was lost. Each
response has ``Retry-After`` and must not be stored. It is JSON, or the template ``rlock/locked.html`` for clients that
prefer HTML. Django REST framework's exception handler renders its own.
"""

from __future__ import annotations

import logging
import math
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import BadRequest, SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import get_resolver, get_urlconf
from django.utils.cache import patch_vary_headers
from django.utils.functional import LazyObject, empty
from django.utils.translation import gettext as _
from django.views import View

from django_rlock._core import foreign
from django_rlock._core.callbacks import log
from django_rlock._core.foreign import is_test
from django_rlock._core.text import printable
from django_rlock._transport.identity import current_owner
from django_rlock.exceptions import LockLostError, LockTimeoutError, LockUnavailableError, RLockError, StaleTokenError
from django_rlock.locks import BaseLock, MultiLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.ownership import TransferredHold
from django_rlock.locks.records import Route, Work, context
from django_rlock.settings import DEFAULT_ALIAS, get_settings

# --- requests ---------------------------------------------------------------------------------------------------------


def request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The request that a call gets: its first argument, its second after ``self``, or ``request``; None if there is
    none. It is Django's request, or Django REST framework's wrapper around it."""
    for candidate in (*args[:2], kwargs["request"]) if "request" in kwargs else args[:2]:
        if isinstance(candidate, HttpRequest):
            return candidate
        # Access to the attribute itself could evaluate a lazy object.
        its = getattr(candidate, "__dict__", None)
        if its and isinstance(its.get(foreign.WRAPPED_REQUEST), HttpRequest):
            return candidate
    return None


def plain_request(request: Any) -> HttpRequest:
    """Django's request, without the wrapper of Django REST framework."""
    return request if isinstance(request, HttpRequest) else foreign.wrapped_request(request)


# --- views ------------------------------------------------------------------------------------------------------------

# A response is returned only where Django, Django REST framework or ninja sends it. Elsewhere it would hide that the
# work was not done, and an authentication backend would pass it off as a user.

IN_CLOSURES = "rest_framework.decorators", "ninja.operation"
"""Modules whose views refer to the project's functions only in their closures."""

ACTIONS = "create", "destroy", "list", "partial_update", "retrieve", "update"
"""The methods that Django REST framework's generic views call to handle requests."""


def running_calls(request: Any) -> list[Callable[..., Any]]:
    """The functions whose decorated calls run for a request, the outermost first."""
    if request is None:
        return []
    plain = request if isinstance(request, HttpRequest) else foreign.wrapped_request(request)
    return vars(plain).setdefault("rlock_calls", [])  # type: ignore[no-any-return]


def is_view_call(func: Callable[..., Any], request: Any, args: tuple[Any, ...]) -> bool:
    """Whether the return value of a decorated function becomes the response to its request.

    It does if the function handles the request for the view that the URL was resolved to, or is a handler of a
    class-based view. In a test that calls a function itself, the outermost decorated function counts as the view.
    """
    # Django passes the request by position.
    if request is None or not _is_among(request, args[:2]):
        return False
    own, instance = _method(func)
    around = running_calls(request)
    if _is_among(own, [_method(each)[0] for each in around]):
        return False  # the view calls itself
    first = args[0] if instance is None else instance
    if isinstance(first, View) and _is_among(own, _handlers(first, request)):
        return True
    match = plain_request(request).resolver_match
    if match is not None:
        return _is_among(own, _parts(match.func))
    # Django's handler sets the URLconf before it calls the middleware, which runs before the URL is resolved.
    is_called_by_test = first is request and is_test() and get_urlconf() is None
    return is_called_by_test and _is_among(own, _parts(around[0] if around else func))


def _is_among(value: object, values: Iterable[object]) -> bool:
    return any(each is value for each in values)


def _method(func: Callable[..., Any]) -> tuple[Callable[..., Any], object]:
    """A decorated function, and None. If it is a bound method, as in each call below ``method_decorator``: the method's
    function, and the object."""
    bound = next((each for each in _parts(func) if isinstance(each, MethodType)), None)
    return (func, None) if bound is None else (bound.__func__, bound.__self__)


def _handlers(view: View, request: Any) -> Iterator[object]:
    """The methods of a class-based view, and of its base classes, whose return values become the response."""
    names = {"dispatch", *view.http_method_names}
    if not isinstance(request, HttpRequest):
        names |= {*ACTIONS, *(getattr(view, "action_map", None) or {}).values()}
    for cls in type(view).__mro__:
        for name in names & vars(cls).keys():
            yield from _parts(vars(cls)[name])


def _parts(view: Any) -> list[Any]:
    """A view, and all functions below it: below decorators, ``partial``, ``@api_view`` and ninja's views."""
    found: list[Any] = []
    waiting = [view]
    while waiting:
        each = waiting.pop()
        if not _is_among(each, found):
            found.append(each)
            waiting += _below(each)
    return found


def _below(view: Any) -> list[Any]:
    if isinstance(view, partial):
        return [view.func]
    if isinstance(view, MethodType):
        return [view.__func__]
    below = [view.__wrapped__] if hasattr(view, "__wrapped__") else []
    if getattr(view, "__globals__", {}).get("__name__") in IN_CLOSURES:
        below += [cell.cell_contents for cell in view.__closure__ or ()]
    below += [operation.view_func for operation in getattr(view, "operations", ())]  # of ninja's PathView
    cls = getattr(view, "cls", None)  # @api_view makes a class
    below += [getattr(cls, name, None) for name in getattr(cls, "http_method_names", ())]
    if callable(view) and not isinstance(view, FunctionType | type):
        below.append(type(view).__call__)
    return below


# --- reports ----------------------------------------------------------------------------------------------------------

UNREPORTED: AbstractContextManager[Any] = nullcontext()
"""Used instead of ``reported`` outside a request: it reports nothing."""


def reported(request: Any) -> AbstractContextManager[Work]:
    """Name the request in the reports of the locks that are acquired inside the block.

    The user is named only if it has been loaded already, because a report is not worth a query.
    """
    request = request if isinstance(request, HttpRequest) else foreign.wrapped_request(request)
    outer = context.get()
    # The middleware has named the request, perhaps before the user was loaded.
    if outer is not None and "route" in outer:
        outer.update(_user(request))
        return nullcontext(outer)
    return Work({"route": route_of(request), **_user(request)})


def route_of(request: HttpRequest) -> Route:
    """The name of a request in reports and logs. Before its URL is resolved, that is its method."""
    match = request.resolver_match
    route = Route(f"{request.method}" if match is None or match.route is None else f"{request.method} /{match.route}")
    route.path = f"{request.method} {request.path}"
    return route


def _user(request: HttpRequest) -> dict[str, str]:
    known = vars(request)
    user = known.get("user")
    if isinstance(user, LazyObject):
        user = foreign.unwrapped(user)
        if user is empty:
            user = known.get(foreign.AREAD_USER)
    pk = getattr(user, "pk", None)
    return {} if pk is None else {"user": str(pk)}


# --- urlconf ----------------------------------------------------------------------------------------------------------


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

_Release = Callable[[], object]


def keep_for_response(lock: BaseLock, response: HttpResponseBase) -> BaseLock | None:
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
            hand_over(partial(_release_after, TransferredHold(hold)))
    return MultiLock(*left) if left else None


def _hand_over(response: HttpResponseBase) -> Callable[[_Release], object] | None:
    """A function that registers a callback for the response's completion; None if the response is complete."""
    if response.streaming:
        # Django closes these in close(), before it signals that the request has ended.
        return foreign.resource_closers(response).append
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
        self.then: list[_Release] = []

    def __call__(self) -> Any:
        response: Any = self._response()
        del response.render
        try:
            return response.render()
        finally:
            for release in self.then:
                release()


def _release_after(detached: TransferredHold) -> None:
    try:
        detached.release()
    except SynchronousOnlyOperation:
        detached.release_later()
    except RLockError as failure:
        # There is no caller to raise it to.
        log(logger, logging.ERROR, "A response was completed: %s", failure)


LOCK_ERRORS = LockTimeoutError, LockUnavailableError, LockLostError, StaleTokenError
"""The errors that become a response. Other errors are mistakes in the program."""

TEMPLATE = "rlock/locked.html"

LONGEST_RETRY = 5.0
"""The maximum of ``Retry-After``, in seconds: a lock is usually released long before its lease ends."""


class MissingValueError(BadRequest):
    """A request lacks a value that the lock's name needs; Django responds with 400."""


class NobodyError(MissingValueError):
    """The value that the request lacks is the user: nobody is logged in."""


class Problem(NamedTuple):
    """The content of a response. ``retry_after`` is whole seconds; ``holder`` is None without DEBUG."""

    status: int
    code: str
    detail: str
    retry_after: int
    holder: str | None = None

    @property
    def content(self) -> dict[str, str]:
        """The content as JSON."""
        content = {"detail": self.detail, "code": self.code}
        return content if self.holder is None else {**content, "holder": self.holder}


def answer(request: Any, error: RLockError, *, using: str = DEFAULT_ALIAS, status: int | None = None) -> HttpResponse:
    """The response to one of LOCK_ERRORS; ``status`` replaces LOCKED_STATUS.

    For a request of Django REST framework it raises instead, so that the project's exception handler can respond.
    """
    problem = _problem(error, using, status)
    if not isinstance(error, LockTimeoutError):
        logger.error(
            "%r got a response with status %d: %s",
            printable(route_of(plain_request(request))),
            problem.status,
            printable(error),
        )
    if not isinstance(request, HttpRequest):
        raise _framework_error(request, problem) from error
    response = _page(request, problem) or JsonResponse(problem.content, status=problem.status)
    response["Retry-After"] = str(problem.retry_after)
    response["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["Accept"])
    return response


def _framework_error(request: Any, problem: Problem) -> Exception:
    """The error that Django REST framework's exception handler turns into the response."""
    from rest_framework.exceptions import APIException

    error: Exception = APIException(problem.content, problem.code)
    error.status_code = problem.status  # type: ignore[attr-defined]
    error.wait = problem.retry_after  # type: ignore[attr-defined]  # the handler makes Retry-After from it
    if (view := request.parser_context.get("view")) is not None:
        view.headers["Cache-Control"] = "no-store"  # which the handler cannot add
    return error


def refusal(request: Any, reason: str, names_user: bool) -> Exception:
    """The error for a request without a value that the lock's name needs. The status is 400; in Django REST framework,
    if the value is the user and nobody is logged in, 401 or 403, depending on the view's authentication."""
    is_nobody = names_user and not getattr(getattr(request, "user", None), "is_authenticated", False)
    if isinstance(request, HttpRequest):
        return NobodyError(reason) if is_nobody else MissingValueError(reason)
    from rest_framework.exceptions import NotAuthenticated, ParseError

    error: Exception = NotAuthenticated() if is_nobody else ParseError(reason)
    return error


def ask_to_log_in(request: HttpRequest, view: Any, func: Callable[..., Any]) -> HttpResponseBase | None:
    """The response of the mixin or decorator below the lock that requires a login; None if there is none."""
    if hasattr(view, "handle_no_permission"):
        response: HttpResponseBase = view.handle_no_permission()
        return response
    if not hasattr(func, "login_url"):
        return None
    # login_required and the like leave their arguments on the function, for Django's own middleware.
    from django.contrib.auth.middleware import LoginRequiredMiddleware

    return LoginRequiredMiddleware(lambda _request: HttpResponse()).handle_no_permission(request, func)


def _problem(error: RLockError, using: str, status: int | None) -> Problem:
    if isinstance(error, LockTimeoutError):
        return Problem(
            status=status or get_settings(using).locked_status,
            code="locked",
            detail=_("Someone else is working on this right now. Please try again in a moment."),
            retry_after=_retry_after(error.retry_after, error.is_kept),
            holder=error.holder if settings.DEBUG else None,
        )
    if isinstance(error, LockUnavailableError):
        detail = _("This cannot be done safely at the moment. Nothing was changed; please try again soon.")
        return Problem(503, "lock_unavailable", detail, _retry_after(None))
    detail = _("This took too long to be completed safely. Please check the result before you try again.")
    return Problem(503, "lock_lost", detail, _retry_after(None))


def _retry_after(lease_left: float | None, is_kept: bool = False) -> int:
    if is_kept and lease_left is not None:
        return max(1, math.ceil(lease_left))
    longest = LONGEST_RETRY if lease_left is None else min(lease_left, LONGEST_RETRY)
    # Jitter, so that clients that were refused together do not retry together.
    return max(1, math.ceil(longest * random.uniform(0.4, 1.0)))  # noqa: S311


def prefers_page(request: Any) -> bool:
    """Whether the response is a page, whose rendering runs code of the project that may query the database."""
    return (
        isinstance(request, HttpRequest)
        and request.get_preferred_type(["application/json", "text/html"]) == "text/html"
    )


def _page(request: HttpRequest, problem: Problem) -> HttpResponse | None:
    if not prefers_page(request):
        return None
    again = request.get_full_path() if request.method == "GET" else None
    content = {"problem": problem, "again": again, "assets": _assets()}
    # The project's context processors get the request, and may fail.
    html = _rendered(content, request) or _rendered(content, None)
    return None if html is None else HttpResponse(html, status=problem.status)


def _rendered(content: dict[str, Any], request: HttpRequest | None) -> str | None:
    """The page's HTML; None if it cannot be rendered, because the error page must not be an error itself."""
    try:
        return render_to_string(TEMPLATE, content, request)
    except Exception as error:
        is_missing = isinstance(error, TemplateDoesNotExist) and str(error) == TEMPLATE  # in a project without APP_DIRS
        if not is_missing:
            name = TEMPLATE if request is None else f"{TEMPLATE} with the request"
            logger.exception("A page cannot be rendered: %s", name)
        return None


def _assets() -> dict[str, str]:
    """The URLs of the page's style and script. Files that were not collected are left out: the page works without them,
    and an error would hide it."""
    try:
        return {"style": static("django_rlock/locked.css"), "script": static("django_rlock/locked.js")}
    except Exception:  # noqa: BLE001 - any storage may be behind it
        return {}
