"""Responses to requests that could not take their lock, or lost it.

The status is 423 (or LOCKED_STATUS) if the lock is taken, and 503 if Redis is unreachable or the lock was lost. Each
response has ``Retry-After`` and must not be stored. It is JSON, or the template ``rlock/locked.html`` for clients that
prefer HTML. Django REST framework's exception handler renders its own.
"""

from __future__ import annotations

import logging
import math
import random
from typing import Any, NamedTuple

from django.conf import settings as django_settings
from django.core.exceptions import BadRequest, ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from django_rlock._core.text import printable
from django_rlock._web.requests import plain_request
from django_rlock.exceptions import LockLostError, LockTimeoutError, LockUnavailableError, RLockError, StaleTokenError
from django_rlock.settings import DEFAULT_ALIAS, get_settings

logger = logging.getLogger("django_rlock.web")

LOCK_ERRORS = LockTimeoutError, LockUnavailableError, LockLostError, StaleTokenError
"""The errors that become a response. Other errors are mistakes in the program."""

TEMPLATE = "rlock/locked.html"

LONGEST_RETRY = 5.0
"""The maximum of ``Retry-After``, in seconds: a lock is usually released long before its lease ends."""


class MissingValueError(BadRequest):
    """A request lacks a value that the lock's name needs; Django responds with 400."""


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
            "%r got a response with status %d: %s", printable(_route(request)), problem.status, printable(error)
        )
    if not isinstance(request, HttpRequest):
        from django_rlock._web.rest_framework import LockAPIException, forbid_storing

        forbid_storing(request)
        raise LockAPIException(problem.content, problem.status, problem.retry_after) from error
    response = _page(request, problem) or JsonResponse(problem.content, status=problem.status)
    response["Retry-After"] = str(problem.retry_after)
    response["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["Accept"])
    return response


def refusal(request: Any, reason: str, names_user: bool) -> Exception:
    """The error for a request without a value that the lock's name needs; see ``rest_framework.refusal``."""
    if isinstance(request, HttpRequest):
        return MissingValueError(reason)
    from django_rlock._web import rest_framework

    error: Exception = rest_framework.refusal(request, reason, names_user)
    return error


def _problem(error: RLockError, using: str, status: int | None) -> Problem:
    if isinstance(error, LockTimeoutError):
        return Problem(
            status=status or get_settings(using).locked_status,
            code="locked",
            detail=_("Someone else is working on this right now. Please try again in a moment."),
            retry_after=_retry_after(error.retry_after, error.is_kept),
            holder=error.holder if django_settings.DEBUG else None,
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


def _page(request: HttpRequest, problem: Problem) -> HttpResponse | None:
    if request.get_preferred_type(["application/json", "text/html"]) != "text/html":
        return None
    try:
        again = request.get_full_path() if request.method == "GET" else None
        html = render_to_string(TEMPLATE, {"problem": problem, "again": again, "assets": _assets()}, request)
    except TemplateDoesNotExist:  # a project without APP_DIRS
        return None
    return HttpResponse(html, status=problem.status)


def _assets() -> dict[str, str]:
    """The URLs of the page's style and script. Files that were not collected are left out: the page works without them,
    and an error would hide it."""
    try:
        return {"style": static("django_rlock/locked.css"), "script": static("django_rlock/locked.js")}
    except (ValueError, ImproperlyConfigured):
        return {}


def _route(request: Any) -> str:
    plain = plain_request(request)
    return f"{plain.method} {plain.path}"
