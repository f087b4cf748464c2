"""The errors that Django REST framework's exception handler turns into responses, so that the project's own handler
sees them. Imported only if the framework is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import APIException, NotAuthenticated, ParseError


class LockAPIException(APIException):  # type: ignore[misc]
    """A lock was taken, unavailable or lost; the lock's error is its ``__cause__``."""

    def __init__(self, content: Mapping[str, str], status: int, retry_after: int) -> None:
        super().__init__(content, content["code"])
        self.status_code = status
        self.wait = retry_after  # the handler makes Retry-After from it


def refusal(request: Any, reason: str, names_user: bool) -> APIException:
    """The error for a request without a value that the lock's name needs. The status is 400; if the value is the user
    and nobody is logged in, 401 or 403, depending on the view's authentication."""
    user = getattr(request, "user", None)
    if names_user and not getattr(user, "is_authenticated", False):
        return NotAuthenticated()
    return ParseError(reason)


def forbid_storing(request: Any) -> None:
    """Add ``no-store`` to the response's headers, which the exception handler cannot do."""
    if (view := request.parser_context.get("view")) is not None:
        view.headers["Cache-Control"] = "no-store"
