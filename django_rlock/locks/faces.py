"""The two faces of a flow: a blocking method, and a coroutine method with Django's ``a`` prefix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from keyword import iskeyword
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_rlock.drivers.aio import async_driver
from django_rlock.drivers.base import Driver, run_sync
from django_rlock.drivers.sync import sync_driver
from django_rlock.locks.hooks import LockHooks

S = TypeVar("S", bound=LockHooks)
P = ParamSpec("P")
T = TypeVar("T")


def faces(
    flow: Callable[Concatenate[S, Driver, P], Coroutine[Any, Any, T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Both faces of a coroutine method, whose first argument is the driver: ``get, aget = faces(_get)``.

    Where the prefix makes a keyword, an underscore follows: ``wait, await_ = faces(_wait)``.
    """

    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(flow(self, blocking_driver(self), *args, **kwargs))

    def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return flow(self, awaited_driver(self), *args, **kwargs)

    _describe(blocking, flow, "")
    _describe(awaited, flow, "a")
    return blocking, awaited


def blocking_driver(of: LockHooks) -> Driver:
    """SynchronousOnlyOperation inside a running event loop; ImproperlyConfigured for an alias with NODES."""
    _check_alias(of)
    driver = sync_driver(of.using)
    driver.check_caller()
    return driver


def awaited_driver(of: LockHooks) -> Driver:
    """ImproperlyConfigured for an alias with NODES."""
    _check_alias(of)
    return async_driver(of.using)


def _check_alias(of: LockHooks) -> None:
    # A quorum agrees on who holds a lock; it cannot add up numbers.
    if of.settings.nodes is not None:
        raise ImproperlyConfigured(
            f"{type(of).__name__} {of.name!r} needs one server, but RLOCK[{of.using!r}] has NODES. RedLock works there "
            f"(rlock() without kind=); for this, name an alias with CACHE in using=."
        )


def _describe(face: Callable[..., Any], flow: Callable[..., Any], prefix: str) -> None:
    """Let help() show the method as it is called."""
    update_wrapper(face, flow)
    itself, _driver, *parameters = inspect.signature(flow).parameters.values()
    face.__signature__ = inspect.Signature([itself, *parameters])  # type: ignore[attr-defined]
    name = prefix + flow.__name__.removeprefix("_")
    face.__name__ = f"{name}_" if iskeyword(name) else name
    face.__qualname__ = flow.__qualname__.replace(flow.__name__, face.__name__)
