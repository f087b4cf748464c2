"""``LockMiddleware``: reports the locks of a request, turns lock errors into responses, and releases leftover locks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.signals import got_request_exception
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from django_rlock._core.callbacks import log
from django_rlock._transport.calls import run_flow
from django_rlock._transport.identity import Owner, task_owner, thread_owner
from django_rlock._transport.registry import awaited_driver, blocking_driver
from django_rlock._web.http import LOCK_ERRORS, answer, reported, route_of
from django_rlock.exceptions import RLockError
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold, context
from django_rlock.locks.transactions import given_back_later

logger = logging.getLogger("django_rlock.middleware")


class LockMiddleware:
    """Turns lock errors of requests into responses, names the request in reports, and releases locks that the view left
    held.

    Put it after ``AuthenticationMiddleware``, so that reports can name the user. LockTimeoutError becomes LOCKED_STATUS
    of the alias ``default``; LockUnavailableError and LockLostError become 503; each with ``Retry-After``.

    A lock that the request's own thread or task still holds at the end is released, with a warning. Locks held by
    threads and tasks that the view has started itself, or for a streaming response, are left alone.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        self.process_view: Callable[..., Any] = _name_route
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = _aname_route  # Django would call the other function in a thread
        got_request_exception.connect(_note_error, dispatch_uid=__name__)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._answer(request)
        with reported(request) as about:
            try:
                return _answered(request, self.get_response(request))
            finally:
                _release_left(about)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        with reported(request) as about:
            try:
                response = await self.get_response(request)
                # Rendering a page may query the database.
                return await sync_to_async(_answered)(request, response) if _ERROR in vars(request) else response
            finally:
                # The look-up is cheap; a switch to a thread is not.
                if HOLDS.under(about):
                    await _arelease_left(about)
                    # A sync view ran in the thread that asgiref keeps for this request.
                    await sync_to_async(_release_left)(about)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The response to a lock error; Django handles other exceptions."""
        return answer(request, exception) if isinstance(exception, LOCK_ERRORS) else None


def _name_route(request: HttpRequest, *_: object) -> None:
    """Name the request by its route, which is known now. Called before the view."""
    about = context.get()
    if about is not None:
        about["route"] = route_of(request)


async def _aname_route(request: HttpRequest, *_: object) -> None:
    _name_route(request)


_ERROR = "rlock_error"
"""The attribute of a request that holds a lock error for which Django has made a response with status 500."""


def _note_error(*, request: HttpRequest | None = None, **_: Any) -> None:
    """Keep the lock error of a middleware: unlike a view's error, it does not get to ``process_exception``."""
    error = sys.exception()
    if isinstance(error, LOCK_ERRORS) and request is not None:
        vars(request)[_ERROR] = error


def _answered(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    error = vars(request).get(_ERROR)
    return response if error is None else answer(request, error)


def _release_left(about: dict[str, str]) -> None:
    for lock, owner in _left(thread_owner(), about):
        try:
            run_flow(lock._release_for, (blocking_driver(lock), owner))  # noqa: SLF001
        except RLockError as failure:
            _tell_failure(failure, about)


async def _arelease_left(about: dict[str, str]) -> None:
    for lock, owner in _left(task_owner(), about):
        try:
            await lock._release_for(awaited_driver(lock), owner)  # noqa: SLF001
        except RLockError as failure:
            _tell_failure(failure, about)


def _left(owner: Owner, about: dict[str, str]) -> Iterator[tuple[BaseLock, Owner]]:
    """The locks that were taken during a request and are still held, by the given owner or by a task that has ended; a
    lock comes once for each hold.

    The task matters under WSGI, where an async view runs in a separate task.
    """
    for hold in HOLDS.under(about):
        # The end of a transaction around the request releases the others.
        left = hold.count - given_back_later(hold.key)
        if left > 0 and (hold.owner is owner or hold.owner.ended):
            _tell_left(hold, about)
            lock: Any = hold.lock
            yield from [(lock, hold.owner)] * left


def _tell_left(hold: Hold, about: dict[str, str]) -> None:
    log(
        logger,
        logging.WARNING,
        "%r ended and still held lock %r, acquired at %s, which is released now. Take it with 'with', or release it in "
        "'finally'.",
        about["route"],
        hold.lock.name,
        hold.taken_at,
    )


def _tell_failure(failure: RLockError, about: dict[str, str]) -> None:
    log(logger, logging.WARNING, "After %r: %s", about["route"], failure)
