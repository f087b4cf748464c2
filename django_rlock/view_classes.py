"""Views of which only some methods or operations open their transactions themselves, inside their locks.

Django opens the transactions of ATOMIC_REQUESTS around the whole view, whichever method handles the request. So Django
is made to open none, and the methods without a lock get theirs here, around the whole view as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import connections
from django.http import HttpRequest
from django.utils.decorators import classonlymethod
from django.views import View

from django_rlock.locked_calls import AROUND
from django_rlock.locks.ownership import ensure_owned
from django_rlock.web.transactions import databases, in_transactions, mark, opens_inside

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
            _leave_transactions_to_methods(owner)


def _leave_transactions_to_methods(cls: Any) -> None:
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
    return _method_for_get(cls, names) if method is None and name == "head" else method


def _method_for_get(cls: type, names: dict[str, str]) -> object:
    return getattr(cls, names.get("get", "get"), None)


def with_transactions(view: Callable[..., Any], find: Finder) -> Callable[..., Any]:
    """The view, with Django's transactions around requests whose handler does not open them itself.

    A view that opens them as a whole stays unchanged, and so does an async view, which Django refuses under
    ATOMIC_REQUESTS.
    """
    if opens_inside(view) or iscoroutinefunction(view):
        return view

    @functools.wraps(view)
    def locked_or_not(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if opens_inside(find(request)):
            with _outer_transactions_kept():
                return view(request, *args, **kwargs)
        aliases = databases("auto", True, left_out)

        def call() -> Any:
            response = view(request, *args, **kwargs)
            if aliases:
                ensure_owned(AROUND.get())
            return response

        return in_transactions(aliases, call)

    left_out = mark(locked_or_not)
    return locked_or_not


@contextmanager
def _outer_transactions_kept() -> Iterator[None]:
    """Undo Django REST framework's rollback of the transactions outside of the view, such as a test case's: it marks
    all open ones when it handles an error."""
    outer = [
        each for each in connections.all(initialized_only=True) if each.in_atomic_block and not each.needs_rollback
    ]
    yield
    for connection in outer:
        if connection.in_atomic_block:
            connection.set_rollback(False)
