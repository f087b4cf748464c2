"""``@distributed_lock``: functions, views and classes of views that run under a lock."""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any, Literal, NoReturn, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from asgiref.sync import iscoroutinefunction
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import classonlymethod
from django.views import View

from django_rlock._core.text import printable
from django_rlock._web import calls
from django_rlock._web.keytemplates import KeyTemplate, check_names, definition
from django_rlock.exceptions import KeyTemplateError
from django_rlock.locks import BaseLock, Duration, LockTerms
from django_rlock.locks.options import (
    UNSET,
    KindName,
    unknown_option,
)
from django_rlock.locks.transactions import ensure_owned, returns_generator
from django_rlock.settings import DEFAULT_ALIAS, unknown_alias

logger = logging.getLogger("django_rlock.web")

# --- view classes -----------------------------------------------------------------------------------------------------

# Views of which only some methods or operations open their transactions themselves, inside their locks.
#
# Django opens the transactions of ATOMIC_REQUESTS around the whole view, whichever method handles the request. So
# Django is made to open none, and this code opens them around the whole view if the method has no lock.

OPERATIONS = "rlock_operations"
"""The attribute of views that holds the functions that handle their requests, if those are not methods."""

Finder = Callable[[HttpRequest], object]
"""Returns the method or function that will handle a request; None if there is none."""


class MethodOfClass:
    """Stands for a decorated method until its class is made; then the class leaves the transactions to its methods.

    It behaves like the function, and the class gets the function in its place.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.__wrapped__.__get__(instance, owner)

    def __set_name__(self, owner: type, name: str) -> None:
        # Decorators such as @action have set attributes on this object.
        named = (*functools.WRAPPER_ASSIGNMENTS, "__wrapped__")
        vars(self.__wrapped__).update({key: value for key, value in vars(self).items() if key not in named})
        setattr(owner, name, self.__wrapped__)
        if issubclass(owner, View):
            _open_transactions_in_methods(owner)


def _open_transactions_in_methods(cls: Any) -> None:
    own = vars(cls).get("as_view")

    def as_view(subclass: Any, *args: Any, **kwargs: Any) -> Any:
        make = super(cls, subclass).as_view if own is None else own.__get__(None, subclass)
        view = make(*args, **kwargs)
        return with_transactions(view, functools.partial(_method_for, subclass, view))

    cls.as_view = classonlymethod(as_view)


def _method_for(cls: type, view: Any, request: HttpRequest) -> object:
    name = (request.method or "").lower()
    # The methods of a view set of Django REST framework are not named after HTTP's methods.
    names = getattr(view, "actions", None) or dict.fromkeys([name], name)
    method = getattr(cls, names.get(name, name), None)
    return getattr(cls, names.get("get", "get"), None) if method is None and name == "head" else method


def with_transactions(view: Callable[..., Any], find: Finder) -> Callable[..., Any]:
    """The view, with Django's transactions around requests whose handler does not open them itself.

    A view that opens its transactions as a whole stays unchanged, and so does an async view, which Django refuses under
    ATOMIC_REQUESTS.
    """
    if calls.opens_inside(view) or iscoroutinefunction(view):
        return view

    @functools.wraps(view)
    def locked_or_not(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if calls.opens_inside(find(request)):
            with _outer_transactions_kept():
                return view(request, *args, **kwargs)
        aliases = calls.databases("auto", True, left_out)
        with calls.in_transactions(aliases):
            response = view(request, *args, **kwargs)
            if aliases:
                ensure_owned(calls.AROUND.get())
            return response

    left_out = calls.mark(locked_or_not)
    return locked_or_not


@contextmanager
def _outer_transactions_kept() -> Iterator[None]:
    """Undo Django REST framework's rollback of transactions outside the view, such as a test case's: it marks all open
    transactions when it handles an error."""
    outer = [
        each for each in connections.all(initialized_only=True) if each.in_atomic_block and not each.needs_rollback
    ]
    yield
    for connection in outer:
        if connection.in_atomic_block:
            connection.set_rollback(False)


# --- decorators -------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=Callable[..., HttpResponseBase | Coroutine[Any, Any, HttpResponseBase]])
P = ParamSpec("P")
T = TypeVar("T")

TEMPLATES = "rlock_templates"
"""The attribute of decorated callables that holds their key templates, for the check against the URLconf."""

DECORATED_AT: WeakKeyDictionary[calls.Options, tuple[str, int]] = WeakKeyDictionary()
"""The module and line of each decorator that names an alias, for the check against RLOCK."""


class _Skipping(Protocol):
    """The type of a decorator whose function returns None if the lock is taken; a view responds with 204."""

    @overload
    def __call__(self, func: V, /) -> V: ...  # type: ignore[overload-overlap] # a view is a function, too
    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T | None]]: ...
    @overload
    def __call__(self, func: Callable[P, T], /) -> Callable[P, T | None]: ...


@overload
def distributed_lock(
    *templates: str | calls.Naming,
    wait_time: Duration | None = UNSET,
    lease_time: Duration | None = None,
    at_least: Duration | None = None,
    max_hold_time: Duration | None = None,
    permits: int | None = None,
    using: str = DEFAULT_ALIAS,
    kind: KindName | None = None,
    on_locked: Literal["skip"],
    status: int | None = None,
    atomic: calls.Atomic = "auto",
    condition: Callable[..., object] | None = None,
) -> _Skipping: ...
@overload
def distributed_lock(
    *templates: str | calls.Naming,
    wait_time: Duration | None = UNSET,
    lease_time: Duration | None = None,
    at_least: Duration | None = None,
    max_hold_time: Duration | None = None,
    permits: int | None = None,
    using: str = DEFAULT_ALIAS,
    kind: KindName | None = None,
    on_locked: Literal["raise"] | Callable[..., Any] | None = None,
    status: int | None = None,
    atomic: calls.Atomic = "auto",
    condition: Callable[..., object] | None = None,
) -> Callable[[F], F]: ...
def distributed_lock(  # noqa: PLR0913 - each is given by its name
    *templates: str | calls.Naming,
    wait_time: Duration | None = UNSET,
    lease_time: Duration | None = None,
    at_least: Duration | None = None,
    max_hold_time: Duration | None = None,
    permits: int | None = None,
    using: str = DEFAULT_ALIAS,
    kind: KindName | None = None,
    on_locked: calls.OnLocked = None,
    status: int | None = None,
    atomic: calls.Atomic = "auto",
    condition: Callable[..., object] | None = None,
    **unknown: Any,
) -> Any:
    """Run a function, coroutine function or view under a lock, and never without it::

        @distributed_lock("stock:<pk>")
        def buy(request, pk): ...

        @method_decorator(distributed_lock("stock:<pk>"), name="dispatch")
        class Buy(View): ...

    A template names the lock; https://github.com/django-rlock/django-rlock/blob/main/docs/key-templates.md lists its
    placeholders. Instead, a function may get the arguments of the call, and return one or more names. With several
    names, all locks are taken or none.

    Durations are seconds. ``wait_time`` is how long to wait; 0 tries once, None waits forever. By default calls with a
    request wait for VIEW_WAIT_TIME. Other calls try once if ``on_locked`` is "skip" or a function, and otherwise wait
    for WAIT_TIME. With a ``lease_time`` of None the watchdog renews the lease, for ``max_hold_time`` at most (None:
    MAX_HOLD_TIME). The lock stays held for ``at_least`` after it was acquired, even if the call ends earlier. With
    ``permits=3`` up to three calls run at once. ``using`` is the RLOCK alias, ``kind`` the kind of lock (None: the
    alias's default kind).

    If the lock is held, a view responds with ``status`` (None: LOCKED_STATUS); if Redis is unreachable or the lock was
    lost, with 503. Other callables, even with a request, raise LockTimeoutError, LockUnavailableError and
    LockLostError. ``on_locked`` changes that: ``"raise"`` makes a view raise all three; ``"skip"`` returns None when
    the lock is held (204 from a view); a function is called with the LockTimeoutError and the arguments of the call,
    and returns the result.

    ``atomic`` opens the database transaction inside the lock. Before COMMIT it rolls back if the lock was lost, or
    Redis is unreachable. ``"auto"`` does so for views, on the databases with ATOMIC_REQUESTS; True for all callables,
    and also on the default database; False never. Async code has no transactions.

    ``condition`` gets the arguments of the call; if it returns False, the body runs without the lock.

    A call raises TypeError if the function returns a promise of work, such as a generator, awaitable or Future. The
    decorator raises KeyTemplateError, ValueError or TypeError at once for bad arguments, and for a template with a name
    that the function does not take.
    """
    if unknown:
        raise unknown_option("distributed_lock", unknown)
    if not templates:
        raise TypeError("distributed_lock() needs a key template, such as 'stock:<pk>'.")
    options = calls.Options(
        **LockTerms.checked(
            wait_time=None if wait_time is UNSET else wait_time,
            lease_time=lease_time,
            at_least=at_least,
            max_hold_time=max_hold_time,
            permits=permits,
            using=using,
            kind=kind,
        ),
        templates=tuple(template if callable(template) else KeyTemplate.parse(template) for template in templates),
        has_wait_time=wait_time is not UNSET,
        on_locked=on_locked,
        status=status,
        atomic=atomic,
        condition=condition,
    )
    for template in templates:
        if isinstance(template, type):
            raise TypeError(without_a_template(template))
        if isinstance(template, BaseLock):
            raise TypeError(f"distributed_lock() makes its locks: write {template.name!r} instead of a lock.")
    _check_options(options)
    frame = sys._getframe(1)  # noqa: SLF001 - the public way reads the files of the whole stack
    if using != DEFAULT_ALIAS:
        DECORATED_AT[options] = frame.f_globals.get("__name__", "?"), frame.f_lineno
    return Decorator(options, is_bare=_is_just_defined(templates[0], frame))


class Decorator:
    """The return value of ``distributed_lock(...)``. ``is_bare`` says that ``@distributed_lock`` was written above a
    function without being called, and got that function instead of a template."""

    def __init__(self, options: calls.Options, is_bare: bool = False) -> None:
        self.options = options
        self.is_bare = is_bare

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        named_by = self.options.templates[0]
        # A decorator may have been put above a function, if only by mistake, but not above a request or a model.
        is_above = len(args) == 1 and (callable(args[0]) or isinstance(args[0], classmethod | staticmethod))
        if callable(named_by) and (self.is_bare or kwargs or not is_above):
            raise TypeError(without_a_template(named_by))  # this is a call of the function
        if len(args) == 1:
            references = _references(args)
            _check_registered(args[0], references, sys._getframe(1))  # noqa: SLF001
        return _decorate(self.options, *args, **kwargs)

    def _refuse_block(self, *_: object) -> NoReturn:
        raise TypeError("distributed_lock(...) is a decorator. Around a block write 'with rlock(...):'.")

    __enter__ = __exit__ = __aenter__ = __aexit__ = _refuse_block

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, with advice for callers that expect a decorated function."""
        named_by = vars(self)["options"].templates[0] if vars(self) else None  # a copy has no attributes at first
        what = f"The return value of distributed_lock(...) has no attribute {name!r}"
        raise AttributeError(f"{what}. {without_a_template(named_by)}" if callable(named_by) else f"{what}.")


def _is_just_defined(value: Any, frame: FrameType) -> bool:
    """Whether a value is a function that the code of a frame has just made and not yet bound to a name: it is being
    decorated. A function that names locks already has a name, or is a lambda."""
    code = getattr(value, "__code__", None)
    if code is None or code.co_name == "<lambda>" or code not in frame.f_code.co_consts:
        return False
    return all(known is not value for names in (frame.f_locals, frame.f_globals) for known in names.values())


# A decorator such as @receiver registers the function below it, and returns this function. A lock above it is not part
# of the registered function, which then runs without the lock.


def _references(args: tuple[Any, ...]) -> int:
    """How many references to a decorator's argument the interpreter counts; 0 if it counts none."""
    return sys.getrefcount(args[0]) if hasattr(sys, "getrefcount") else 0


class _Counting:
    """Is called in the same way as a Decorator."""

    def __call__(self, *args: Any, **_kwargs: Any) -> int:
        return _references(args)


_USUAL_REFERENCES = _Counting()(lambda: None)


def _check_registered(func: Any, references: int, frame: FrameType) -> None:
    """Refuse a function that was just made if there is a weak reference to it, as signals keep it. Warn about other
    references, which may be harmless."""
    weak = weakref.getweakrefcount(func)
    # Some of the references may be in the function's own attributes, as @action makes them.
    attributes = [getattr(each, "__dict__", {}) for each in getattr(func, "__dict__", {}).values()]
    own = sum(each is func for its in attributes for each in its.values())
    if not weak and references <= _USUAL_REFERENCES + own:
        return
    if not isinstance(func, FunctionType) or not _is_just_defined(func, frame):
        return
    text = (
        f"@distributed_lock is above a decorator that has registered {func.__qualname__}(): the registered function "
        f"runs without the lock. Put @distributed_lock next to the function, below @receiver and the like."
    )
    if weak:
        raise TypeError(text)
    logger.warning("%s", printable(f"{func.__module__}, line {func.__code__.co_firstlineno}: {text}"))


def without_a_template(named_by: Any) -> str:
    """The error text for a distributed_lock above a function or a class that was not called."""
    name = getattr(named_by, "__name__", repr(named_by))
    if isinstance(named_by, type):
        return (
            f"@distributed_lock above class {name} has no key template, which names the lock. Write "
            f"@distributed_lock('{name.lower()}:<pk>') above a method, or for all methods of a class-based view "
            f"@method_decorator(distributed_lock('{name.lower()}:<pk>'), name='dispatch') above the class."
        )
    return (
        f"@distributed_lock above {name}() has no key template, which names the lock; write "
        f"@distributed_lock('{name}:<pk>')."
    )


def _decorate(options: calls.Options, func: F) -> F:
    _check_function(func)
    call = calls.LockedCall(func, options)
    wrapper = calls.async_wrapper(call) if _is_async(func) else calls.sync_wrapper(call)
    parsed = [template for template in options.templates if isinstance(template, KeyTemplate)]
    if (names := call.arguments.names) is not None:
        what = f"{definition(func).__name__}({', '.join(names)})"
        for template in parsed:
            if (problem := check_names(template, names, what)) is not None:
                raise KeyTemplateError(problem, template=template.source)
    setattr(wrapper, TEMPLATES, (*getattr(func, TEMPLATES, ()), *parsed))
    for name in () if hasattr(func, "__qualname__") else ("__module__", "__name__", "__qualname__"):
        setattr(wrapper, name, getattr(definition(func), name))  # Django shows them
    return MethodOfClass(wrapper) if _is_view_method(call) else wrapper  # type: ignore[return-value]


def _is_view_method(call: calls.LockedCall) -> bool:
    """Whether the callable is a view method in the body of a class, which opens the transactions of its requests."""
    if call.left_out is None or call.arguments.signature is None:
        return False
    outer = getattr(call.func, "__qualname__", "").rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>") and [*call.arguments.signature.parameters][1:2] == ["request"]


def _is_async(func: Any) -> bool:
    if isinstance(func, functools.partial):  # of a bound method, by method_decorator
        view = getattr(func.func, "__self__", None)
        # The dispatch() of an async class-based view is a sync function that returns its handler's coroutine.
        if getattr(view, "view_is_async", False) and func.func.__name__ == "dispatch":
            return True
    return iscoroutinefunction(func) or iscoroutinefunction(type(func).__call__)


def _check_options(options: calls.Options) -> None:
    if not isinstance(options.using, str):
        raise unknown_alias(options.using)
    if options.on_locked not in (None, "raise", "skip") and not callable(options.on_locked):
        raise ValueError(f"on_locked must be 'raise', 'skip', a function or None, not {options.on_locked!r}.")
    if options.status is not None and options.status not in range(400, 600):
        raise ValueError(f"status must be an HTTP status of 400 to 599 or None, not {options.status!r}.")
    if not isinstance(options.atomic, bool) and options.atomic != "auto":
        raise ValueError(f"atomic must be 'auto', True or False, not {options.atomic!r}.")
    if options.condition is not None and not callable(options.condition):
        raise TypeError(f"condition must be a function of the arguments of the call, not {options.condition!r}.")


def _check_function(func: Any) -> None:
    if isinstance(func, type):
        raise TypeError(
            f"@distributed_lock takes functions. Put it on a method of {func.__name__}, or for all methods of a "
            f"class-based view put @method_decorator(distributed_lock(...), name='dispatch') on it."
        )
    if hasattr(func, "apply_async") or hasattr(func, "enqueue"):
        raise TypeError(
            "@distributed_lock above a task would lock its sender. Put it below @shared_task or @task, next to "
            "the function, or use LockedTask."
        )
    if hasattr(func, "_ninja_operation"):
        raise TypeError(
            "@distributed_lock above an operation of django-ninja is never called. Put it below @api.post(...), next "
            "to the function."
        )
    if isinstance(func, classmethod | staticmethod):
        raise TypeError("Put @distributed_lock below @classmethod or @staticmethod, next to the function.")
    if returns_generator(func):
        raise TypeError(
            "@distributed_lock on a generator function would release the lock before its body runs. Lock the function "
            "that consumes it, or use 'with' inside."
        )
    if not callable(func):
        raise TypeError(f"@distributed_lock(...) decorates a function, not {func!r}; the key template comes first.")
