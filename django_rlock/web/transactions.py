"""Transactions inside the lock: acquire, BEGIN, body, COMMIT, release.

Django's ATOMIC_REQUESTS wraps a view outside of its decorators, so a lock taken by a decorator would be released before
COMMIT, and the next one in would read the old rows. The decorator therefore asks Django not to open the transaction,
and opens it itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_rlock.web")

Atomic = bool | Literal["auto"]

_MARK = "_non_atomic_requests"  # Django's own, see transaction.non_atomic_requests

_warned: set[str] = set()


class OpenedInside(set[str]):
    """Tells Django's handler to open no transaction, on whatever database: which there are is in the settings, which
    may not be there yet. Its elements are those that the view itself opted out of."""

    def __contains__(self, alias: object) -> bool:
        return True


def opens_inside(func: Callable[..., Any]) -> bool:
    """Whether a decorator below opens the transactions: the innermost does, so that all locks are held by then."""
    return isinstance(getattr(func, _MARK, None), OpenedInside)


def mark(wrapper: Callable[..., Any]) -> OpenedInside:
    """Have Django leave the transactions of a view to us. Whatever decorates it later with non_atomic_requests adds
    to the answer."""
    left_out = OpenedInside(getattr(wrapper, _MARK, ()))
    setattr(wrapper, _MARK, left_out)
    return left_out


def databases(atomic: Atomic, is_view: bool, left_out: Iterable[str]) -> list[str]:
    """The aliases to open a transaction on."""
    chosen = {DEFAULT_DB_ALIAS} if atomic is True else set()
    if is_view:
        atomic_requests = {alias for alias, options in connections.settings.items() if options["ATOMIC_REQUESTS"]}
        chosen |= atomic_requests.difference(left_out)
    return sorted(chosen)


def open_transactions(aliases: Iterable[str]) -> ExitStack:
    """One block around all of them."""
    with ExitStack() as stack:
        for alias in aliases:
            stack.enter_context(transaction.atomic(using=alias))
        return stack.pop_all()


def open_database() -> str | None:
    """A database with an open transaction; None when there is none."""
    return next((connection.alias for connection in _in_transaction()), None)


def roll_back_open() -> None:
    """Undo what Django would commit because an error has become a response."""
    for connection in _in_transaction():
        if connection.settings_dict["ATOMIC_REQUESTS"]:
            connection.set_rollback(True)


def _in_transaction() -> Iterator[BaseDatabaseWrapper]:
    """The connections with an open transaction, apart from the one around a test case."""
    for connection in connections.all(initialized_only=True):
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            yield connection


def warn_once(func: Callable[..., Any], alias: str, is_view: bool) -> None:
    """Tell that a lock is released before the transaction around it ends, and what to do about it."""
    name = f"{func.__module__}.{func.__qualname__}"
    if name in _warned:
        return
    _warned.add(name)
    fix = (
        "Put @distributed_lock above all other decorators of the view; for a method of a class, use "
        "@method_decorator(distributed_lock(...), name='dispatch') on the class."
        if is_view
        else "Call it outside of the transaction, and let @distributed_lock(..., atomic=True) open one inside the lock."
    )
    logger.warning(
        "%s takes its lock inside an open transaction of database %r, and releases it before COMMIT: the next one in "
        "reads the old rows. %s To accept that, say atomic=False.",
        name,
        alias,
        fix,
    )
