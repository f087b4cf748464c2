"""Fencing in the database: a row refuses a late write by a holder that has lost the lock meanwhile.

A process that is paused past its lease continues as if it still held the lock. The row can tell: it stores the token
of its last write, and each write is conditional on a token that is not older, in a single statement.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldError
from django.db import transaction
from django.db.models import Model, Q, QuerySet

from django_rlock.exceptions import StaleTokenError
from django_rlock.locks.holds import HOLDS


def fenced(queryset: QuerySet[Any], token: int, field: str = "fence") -> FencedRows:
    """The rows of a queryset, for a writer with a fencing token::

        with FencedLock("stock:42") as lock:
            ...
            fenced(Stock.objects.filter(pk=42), lock.token).update(count=F("count") - 1)

    ``field`` is the name of the column with the stored token, a BigIntegerField with ``null=True``. A row with NULL has
    never been fenced, and accepts any token.
    """
    return FencedRows(queryset, checked_token(token), field)


class FencedRows:
    """Rows that are written only under one token; see ``fenced``."""

    __slots__ = ("_field", "_queryset", "_token")

    def __init__(self, queryset: QuerySet[Any], token: int, field: str) -> None:
        self._queryset = queryset
        self._token = token
        self._field = field

    def update(self, **values: Any) -> int:
        """Django's ``update()``, which stores the token as well; returns the number of rows.

        Raises StaleTokenError when any of the rows has been written under a newer token. Then no row is written, and an
        open transaction can only be rolled back, as after a database error.

        Without values it claims the rows: until the end of the transaction no other transaction can write them, and
        older tokens never can again. So operations that cannot be made conditional, such as ``delete()``, are safe
        after it.

        Raises FieldError if the token or a value is in the table of a parent model, which would need several
        statements.
        """
        self._check_table(self._field, *values)
        queryset = self._queryset.using(self._queryset.select_for_update().db)  # the database to write to
        with transaction.atomic(using=queryset.db, savepoint=False):
            rows = self._narrowed(queryset).update(**values, **{self._field: self._token})
            newer = queryset.filter(newer_than(self._token, self._field)).order_by("pk")
            stale = newer.values_list("pk", self._field).first()
            if stale is not None:
                raise stale_token_error(queryset.model, stale[0], self._token, stale[1])
        return rows

    async def aupdate(self, **values: Any) -> int:
        """The same for asyncio."""
        return await sync_to_async(self.update)(**values)

    def _narrowed(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if queryset.query.count_active_tables() > 1:
            # Django moves the conditions of a join into a subquery. The token's condition must not go there: after
            # waiting for a row, PostgreSQL rechecks only the statement's own conditions.
            queryset = QuerySet(queryset.model, using=queryset.db).filter(pk__in=queryset.values("pk"))
        return queryset.exclude(newer_than(self._token, self._field))

    def _check_table(self, *names: str) -> None:
        meta = self._queryset.model._meta
        for name in names:
            if meta.get_field(name).model is not meta.concrete_model:
                raise FieldError(
                    f"{meta.label}.{name} is not a column of the model's own table but, say, of a parent model's, so "
                    f"one statement cannot write it under a fencing token. Update the parent, or save() a FencedModel."
                )


def newer_than(token: int | None, field: str = "fence") -> Q:
    """The rows that refuse a token; None is the token of a writer that read a row without one."""
    return Q(**{f"{field}__isnull": False}) if token is None else Q(**{f"{field}__gt": token})


def stale_token_error(model: type[Model], pk: Any, token: int | None, stored: int) -> StaleTokenError:
    """The error for a row; it names the lock if this process still knows which lock the token belongs to."""
    locks = {hold.lock.name for hold in HOLDS.snapshot() if hold.token is not None and hold.token == token}
    lock_name = locks.pop() if len(locks) == 1 else None
    label = model._meta.label_lower
    return StaleTokenError(lock_name, row=f"{label}:{pk}", token=token, stored=stored)


def checked_token(token: object) -> int:
    """Return a token, or raise TypeError; most often for the None of a lock without a token."""
    if not isinstance(token, int) or isinstance(token, bool):
        raise TypeError(f"A fencing token is an int, such as FencedLock's token, not {token!r}.")
    return token
