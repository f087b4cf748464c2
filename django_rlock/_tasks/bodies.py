"""Puts a task's lock around its ``run``, which the worker, plain calls and every ``__call__`` call.

So wrappers of the task (a ``__call__`` of the project or of a monitoring library, ``autoretry_for``, a wrapper of the
tracer) run outside the lock, see its errors, and cannot bypass it.

A ``run`` takes the lock if it is the outermost ``run`` of a request of Celery: a message's, or the request that a plain
call pushes. Without a request, or inside a run, it only runs the body.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from celery import Task

from django_rlock._tasks.naming import BODY
from django_rlock._tasks.runs import Run, run_message

if TYPE_CHECKING:
    from django_rlock._tasks.task import AbstractTask

_BEGINS = "rlock_begins"
"""An attribute of the ``__call__`` that begins a call."""


def guard(kind: type[AbstractTask[..., Any]]) -> None:
    """Put the lock around a class's ``run``, and let its ``__call__`` begin a call, unless that was done before.

    Raises TypeError for a base whose ``__call__`` is never called, because it comes after Celery's own.
    """
    _refuse_unreached(kind)
    run = inspect.getattr_static(kind, "run")
    if run is not Task.run and not hasattr(run, BODY):
        setattr(kind, "run", _locked(run))  # noqa: B010 - for mypy it is a method
    definer = next(each for each in kind.__mro__ if "__call__" in vars(each))
    if definer is not Task and not hasattr(vars(definer)["__call__"], _BEGINS):
        setattr(kind, "__call__", _beginning(vars(definer)["__call__"]))  # noqa: B010


def _refuse_unreached(kind: type[AbstractTask[..., Any]]) -> None:
    after = kind.__mro__[kind.__mro__.index(Task) + 1 :]
    if unreached := next((each for each in after if "__call__" in vars(each)), None):
        name, label = unreached.__name__, kind.name or kind.__name__
        raise TypeError(
            f"{label}: {name}.__call__ is never called, because Celery's Task comes before {name} among the bases; "
            f"name it first, as in 'class MyTask({name}, LockedTask)'."
        )


def _locked(body: Any) -> Callable[..., Any]:
    """The ``run`` that takes the lock around a body: a function, a static method or another descriptor.

    It has no ``__wrapped__``: Celery's annotations of ``run`` would follow it and bypass the lock.
    """

    get: Callable[..., Any] = getattr(body, "__get__", lambda *_: body)  # a partial is not a descriptor

    def run(self: AbstractTask[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        bound = get(self, type(self))
        stack: Any = self.request_stack
        requests = () if stack is None else stack.stack
        if not requests:
            return bound(*args, **kwargs)
        # Celery copies the request for a call within the body; the depth of the stack distinguishes the two.
        request, depth = requests[-1], len(requests)
        former = vars(request).get("rlock_entered")
        if former == depth:
            return bound(*args, **kwargs)
        inside = partial(bound, *args, **kwargs)
        try:
            request.rlock_entered = depth
            if former or request.called_directly:
                return Run(self, args, kwargs).execute(inside)
            return run_message(self, args, kwargs, request, inside)
        finally:
            request.rlock_entered = former  # a ``__call__`` may run the body again

    function = getattr(body, "__func__", body)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(run, name, getattr(function, name, getattr(run, name)))
    setattr(run, BODY, body)
    return run


def _beginning(call: Callable[..., Any]) -> Callable[..., Any]:
    """A ``__call__`` that begins a call and then calls the project's ``__call__``, which may call ``run`` directly."""

    @wraps(call)
    def begin(self: AbstractTask[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        stack: Any = self.request_stack
        request = stack.top
        if request is not None and vars(request).get("rlock_entered") != len(stack):
            return call(self, *args, **kwargs)  # a message's call, or a call that a subclass has begun
        self.push_request(args=args, kwargs=kwargs)
        try:
            return call(self, *args, **kwargs)
        finally:
            self.pop_request()

    setattr(begin, _BEGINS, True)
    return begin
