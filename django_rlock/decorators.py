"""``@distributed_lock``: functions and views that run under a lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from django_rlock.exceptions import KeyTemplateError
from django_rlock.keytemplates import KeyTemplate, check_names
from django_rlock.locked_calls import LockedCall, Naming, OnLocked, Options
from django_rlock.locks import KINDS, Duration
from django_rlock.locks.durations import UNSET, lease_seconds, wait_seconds
from django_rlock.settings import DEFAULT_ALIAS
from django_rlock.web.transactions import Atomic, mark, opens_inside

F = TypeVar("F", bound=Callable[..., Any])

TEMPLATES = "rlock_templates"
"""Attribute of decorated callables: the key templates of their decorators, for the check against the URLconf."""


def distributed_lock(
    *templates: str | Naming,
    wait_time: Duration | None = UNSET,
    lease_time: Duration | None = None,
    using: str = DEFAULT_ALIAS,
    kind: str | None = None,
    on_locked: OnLocked = None,
    status: int | None = None,
    atomic: Atomic = "auto",
    condition: Callable[..., object] | None = None,
) -> Callable[[F], F]:
    """Run a function, coroutine function or view under a lock; never without it::

        @distributed_lock("stock:<pk>")
        def buy(request, pk): ...

        @method_decorator(distributed_lock("stock:<pk>"), name="dispatch")
        class Buy(View): ...

    A template names the lock: ``<pk>`` is an argument of the call or of the URL, ``<order.pk>`` an attribute,
    ``<request.user.pk>``, ``<GET.q>``, ``<POST.q>``, ``<data.sku>`` and ``<header.Idempotency-Key>`` come from the
    request, and a request without them is answered with 400. A function in its place gets the arguments of the call
    and returns the name, or several. Of several names all locks are taken, or none.

    ``wait_time`` is how long to wait, in seconds; 0 tries once, None waits for ever. Views wait for VIEW_WAIT_TIME
    unless told otherwise, and other callables for ever. ``lease_time`` is in seconds; None is renewed by the watchdog.
    ``using`` is the RLOCK alias, ``kind`` a kind of lock other than the alias's.

    A *view* is a callable that gets a request as its first argument, or after ``self``. It answers a taken lock with
    ``status`` (None: LOCKED_STATUS), and 503 when Redis is down or the lock was lost. Other callables raise
    LockTimeoutError, LockUnavailableError and LockLostError. ``on_locked`` says what to do about a taken lock instead:
    ``"raise"`` makes a view raise all three; ``"skip"`` returns None (204 from a view); a function gets the
    LockTimeoutError and the arguments of the call, and what it returns is the result.

    ``atomic`` puts the database transaction inside the lock: acquire, BEGIN, body, COMMIT, release; a lock that is
    lost meanwhile rolls it back. ``"auto"`` does so for views, on the databases with ATOMIC_REQUESTS; True always, on
    the default database too; False never. Async code has no transactions. Put the decorator above others, and on
    ``dispatch`` rather than on ``post``: below, Django opens the transaction before the lock is taken, which is logged.

    ``condition`` gets the arguments of the call; where it answers False, the body runs without the lock.

    A streaming response keeps the lock until it is closed. When the lock cannot be given back after the work was
    done and committed, that is logged, and the result is returned.

    KeyTemplateError, ValueError or TypeError at once for bad arguments, and for a template with a name that a function
    does not take. For views a system check compares it with the URLconf.
    """
    if not templates:
        raise TypeError("distributed_lock() needs a key template, such as 'stock:<pk>'.")
    options = Options(
        tuple(template if callable(template) else KeyTemplate.parse(template) for template in templates),
        wait_time if wait_time is UNSET else wait_seconds(wait_time),
        lease_seconds(lease_time),
        using,
        kind,
        on_locked,
        status,
        atomic,
        condition,
    )
    _check_options(options)
    return functools.partial(_decorate, options)


def _decorate(options: Options, func: F) -> F:
    _check_function(func)
    call = LockedCall(func, options)
    wrapper = _async_wrapper(call) if _is_async(func) else _sync_wrapper(call)
    parsed = [template for template in options.templates if isinstance(template, KeyTemplate)]
    for template in parsed:
        _check_template(template, call, func)
    setattr(wrapper, TEMPLATES, (*getattr(func, TEMPLATES, ()), *parsed))
    return wrapper  # type: ignore[return-value]


def _sync_wrapper(call: LockedCall) -> Callable[..., Any]:
    @functools.wraps(call.func)
    def locked(*args: Any, **kwargs: Any) -> Any:
        return call.run(args, kwargs)

    if call.options.atomic is not False and not opens_inside(call.func):
        call.left_out = mark(locked)
    return locked


def _async_wrapper(call: LockedCall) -> Callable[..., Any]:
    if call.options.atomic is True:
        raise ValueError(
            "distributed_lock(atomic=True) needs a sync function: Django has no transactions in async code. Decorate "
            "the sync function that you call with sync_to_async."
        )

    @functools.wraps(call.func)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        return await call.arun(args, kwargs)

    return locked


def _is_async(func: Any) -> bool:
    if isinstance(func, functools.partial):  # of a bound method, by method_decorator
        view = getattr(func.func, "__self__", None)
        # The dispatch() of an async class-based view is a sync function that returns its handler's coroutine.
        if getattr(view, "view_is_async", False) and func.func.__name__ == "dispatch":
            return True
    return iscoroutinefunction(func)


def _check_options(options: Options) -> None:
    if options.kind not in (None, *KINDS):
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))} or None, not {options.kind!r}.")
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
            f"@distributed_lock takes functions. For a class-based view put "
            f"@method_decorator(distributed_lock(...), name='dispatch') on {func.__name__}."
        )
    if hasattr(func, "apply_async") or hasattr(func, "enqueue"):
        raise TypeError(
            "@distributed_lock above a task would lock what sends it. Put it below @shared_task or @task, next to "
            "the function, or use LockedTask."
        )
    if isinstance(func, classmethod | staticmethod):
        raise TypeError("Put @distributed_lock below @classmethod or @staticmethod, next to the function.")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError(
            "@distributed_lock on a generator function would release the lock before its body runs. Lock the function "
            "that consumes it, or use 'with' inside."
        )
    if not callable(func):
        raise TypeError(f"@distributed_lock(...) decorates a function, not {func!r}; give it a key template first.")


def _check_template(template: KeyTemplate, call: LockedCall, func: Callable[..., Any]) -> None:
    names = call.arguments.names
    if names is None or [name for name in names[:2] if name not in {"self", "cls"}][:1] == ["request"]:
        return
    problem = check_names(template, names, f"{func.__name__}({', '.join(names)})")
    if problem is not None:
        raise KeyTemplateError(problem, template=template.source)
