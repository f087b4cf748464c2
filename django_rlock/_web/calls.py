"""One call under a lock: acquire, BEGIN, body, check, COMMIT, release; and the result if one of them fails."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from operator import itemgetter
from typing import Any, Literal

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Model
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from django_rlock._core.foreign import LEFT_OUT
from django_rlock._transport.identity import in_transaction, thread_owner
from django_rlock._web.http import (
    LOCK_ERRORS,
    UNREPORTED,
    NobodyError,
    answer,
    ask_to_log_in,
    is_view_call,
    keep_for_response,
    plain_request,
    prefers_page,
    refusal,
    reported,
    request_of,
    running_calls,
)
from django_rlock._web.keytemplates import Arguments, KeyTemplate, definition, is_partial_method, names_user
from django_rlock._web.reads import read_unprotected, unread_user, watched
from django_rlock.exceptions import KeyTemplateError, LockTimeoutError, RLockError
from django_rlock.locks import BaseLock, LockTerms, named_lock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import note_templates
from django_rlock.locks.options import UNSET, completed
from django_rlock.locks.transactions import Section, ensure_owned, open_databases, value
from django_rlock.settings import AliasSettings, parsed_entry

# --- transactions -----------------------------------------------------------------------------------------------------

# Django's ATOMIC_REQUESTS opens the transaction outside a view's decorators. So a lock taken by a decorator would be
# released before COMMIT, and the next owner would read the old rows. Therefore the decorator makes Django open no
# transaction, and opens the transaction itself. docs/transactions.md explains this for users.

logger = logging.getLogger("django_rlock.web")

Atomic = bool | Literal["auto"]

_ATOMIC_REQUESTS = itemgetter("ATOMIC_REQUESTS")

_FIXES = {
    (True, True): "Put it above all decorators of the method that wrap it, in a class that derives from View itself.",
    (False, True): "Put it above all other decorators of the view; or leave it below @api_view, and put "
    "@transaction.non_atomic_requests above that.",
    (
        False,
        False,
    ): "Call it outside the transaction, and let @distributed_lock(..., atomic=True) open one inside the lock.",
}
"""How to fix a lock inside a transaction, by whether it is on a method and whether it is on a view."""

_warned_functions: set[str] = set()


class OpenedInside(set[str]):
    """Poses as a set of all aliases, so that Django opens no transaction (settings may not be loaded yet). Its
    real elements are the aliases that the view itself opted out of."""

    def __contains__(self, alias: object) -> bool:
        return True


def opens_inside(func: object) -> bool:
    """Whether a decorator below opens the transactions: the innermost decorator does, because all locks are held by
    then."""
    return isinstance(getattr(func, LEFT_OUT, None), OpenedInside)


def mark(wrapper: Callable[..., Any]) -> OpenedInside:
    """Make Django leave a view's transactions to the decorator. A later non_atomic_requests adds its aliases to the
    returned set."""
    left_out = OpenedInside(getattr(wrapper, LEFT_OUT, ()))
    setattr(wrapper, LEFT_OUT, left_out)
    return left_out


def refuse_atomic_requests(dispatch: Callable[..., Any], request: Any) -> None:
    """Raise the error that Django raises for an async view under ATOMIC_REQUESTS.

    A decorator of ``dispatch`` marks its class before it is known that the handlers are async, so Django does not
    raise.
    """
    match = getattr(request, "resolver_match", None)
    left_out = {*getattr(dispatch, LEFT_OUT, ()), *getattr(match and match.func, LEFT_OUT, ())}
    if databases("auto", True, left_out):
        raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")


def databases(atomic: Atomic, is_view: bool, left_out: Iterable[str]) -> list[str]:
    """The aliases on which to open a transaction."""
    always = [DEFAULT_DB_ALIAS] if atomic is True else []
    if not is_view or not any(map(_ATOMIC_REQUESTS, connections.settings.values())):
        return always
    atomic_requests = {alias for alias, options in connections.settings.items() if options["ATOMIC_REQUESTS"]}
    return sorted({*always, *atomic_requests.difference(left_out)})


@contextmanager
def in_transactions(aliases: Sequence[str]) -> Iterator[None]:
    """A block inside transactions of all aliases."""
    if not aliases:
        yield
        return
    # Each transaction has its own "with": an interrupted ExitStack does not end the transactions that it has begun.
    with transaction.atomic(using=aliases[0]), in_transactions(aliases[1:]):
        yield


def open_database() -> str | None:
    """The alias of a database with an open transaction; None if there is none."""
    found = open_databases()
    return found[0].alias if found else None


def roll_back_open() -> None:
    """Roll back the open transactions, which Django would commit, because an error has become a response."""
    for connection in open_databases():
        if connection.settings_dict["ATOMIC_REQUESTS"]:
            connection.set_rollback(True)


def warn_once(func: Callable[..., Any], alias: str, is_view: bool) -> None:
    """Log that a lock is released before the transaction around it ends, and how to fix that."""
    func = definition(func)
    name = f"{func.__module__}.{func.__qualname__}"
    if name in _warned_functions:
        return
    _warned_functions.add(name)
    fix = _FIXES[is_view and "." in func.__qualname__.rpartition("<locals>.")[2], is_view]
    logger.warning(
        "%s takes its lock inside an open transaction of database %r, and releases it before COMMIT: the next owner "
        "reads the old rows. %s To accept that, write atomic=False.",
        name,
        alias,
        fix,
    )


# --- locked calls -----------------------------------------------------------------------------------------------------

Naming = Callable[..., str | Iterable[str]]
"""Returns the name of the lock, or several names, from the arguments of the call."""
Names = tuple[tuple[str, str], ...]
"""The names of a call's locks, each with its key template, or "" if a function made it."""
OnLocked = Literal["raise", "skip"] | Callable[..., Any] | None


AROUND: ContextVar[tuple[BaseLock, ...]] = ContextVar("rlock_around", default=())
"""The locks of outer decorators whose transaction an inner one opens: they are checked before COMMIT too."""


MOST_LOCKS = 1000
"""How many lock objects a decorated callable keeps for its next calls."""


@dataclass(frozen=True, slots=True)
class KeptLocks:
    """The lock objects that a decorated callable has made under one alias's settings, by their names and whether the
    caller is a view."""

    settings: AliasSettings
    locks: dict[tuple[Names, bool], BaseLock]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, kw_only=True)
class Options(LockTerms):
    """The arguments of ``distributed_lock``, checked. ``has_wait_time`` is whether ``wait_time`` was given."""

    templates: tuple[KeyTemplate | Naming, ...]
    has_wait_time: bool
    on_locked: OnLocked
    status: int | None
    atomic: Atomic
    condition: Callable[..., object] | None


class LockedCall:
    """A decorated callable. ``left_out`` are the databases that get no transaction; None if it opens none.

    ``encloses`` is whether a decorator below opens the transactions; ``is_async_dispatch`` is whether it is the
    ``dispatch`` of an async class-based view, whose transactions Django does not check.
    """

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        self.func = func
        self.options = options
        self.arguments = Arguments(func)
        self.left_out: OpenedInside | None = None
        self.encloses = opens_inside(func)
        self.is_async_dispatch = False
        self._kept: KeptLocks | None = None
        templates = [template for template in options.templates if isinstance(template, KeyTemplate)]
        self._keeps_locks = len(templates) == len(options.templates)
        placeholders = [placeholder for template in templates for placeholder in template.placeholders]
        # Reading attributes may query the database.
        self.reads_attributes = any(placeholder.path for placeholder in placeholders)
        # A function that names locks may read the user, too.
        self.may_read_user = not self._keeps_locks or any(map(names_user, placeholders))
        self._constant: Names | None = None
        if self._keeps_locks and not placeholders:
            self._constant = tuple([(template.render({}), template.source) for template in templates])

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = request_of(args, kwargs)
        aliases = self._databases(request)
        condition = self.options.condition
        if condition is not None and not condition(*args, **kwargs):
            with in_transactions(aliases):
                return self.func(*args, **kwargs)
        with UNREPORTED if request is None else reported(request):
            read: list[Any] = []
            user = unread_user(request and plain_request(request), read) if self.may_read_user else None
            try:
                names = self._names(request, args, kwargs, read)
            except NobodyError as error:
                return self._login(error, request, args)
            lock = self._lock(request, names)
            section = Section(lock)
            self._warn_inside_transaction(lock, request, args)
            instances = read and read_unprotected(read)
            try:
                with section:
                    if user is not None:
                        user.forget()
                    if aliases:
                        # acquire, BEGIN, body, check, COMMIT, release: the next owner must read the committed rows.
                        # See docs/transactions.md.
                        with in_transactions(aliases):
                            result = self._call(lock, request, args, kwargs, instances)
                            ensure_owned((*AROUND.get(), lock))
                        section.is_committed = open_database() is None
                    else:
                        result = self._call(lock, request, args, kwargs, instances)
                    if isinstance(result, HttpResponseBase):
                        # A streaming response, or a response that is not rendered yet, releases its lock itself.
                        section.left = keep_for_response(lock, result)
            except LOCK_ERRORS as error:
                return self._failed(error, section, request, args, kwargs)
            return result

    async def arun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for asyncio, where Django has no transactions."""
        request = request_of(args, kwargs)
        if self.is_async_dispatch:
            refuse_atomic_requests(self.func, request)
        condition = self.options.condition
        if condition is not None and not condition(*args, **kwargs):
            return await self.func(*args, **kwargs)
        with UNREPORTED if request is None else reported(request):
            read: list[Any] = []
            user = unread_user(request and plain_request(request), read) if self.may_read_user else None
            try:
                names = await self._anames(request, args, kwargs, read)
            except NobodyError as error:
                return await sync_to_async(self._login)(error, request, args)
            if parsed_entry(self.options.using).key_function is None:
                lock = self._lock(request, names)
            else:  # which may read the tenant from the connection of the thread
                lock = await sync_to_async(self._lock)(request, names)
            section = Section(lock)
            instances = read and read_unprotected(read)
            try:
                async with section:
                    if user is not None and user.is_read:
                        await sync_to_async(user.read_again)()
                    result = await self._acall(request, args, kwargs, instances)
                    if isinstance(result, HttpResponseBase):
                        section.left = keep_for_response(lock, result)
            except LOCK_ERRORS as error:
                respond = sync_to_async(answer) if prefers_page(request) else answer
                result = self._failed(error, section, request, args, kwargs, respond)
                return await result if inspect.isawaitable(result) else result
            return result

    def _call(
        self,
        lock: BaseLock,
        request: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: Sequence[Model] = (),
    ) -> Any:
        """Call the function. A decorator below that opens the transactions gets the locks around it, to check them."""
        if read:
            with watched(read, self.func):
                return self._call(lock, request, args, kwargs)
        around = AROUND.get()
        is_around = self.encloses or around
        if request is None and not is_around:
            return value(self.func(*args, **kwargs))
        running = running_calls(request)
        running.append(self.func)
        try:
            if is_around:
                # What the body calls opens its own transactions, so the locks are passed on to the next decorator only.
                AROUND.set((*around, lock) if self.encloses else ())
            result = self.func(*args, **kwargs)
            return result if isinstance(result, HttpResponseBase) else value(result)
        finally:
            if is_around:
                AROUND.set(around)  # before any other call: a signal handler may raise after one
            running.pop()

    async def _acall(
        self, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Model] = ()
    ) -> Any:
        if read:
            with watched(read, self.func):
                return await self._acall(request, args, kwargs)
        running = running_calls(request)
        running.append(self.func)
        try:
            return value(await self.func(*args, **kwargs))
        finally:
            running.pop()

    def _names(self, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], read: list[Any]) -> Names:
        if self._constant is not None:
            return self._constant
        names: list[tuple[str, str]] = []
        for template in self.options.templates:
            if isinstance(template, KeyTemplate):
                names.append((self._rendered(template, request, args, kwargs, read), template.source))
            else:
                read += [*args, *kwargs.values()]
                named = template(*args, **kwargs)
                several = [named] if isinstance(named, str) or not isinstance(named, Iterable) else named
                names += [(name, "") for name in several]
        return tuple(names)

    def _rendered(
        self,
        template: KeyTemplate,
        request: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        read: list[Any],
    ) -> str:
        values = self.arguments.of_call(args, kwargs)
        if request is None or "request" not in template.names:
            return template.render(values, read)
        try:
            return template.render({**values, "request": request}, read)
        except KeyTemplateError as error:
            # The request lacks a value that the lock's name needs. One traceback is enough for the log.
            needs_user = any(names_user(each) and not each.optional for each in template.placeholders)
            raise refusal(request, str(error), needs_user) from None

    def _login(self, error: NobodyError, request: Any, args: tuple[Any, ...]) -> Any:
        """What the view would respond to a request of nobody; raises the error if the view does not require a login."""
        # Django's method_decorator passes a partial of the view's method.
        view = getattr(self.func.func, "__self__", None) if isinstance(self.func, partial) else next(iter(args), None)
        response = ask_to_log_in(request, view, self.func)
        if response is None:
            raise error
        return response

    async def _anames(self, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], read: list[Any]) -> Names:
        if self.reads_attributes:
            return await sync_to_async(self._names)(request, args, kwargs, read)
        return self._names(request, args, kwargs, read)

    def _lock(self, request: Any, names: Names) -> BaseLock:
        """The lock for these names. Locks are stateless, so it is kept for calls with the same names."""
        settings = parsed_entry(self.options.using)
        if settings.key_function is not None:
            names = tuple([(completed(settings, [name])[0], source) for name, source in names])
        if not self._keeps_locks:
            return self._new_lock(request, names, settings)
        kept = self._kept
        if kept is None or kept.settings is not settings:
            self._kept = kept = KeptLocks(settings, {})
        key = names, request is None
        lock = kept.locks.get(key)
        if lock is None:
            if len(kept.locks) >= MOST_LOCKS:
                kept.locks.clear()
            kept.locks[key] = lock = self._new_lock(request, names, settings)
        return lock

    def _new_lock(self, request: Any, names: Names, settings: AliasSettings) -> BaseLock:
        options = self.options
        wait_time = options.wait_time
        if not options.has_wait_time and request is not None:
            wait_time = settings.view_wait_time
        elif not options.has_wait_time:
            # A caller that handles a taken lock does not want to wait.
            wait_time = 0 if options.on_locked == "skip" or callable(options.on_locked) else UNSET
        lock = named_lock(*[name for name, _ in names], wait_time=wait_time, **options.of_lock)
        note_templates(lock, dict(names))
        return lock

    def _databases(self, request: Any) -> list[str]:
        atomic = self.options.atomic
        if self.left_out is None or (request is None and atomic is not True):
            return []
        return databases(atomic, request is not None, self.left_out)

    def _warn_inside_transaction(self, lock: BaseLock, request: Any, args: tuple[Any, ...]) -> None:
        if self.options.atomic is False or not in_transaction():
            return
        alias = open_database()
        # Re-entering is harmless: the outer block holds the lock until its own end.
        if alias is not None and not HOLDS.of_lock(lock, thread_owner()):
            warn_once(self.func, alias, is_view_call(self.func, request, args))

    def _failed(
        self,
        error: RLockError,
        section: Section[Any],
        request: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        respond: Callable[..., Any] = answer,
    ) -> Any:
        """The value to return instead of the result; or raises the error."""
        on_locked = self.options.on_locked
        if on_locked == "raise":
            raise error
        responds = is_view_call(self.func, request, args)
        # A LockTimeoutError of the body is about a lock that the body takes.
        if on_locked is not None and isinstance(error, LockTimeoutError) and not section.is_entered:
            if callable(on_locked):
                return on_locked(error, *args, **kwargs)
            return HttpResponse(status=204) if responds else None
        if not responds:
            raise error
        response = respond(request, error, using=self.options.using, status=self.options.status)
        # An open transaction is around the lock. Django would commit it, because it sees no error.
        roll_back_open()
        return response


def sync_wrapper(call: LockedCall) -> Callable[..., Any]:
    """The function that the project calls instead of the wrapped one."""

    @wraps(call.func)
    def locked(*args: Any, **kwargs: Any) -> Any:
        return call.run(args, kwargs)

    if call.options.atomic is not False and not call.encloses:
        call.left_out = mark(locked)
    return locked


def async_wrapper(call: LockedCall) -> Callable[..., Any]:
    """The same for a coroutine function."""
    if call.options.atomic is True:
        raise ValueError(
            "distributed_lock(atomic=True) needs a sync function: Django has no transactions in async code. Decorate "
            "the sync function that you call with sync_to_async."
        )
    call.is_async_dispatch = is_partial_method(call.func) and call.options.atomic is not False

    @wraps(call.func)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        return await call.arun(args, kwargs)

    return locked
