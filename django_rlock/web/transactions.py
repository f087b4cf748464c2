"""Transactions inside the lock: acquire, BEGIN, body, COMMIT, release.

Django's ATOMIC_REQUESTS opens the transaction outside of a view's decorators. So a lock taken by a decorator would be
released before COMMIT, and the next owner would read the old rows. Therefore the decorator makes Django open no
transaction, and opens it itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from django_rlock.locks.transactions import open_databases

logger = logging.getLogger("django_rlock.web")

Atomic = bool | Literal["auto"]
T = TypeVar("T")

_MARK = "_non_atomic_requests"  # Django's own, see transaction.non_atomic_requests

_FIXES = {
    (True, True): "Put it above all decorators of the method that wrap it, in a class that derives from View itself.",
    (False, True): "Put it above all other decorators of the view; or leave it below @api_view, and put "
    "@transaction.non_atomic_requests above that.",
    (
        False,
        False,
    ): "Call it outside of the transaction, and let @distributed_lock(..., atomic=True) open one inside the lock.",
}
"""How to fix a lock inside a transaction, by whether it is on a method and whether it is on a view."""

_warned: set[str] = set()


class OpenedInside(set[str]):
    """Makes Django's handler open no transaction on any database: as a set, it seems to contain every alias, since the
    settings may not be loaded yet. Its real elements are the aliases that the view itself opted out of."""

    def __contains__(self, alias: object) -> bool:
        return True


def opens_inside(func: object) -> bool:
    """Whether a decorator below opens the transactions: the innermost one does, so that all locks are held by then."""
    return isinstance(getattr(func, _MARK, None), OpenedInside)


def mark(wrapper: Callable[..., Any]) -> OpenedInside:
    """Make Django leave a view's transactions to us. A non_atomic_requests applied later adds its aliases to the
    returned set."""
    left_out = OpenedInside(getattr(wrapper, _MARK, ()))
    setattr(wrapper, _MARK, left_out)
    return left_out


def refuse_atomic_requests(dispatch: Callable[..., Any], request: Any) -> None:
    """Raise the error that Django raises for an async view under ATOMIC_REQUESTS.

    A decorator of ``dispatch`` marks its class before it is known that the handlers are async, so Django does not
    raise.
    """
    match = getattr(request, "resolver_match", None)
    left_out = {*getattr(dispatch, _MARK, ()), *getattr(match and match.func, _MARK, ())}
    if databases("auto", True, left_out):
        raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")


def databases(atomic: Atomic, is_view: bool, left_out: Iterable[str]) -> list[str]:
    """The aliases on which to open a transaction."""
    always = [DEFAULT_DB_ALIAS] if atomic is True else []
    if not is_view:
        return always
    atomic_requests = [alias for alias, options in connections.settings.items() if options["ATOMIC_REQUESTS"]]
    return sorted({*always, *{*atomic_requests}.difference(left_out)}) if atomic_requests else always


def in_transactions(aliases: Sequence[str], call: Callable[[], T]) -> T:
    """Call a function inside transactions of all aliases.

    Each has a ``with`` of its own: an interrupted ExitStack does not end what it has begun.
    """
    if not aliases:
        return call()
    with transaction.atomic(using=aliases[0]):
        return in_transactions(aliases[1:], call)


def open_database() -> str | None:
    """The alias of a database with an open transaction; None when there is none."""
    found = open_databases()
    return found[0].alias if found else None


def roll_back_open() -> None:
    """Roll back what Django would commit, because an error has become a response."""
    for connection in open_databases():
        if connection.settings_dict["ATOMIC_REQUESTS"]:
            connection.set_rollback(True)


def warn_once(func: Callable[..., Any], alias: str, is_view: bool) -> None:
    """Log that a lock is released before the transaction around it ends, and how to fix that."""
    name = f"{func.__module__}.{func.__qualname__}"
    if name in _warned:
        return
    _warned.add(name)
    fix = _FIXES[is_view and "." in func.__qualname__.rpartition("<locals>.")[2], is_view]
    logger.warning(
        "%s takes its lock inside an open transaction of database %r, and releases it before COMMIT: the next owner "
        "reads the old rows. %s To accept that, say atomic=False.",
        name,
        alias,
        fix,
    )
