"""One call under a lock: acquire, BEGIN, body, check, COMMIT, release; and what is answered when that fails."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest
from django.http import HttpResponse

from django_rlock.arguments import Arguments
from django_rlock.drivers.identity import thread_owner
from django_rlock.exceptions import (
    KeyTemplateError,
    LockLostError,
    LockTimeoutError,
    LockUnavailableError,
    RLockError,
)
from django_rlock.keytemplates import KeyTemplate
from django_rlock.locks import BaseLock, Duration, rlock
from django_rlock.locks.durations import UNSET
from django_rlock.settings import get_settings
from django_rlock.web.requests import reported, request_of
from django_rlock.web.responses import LOCK_ERRORS, answer
from django_rlock.web.streaming import keep_while_streaming
from django_rlock.web.transactions import (
    Atomic,
    OpenedInside,
    databases,
    open_database,
    open_transactions,
    roll_back_open,
    warn_once,
)

logger = logging.getLogger("django_rlock.decorators")

Naming = Callable[..., str | Iterable[str]]
"""Answers the name of the lock, or several, from the arguments of the call."""
OnLocked = Literal["raise", "skip"] | Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of ``distributed_lock``, checked."""

    templates: tuple[KeyTemplate | Naming, ...]
    wait_time: Duration | None
    lease_time: Duration | None
    using: str
    kind: str | None
    on_locked: OnLocked
    status: int | None
    atomic: Atomic
    condition: Callable[..., object] | None


class LockedCall:
    """A decorated callable. ``left_out`` are the databases that get no transaction; None where it opens none."""

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        self.func = func
        self.options = options
        self.arguments = Arguments(func)
        self.left_out: OpenedInside | None = None
        # Attributes may ask the database.
        self.reads_attributes = any(
            placeholder.path
            for template in options.templates
            if isinstance(template, KeyTemplate)
            for placeholder in template.placeholders()
        )

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = request_of(args, kwargs)
        aliases = self._databases(request)
        if not self._applies(args, kwargs):
            with open_transactions(aliases):
                return self.func(*args, **kwargs)
        with reported(request):
            section = _Section(self._lock(request, self._names(request, args, kwargs)))
            self._warn_inside_transaction(section.lock, request)
            try:
                with section:
                    with open_transactions(aliases):
                        result = _checked(self.func(*args, **kwargs))
                        section.lock.check()
                    section.is_committed = bool(aliases) and open_database() is None
                    if request is not None:
                        section.left = keep_while_streaming(section.lock, result)
            except LOCK_ERRORS as error:
                return self._failed(error, section, request, args, kwargs)
            return result

    async def arun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for asyncio, where Django has no transactions."""
        request = request_of(args, kwargs)
        if not self._applies(args, kwargs):
            return await self.func(*args, **kwargs)
        with reported(request):
            section = _Section(self._lock(request, await self._anames(request, args, kwargs)))
            try:
                async with section:
                    result = await self.func(*args, **kwargs)
                    section.lock.check()
                    if request is not None:
                        section.left = keep_while_streaming(section.lock, result)
            except LOCK_ERRORS as error:
                result = self._failed(error, section, request, args, kwargs)
                return await result if inspect.isawaitable(result) else result
            return result

    def _applies(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        condition = self.options.condition
        return condition is None or bool(condition(*args, **kwargs))

    def _names(self, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        return [name for each in self.options.templates for name in self._named_by(each, request, args, kwargs)]

    def _named_by(
        self, template: KeyTemplate | Naming, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[str]:
        if isinstance(template, KeyTemplate):
            yield self._rendered(template, request, args, kwargs)
        else:
            named = template(*args, **kwargs)
            yield from [named] if isinstance(named, str) or not isinstance(named, Iterable) else named

    def _rendered(self, template: KeyTemplate, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        values = self.arguments.of_call(args, kwargs)
        if request is None:
            return template.render(values)
        try:
            return template.render({**values, "request": request})
        except KeyTemplateError as error:
            if "request" not in template.names:
                raise
            # The client has not sent what the lock is named after. One traceback is enough for the log.
            raise BadRequest(str(error)) from None

    async def _anames(self, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        if self.reads_attributes:
            return await sync_to_async(self._names)(request, args, kwargs)
        return self._names(request, args, kwargs)

    def _lock(self, request: Any, names: list[str]) -> BaseLock:
        options = self.options
        wait_time = options.wait_time
        if wait_time is UNSET:
            wait_time = None if request is None else get_settings(options.using).view_wait_time
        return rlock(*names, wait_time=wait_time, lease_time=options.lease_time, using=options.using, kind=options.kind)

    def _databases(self, request: Any) -> list[str]:
        if self.left_out is None:
            return []
        return databases(self.options.atomic, request is not None, self.left_out)

    def _warn_inside_transaction(self, lock: BaseLock, request: Any) -> None:
        if self.options.atomic is False:
            return
        alias = open_database()
        # Taking it once more is harmless: it stays with whoever took it first.
        if alias is not None and not lock.holds_of(thread_owner()):
            warn_once(self.func, alias, request is not None)

    def _failed(
        self, error: RLockError, section: _Section, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What to return instead of the result; or raises the error."""
        on_locked = self.options.on_locked
        if on_locked == "raise":
            raise error
        if on_locked is not None and isinstance(error, LockTimeoutError) and not section.is_entered:
            if callable(on_locked):
                return on_locked(error, *args, **kwargs)
            return None if request is None else HttpResponse(status=204)
        if request is None:
            raise error
        response = answer(request, error, using=self.options.using, status=self.options.status)
        roll_back_open()
        return response


class _Section:
    """The lock around a body, whose work is not undone because giving the lock back fails.

    ``left`` is what is given back at its end: less than the lock where a streaming response keeps some of it.
    """

    __slots__ = ("is_committed", "is_entered", "left", "lock")

    def __init__(self, lock: BaseLock) -> None:
        self.lock = lock
        self.is_entered = False
        self.is_committed = False
        self.left: BaseLock | None = lock

    def __enter__(self) -> Self:
        self.lock.__enter__()
        self.is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.left is not None:
            try:
                self.left.__exit__(kind, error, trace)
            except RLockError as failure:
                self._note(failure)

    async def __aenter__(self) -> Self:
        await self.lock.__aenter__()
        self.is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.left is not None:
            try:
                await self.left.__aexit__(kind, error, trace)
            except RLockError as failure:
                self._note(failure)

    def _note(self, failure: RLockError) -> None:
        """Log a failure that comes too late to undo anything; raise others."""
        if isinstance(failure, LockUnavailableError) or (self.is_committed and isinstance(failure, LockLostError)):
            logger.error("The work under lock %r is done, but: %s", self.lock.name, failure)
        else:
            raise failure


def _checked(result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            "A function under @distributed_lock returned a coroutine, whose body would run without the lock. Make the "
            "function itself 'async def', or put the decorator on the coroutine function."
        )
    return result
