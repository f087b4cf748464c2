"""The errors that Django REST framework's exception handler answers. Imported only where that is in use."""

from __future__ import annotations

from rest_framework.exceptions import APIException

from django_rlock.web.responses import Problem


class LockAPIException(APIException):  # type: ignore[misc]
    """A lock was taken, unavailable or lost; the lock's error is its ``__cause__``."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.content, problem.code)
        self.status_code = problem.status
        self.wait = problem.retry_after  # the handler makes Retry-After of it
