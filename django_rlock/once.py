"""One of each thing per process, whichever threads are the first to ask for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
Made_co = TypeVar("Made_co", covariant=True)


class Once(Protocol[P, Made_co]):
    """A function that makes one result for each set of arguments, and then returns that one."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Made_co: ...

    def cache_clear(self) -> None:
        """Forget all results, and those that threads are making at this moment."""


def once(make: Callable[P, T]) -> Once[P, T]:
    """Decorator: ``functools.cache`` that gives threads which are the first to ask, at the same time, the same result.

    ``functools.cache`` gives each of them one of its own. Here each of them makes one as well, without a mutex that an
    interruption could leave locked, but all get the first: so to make it and to drop it must do no harm. Arguments
    left out are the same as their defaults.
    """
    signature = inspect.signature(make)
    made: dict[tuple[Any, ...], T] = {}

    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        results = made  # cache_clear() begins another table, so what is made meanwhile is not kept
        if not kwargs and args in results:
            return results[args]
        asked = signature.bind(*args, **kwargs)
        asked.apply_defaults()
        key = *asked.args, *asked.kwargs.items()
        if key not in results:
            results.setdefault(key, make(*args, **kwargs))
        if not kwargs:
            results[args] = results[key]
        return results[key]

    def cache_clear() -> None:
        nonlocal made
        made = {}

    update_wrapper(get, make)
    setattr(get, "cache_clear", cache_clear)  # noqa: B010 - a function has no such attribute to mypy
    return cast("Once[P, T]", get)
