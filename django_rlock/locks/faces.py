"""The two faces of a flow: a blocking method, and a coroutine method with Django's ``a`` prefix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper
from keyword import iskeyword
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.core.exceptions import SynchronousOnlyOperation

from django_rlock.drivers.base import Driver, run_flow
from django_rlock.drivers.identity import may_block_loops, running_loop
from django_rlock.drivers.room import async_driver, sync_driver
from django_rlock.locks.kinds import Named
from django_rlock.process import notice_fork

S = TypeVar("S", bound=Named)
P = ParamSpec("P")
T = TypeVar("T")


def faces(
    flow: Callable[Concatenate[S, Driver, P], Coroutine[Any, Any, T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Make both methods of a coroutine function whose first argument is the driver: ``get, aget = faces(_get)``.

    If the prefix makes a keyword, an underscore is added: ``wait, await_ = faces(_wait)``.
    """

    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        given = partial(flow, **kwargs) if kwargs else flow
        return run_flow(given, (self, blocking_driver(self), *args))

    def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return flow(self, awaited_driver(self), *args, **kwargs)

    signature = _as_called(flow)
    _describe(blocking, flow, "", signature)
    _describe(awaited, flow, "a", signature)
    return blocking, awaited


def blocking_driver(of: Named) -> Driver:
    """The blocking driver. Raises ImproperlyConfigured for a wrong alias; SynchronousOnlyOperation in an event loop,
    unless DJANGO_ALLOW_ASYNC_UNSAFE is set."""
    notice_fork()
    driver = sync_driver(of.using)
    if running_loop() is not None and not may_block_loops():
        raise SynchronousOnlyOperation(
            "A blocking method was called inside an event loop, which it would block. "
            "Use the async methods (their names begin with a, as aacquire; async with), or move the whole 'with' "
            "statement into a function that you call by sync_to_async()."
        )
    return driver


def awaited_driver(of: Named) -> Driver:
    """The async driver. Raises ImproperlyConfigured for a wrong alias."""
    notice_fork()
    return async_driver(of.using)


def _as_called(flow: Callable[..., Any]) -> inspect.Signature:
    itself, _driver, *parameters = inspect.signature(flow).parameters.values()
    return inspect.Signature([itself, *parameters])


def _describe(face: Callable[..., Any], flow: Callable[..., Any], prefix: str, signature: inspect.Signature) -> None:
    """Make help() show the method as it is called."""
    update_wrapper(face, flow)
    face.__signature__ = signature  # type: ignore[attr-defined]
    name = prefix + flow.__name__.removeprefix("_")
    face.__name__ = f"{name}_" if iskeyword(name) else name
    face.__qualname__ = flow.__qualname__.replace(flow.__name__, face.__name__)
