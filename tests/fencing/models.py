"""Models of the kinds that fencing has to do with. Their app is not installed; the tests make their tables."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.db import models

from django_rlock.models import FencedModel


class Shop(models.Model):  # noqa: DJ008
    objects: ClassVar[models.Manager[Self]]
    stock_set: ClassVar[Any]

    name = models.TextField()

    class Meta:
        app_label = "fencing"


class Stock(FencedModel):
    objects: ClassVar[models.Manager[Self]]

    count = models.IntegerField(default=0)
    shop = models.ForeignKey(Shop, models.CASCADE, null=True)

    class Meta:
        app_label = "fencing"


class RenamedStock(Stock):
    class Meta:
        app_label = "fencing"
        proxy = True


class FreshStock(Stock):
    """A second table, below the one with the token."""

    days = models.IntegerField(default=0)

    class Meta:
        app_label = "fencing"


class ShopWithLicence(FencedModel, Shop):  # noqa: DJ008
    """The token in the second table."""

    licence = models.TextField(default="")

    class Meta:
        app_label = "fencing"


class Account(models.Model):  # noqa: DJ008
    """A field of its own making, and no FencedModel."""

    objects: ClassVar[models.Manager[Self]]

    balance = models.IntegerField(default=0)
    written_under = models.BigIntegerField(null=True)

    class Meta:
        app_label = "fencing"


MODELS = Shop, Stock, FreshStock, ShopWithLicence, Account
