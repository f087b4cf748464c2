"""``LockMiddleware``: what a request does with locks, from its report to its last hold."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from django_rlock.drivers.identity import Owner, task_owner, thread_owner
from django_rlock.exceptions import RLockError
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS, Hold
from django_rlock.web.requests import reported
from django_rlock.web.responses import LOCK_ERRORS, answer
from django_rlock.web.streaming import hand_over

logger = logging.getLogger("django_rlock.middleware")


class LockMiddleware:
    """Answers lock errors of views, names the request in reports, and releases what it leaves held.

    Put it after ``AuthenticationMiddleware``, so that reports can name the user. LockTimeoutError becomes LOCKED_STATUS
    of the alias ``default``; LockUnavailableError and LockLostError become 503; each with ``Retry-After``.

    A lock that the request's own thread or task still holds at the end is released, with a warning. What it holds in
    threads and tasks that the view has started itself, or for a streaming response, is theirs.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._answer(request)
        with reported(request) as about:
            try:
                response: HttpResponseBase = self.get_response(request)
                return response
            finally:
                _release_left(about)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        with reported(request) as about:
            try:
                response: HttpResponseBase = await self.get_response(request)
                return response
            finally:
                if any(hold.context is about for hold in HOLDS.snapshot()):
                    await _arelease_left(about)
                    # A sync view has run in the thread that asgiref keeps for this request.
                    await sync_to_async(_release_left)(about)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The answer to a lock error; Django answers other exceptions."""
        return answer(request, exception) if isinstance(exception, LOCK_ERRORS) else None


def _release_left(about: dict[str, str]) -> None:
    for lock in _left(thread_owner(), about):
        try:
            lock.release()
        except RLockError as failure:
            _tell_failure(failure, about)


async def _arelease_left(about: dict[str, str]) -> None:
    for lock in _left(task_owner(), about):
        try:
            await lock.arelease()
        except RLockError as failure:
            _tell_failure(failure, about)


def _left(owner: Owner, about: dict[str, str]) -> Iterator[BaseLock]:
    """What was taken under a request and is held by an owner, or by a task that has ended; each as often as it is held.

    Under WSGI an async view runs in a task of its own.
    """
    for hold in HOLDS.snapshot():
        if hold.context is about and hold.owner_ref is not None and (hold.owner_ended or hold.owner_ref() is owner):
            _tell_left(hold, about)
            lock: Any = hand_over(hold) if hold.owner_ended else hold.lock
            yield from [lock] * hold.count


def _tell_left(hold: Hold, about: dict[str, str]) -> None:
    logger.warning(
        "%r ended and still held lock %r, which is released now. Take it with 'with', or release it in 'finally'.",
        about["route"],
        hold.lock.name,
    )


def _tell_failure(failure: RLockError, about: dict[str, str]) -> None:
    logger.warning("After %r: %s", about["route"], failure)
