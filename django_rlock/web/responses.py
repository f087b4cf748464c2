"""Answers to requests that could not have their lock, or lost it.

423 (or the status configured) when it is taken, 503 when Redis cannot be asked or the lock was lost. Each has
``Retry-After`` and is not to be stored; it is JSON, or the template ``rlock/locked.html`` for clients that prefer HTML.
Django REST framework's handler renders its own, with ``Retry-After`` alone.
"""

from __future__ import annotations

import logging
import math
import random
from dataclasses import dataclass
from typing import Any

from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from django_rlock.exceptions import LockLostError, LockTimeoutError, LockUnavailableError, RLockError, StaleTokenError
from django_rlock.settings import DEFAULT_ALIAS, get_settings
from django_rlock.web.requests import django_request

logger = logging.getLogger("django_rlock.web")

LOCK_ERRORS = LockTimeoutError, LockUnavailableError, LockLostError, StaleTokenError
"""The errors that have an answer. Others are mistakes in the program."""

TEMPLATE = "rlock/locked.html"

LONGEST_RETRY = 5.0
"""The most that ``Retry-After`` asks for, in seconds: a lock is usually given back long before its lease ends."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What an answer tells. ``retry_after`` is whole seconds; ``holder`` is None outside of DEBUG."""

    status: int
    code: str
    detail: str
    retry_after: int
    holder: str | None = None

    @property
    def content(self) -> dict[str, str]:
        """The JSON."""
        content = {"detail": self.detail, "code": self.code}
        return content if self.holder is None else {**content, "holder": self.holder}


def answer(request: Any, error: RLockError, *, using: str = DEFAULT_ALIAS, status: int | None = None) -> HttpResponse:
    """The response to one of LOCK_ERRORS; ``status`` replaces LOCKED_STATUS.

    For a request of Django REST framework it raises instead, so that the project's exception handler sees it.
    """
    problem = _problem(error, using, status)
    if not isinstance(error, LockTimeoutError):
        logger.error("%r was answered with %d: %s", _route(request), problem.status, error)
    if not isinstance(request, HttpRequest):
        from django_rlock.web.rest_framework import LockAPIException

        raise LockAPIException(problem) from error
    response = _page(request, problem) or JsonResponse(problem.content, status=problem.status)
    response["Retry-After"] = str(problem.retry_after)
    response["Cache-Control"] = "no-store"
    return response


def _problem(error: RLockError, using: str, status: int | None) -> Problem:
    if isinstance(error, LockTimeoutError):
        return Problem(
            status=status or get_settings(using).locked_status,
            code="locked",
            detail=_("Somebody else is working on this right now. Please try again in a moment."),
            retry_after=_retry_after(error.retry_after),
            holder=error.holder if django_settings.DEBUG else None,
        )
    if isinstance(error, LockUnavailableError):
        detail = _("This cannot be done safely at the moment. Nothing was changed; please try again soon.")
        return Problem(503, "lock_unavailable", detail, _retry_after(None))
    detail = _("This took too long to be completed safely. Please check the result before you try again.")
    return Problem(503, "lock_lost", detail, _retry_after(None))


def _retry_after(lease_left: float | None) -> int:
    longest = LONGEST_RETRY if lease_left is None else min(lease_left, LONGEST_RETRY)
    # Jitter, so that those who were turned away together do not come back together.
    return max(1, math.ceil(longest * random.uniform(0.4, 1.0)))  # noqa: S311


def _page(request: HttpRequest, problem: Problem) -> HttpResponse | None:
    if request.get_preferred_type(["application/json", "text/html"]) != "text/html":
        return None
    try:
        html = render_to_string(TEMPLATE, {"problem": problem}, request)
    except TemplateDoesNotExist:  # a project without APP_DIRS
        return None
    return HttpResponse(html, status=problem.status)


def _route(request: Any) -> str:
    plain = django_request(request) or request
    return f"{plain.method} {plain.path}"
