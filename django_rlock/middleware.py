"""``LockMiddleware``: reports the locks of a request, turns lock errors into responses, and releases leftover locks.

Without it, and after tasks, leftover locks are released at the signals by which Django and Celery report the end.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django import VERSION
from django.core.signals import got_request_exception, request_finished, request_started
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from django_rlock._core.callbacks import log
from django_rlock._core.foreign import running_loop
from django_rlock._transport.calls import run_flow
from django_rlock._transport.identity import Owner, task_owner, thread_owner
from django_rlock._transport.registry import awaited_driver, blocking_driver
from django_rlock._web.http import LOCK_ERRORS, answer, reported, route_of
from django_rlock.exceptions import RLockError
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold, Work, context
from django_rlock.locks.release import end_left
from django_rlock.locks.transactions import released_at_end

logger = logging.getLogger("django_rlock.middleware")

_LEFT = (
    "%r ended and still held lock %r, acquired at %s, which is released now. Take it with 'with', or release it in "
    "'finally'."
)


class LockMiddleware:
    """Turns lock errors of requests into responses, names the request in reports, and releases locks that the view left
    held, with a warning.

    Put it after ``AuthenticationMiddleware``, so that reports can name the user. LockTimeoutError becomes LOCKED_STATUS
    of the alias ``default``; LockUnavailableError and LockLostError become 503; each with ``Retry-After``. Locks held
    by threads and tasks that the view has started itself, or for a streaming response, are left alone.
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


def _release_left(about: Work) -> None:
    for lock, owner in _left(thread_owner(), about):
        try:
            run_flow(lock._release_for, (blocking_driver(lock), owner))  # noqa: SLF001
        except RLockError as failure:
            _tell_failure(failure, about)


async def _arelease_left(about: Work) -> None:
    for lock, owner in _left(task_owner(), about):
        try:
            await lock._release_for(awaited_driver(lock), owner)  # noqa: SLF001
        except RLockError as failure:
            _tell_failure(failure, about)


def _left(owner: Owner, about: Work) -> Iterator[tuple[BaseLock, Owner]]:
    """The locks that were taken during a request and are still held, by the given owner or by a task that has ended; a
    lock comes once for each hold.

    The task matters under WSGI, where an async view runs in a separate task.
    """
    for hold in HOLDS.under(about):
        # The end of a transaction around the request releases the others.
        left = hold.count - released_at_end(hold.key)
        if left > 0 and (hold.owner is owner or hold.owner.ended):
            lock: Any = hold.lock
            log(logger, logging.WARNING, _LEFT, about["route"], lock.name, hold.taken_at)
            yield from [(lock, hold.owner)] * left


def _tell_failure(failure: RLockError, about: Work) -> None:
    log(logger, logging.WARNING, "After %r: %s", about["route"], failure)


# --- holds that end with a request or a task --------------------------------------------------------------------------

# A thread or greenlet handles one request or task after another. What one of them left held would be the next one's.


class Begun(NamedTuple):
    """A request or task that an owner has begun. ``before`` has the owner's holds of that time, and how often each was
    held without a block; ``around`` is the request or task inside which this one runs.
    """

    key: object
    owner: Owner
    before: Mapping[Hold, int]
    around: Begun | None


_begun: ContextVar[Begun | None] = ContextVar("rlock_begun", default=None)


def begin_work(key: object, is_inner: bool) -> None:
    """Note that the running thread or greenlet begins a request or a task; ``is_inner`` is whether another one may be
    under way in it."""
    owner = thread_owner()
    before = {hold: _unkept(hold) for hold in HOLDS.of(owner)} if HOLDS.table else {}
    _begun.set(Begun(key, owner, before, _begun.get() if is_inner else None))


def end_work(key: object, name: str) -> None:
    """End what the request or task with this key, named so in the log, leaves held without a block."""
    begun = _begun.get()
    while begun is not None and begun.key != key:
        begun = begun.around
    if begun is None:
        return
    _begun.set(begun.around)
    # A server may close a response in another thread, whose holds are its own affair.
    if HOLDS.table and running_loop() is None and begun.owner is thread_owner():
        for hold in HOLDS.of(begun.owner):
            left = _unkept(hold) - begun.before.get(hold, 0)
            if left > 0:
                end_left(logger, hold, left, name)


def _unkept(hold: Hold) -> int:
    """How often a lock is held without a block or a transaction that will release it."""
    return hold.count - hold.scoped - released_at_end(hold.key)


def hear_of_ends() -> None:
    """Connect the signals by which Django and Celery report that a thread begins or ends a request or a task."""
    request_started.connect(begin_request, dispatch_uid="django_rlock")
    request_finished.connect(end_request, dispatch_uid="django_rlock")
    if "celery" in sys.modules:
        from celery.signals import task_postrun, task_prerun

        task_prerun.connect(begin_run, dispatch_uid="django_rlock")
        task_postrun.connect(end_run, dispatch_uid="django_rlock")
    if VERSION >= (6, 0):
        from django.tasks.signals import task_finished, task_started

        task_started.connect(begin_task, dispatch_uid="django_rlock")
        task_finished.connect(end_task, dispatch_uid="django_rlock")


def begin_request(**_: Any) -> None:
    begin_work("request", is_inner=False)


def end_request(**_: Any) -> None:
    end_work("request", "A request")


def begin_run(task_id: str, task: Any, **_: Any) -> None:
    """Receive Celery's signal."""
    begin_work(task_id, is_inner=bool(task.request.is_eager))


def end_run(task_id: str, task: Any, **_: Any) -> None:
    """Receive Celery's signal."""
    end_work(task_id, f"Task {task.name}[{task_id}]")


def begin_task(task_result: Any, **_: Any) -> None:
    """Receive the signal of Django's own tasks."""
    begin_work(task_result.id, is_inner=True)


def end_task(task_result: Any, **_: Any) -> None:
    """Receive the signal of Django's own tasks."""
    end_work(task_result.id, f"Task {task_result.task.module_path}[{task_result.id}]")
