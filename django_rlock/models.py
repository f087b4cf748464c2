"""A model without a table, which gives locks their permissions and their pages in the admin; and an abstract model for
rows that refuse late writers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from asgiref.sync import sync_to_async
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_rlock.locks.fencing import checked_token, newer_than, stale_token_error


class Lock(models.Model):
    """One lock, as the admin and its log name it: ``<quoted alias>/<name>``. It is never read from a database."""

    id = models.CharField(_("alias and name"), primary_key=True, max_length=1000)

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [
            ("view_lock", "Can view locks, their holders and who waits for them"),
            ("force_release_lock", "Can free a lock that someone else holds"),
            ("view_stack", "Can see in which calls the holder of a lock is"),
        ]
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return self.address[1]

    @classmethod
    def of(cls, using: str, name: str) -> Lock:
        return cls(id=f"{quote(using, safe='')}/{name}")

    @property
    def address(self) -> tuple[str, str]:
        """The alias and the name."""
        using, _slash, name = self.id.partition("/")
        return unquote(using), name


class FencedModel(models.Model):
    """A row that stores the fencing token of its last write, and refuses writers with an older one::

        class Stock(FencedModel):
            count = models.IntegerField()

        with FencedLock("stock:42") as lock:
            stock = Stock.objects.get(pk=42)
            ...
            stock.save(fence=lock.token)

    Every ``save()`` checks the token in the statement that writes the row; without ``fence=``, the token is that of the
    loaded object. A new row is inserted with the token, or without a token if there is none. See ``fenced`` for
    ``update()``.
    """

    fence = models.BigIntegerField(_("fencing token"), null=True, blank=True, editable=False)

    class Meta:
        abstract = True

    def save(self, *, fence: int | None = None, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        """Django's ``save()``, under the token ``fence``; None uses the token that was loaded with the object.

        Raises StaleTokenError, and writes nothing, if the row has been written under a newer token. Raises ValueError
        if the object was loaded without its token (``defer``, ``only``) and ``fence`` is not given.
        """
        if fence is not None:
            self.fence = checked_token(fence)
        elif "fence" in self.get_deferred_fields():
            raise ValueError("The object was loaded without its fencing token. Load it too, or call save(fence=...).")
        if update_fields:
            update_fields = {*update_fields, "fence"}
        super().save(update_fields=update_fields, **options)

    async def asave(self, *, fence: int | None = None, **options: Any) -> None:
        """The same for asyncio."""
        await sync_to_async(self.save)(fence=fence, **options)

    # Only here can a model add a condition to save()'s UPDATE. A model with parents has several tables, all written in
    # one transaction; one of them has the token. The arguments differ between versions of Django.
    def _do_update(self, base_qs: models.QuerySet[Any], using: Any, pk_val: Any, *values: Any) -> Any:
        if self._meta.get_field("fence").model is not base_qs.model:
            return super()._do_update(base_qs, using, pk_val, *values)
        newer = newer_than(self.fence)
        updated = super()._do_update(base_qs.exclude(newer), using, pk_val, *values)
        for stored in () if updated else base_qs.filter(newer, pk=pk_val).values_list("fence", flat=True):
            raise stale_token_error(base_qs.model, pk_val, self.fence, stored)
        return updated  # if there is no such row, Django inserts it
