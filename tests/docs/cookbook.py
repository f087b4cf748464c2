"""What the recipes of the cookbook call a project's own: models, whose app is not installed, and functions."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from django.conf import settings
from django.db import models

from tests.docs.pages import DOCS, blocks

PAGES = DOCS / "cookbook.md", DOCS / "cookbook-jobs.md"


class Model(models.Model):
    objects: ClassVar[models.Manager[Self]]

    class Meta:
        abstract = True
        app_label = "cookbook"

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.pk}"


class Order(Model):
    buyer = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    token = models.TextField()

    class Meta(Model.Meta):
        unique_together = ["buyer", "token"]

    def get_absolute_url(self) -> str:
        return f"/order/{self.pk}"


class Delivery(Model):
    id = models.TextField(primary_key=True)


class Report(Model):
    account_id = models.IntegerField(unique=True)
    total = models.IntegerField()


class Account(Model):
    balance = models.IntegerField(default=100)
    billed_on = models.DateField(null=True)


class Product(Model):
    sku = models.TextField(unique=True)
    left = models.IntegerField()


class Price(Model):
    supplier_id = models.IntegerField()
    sku = models.TextField()
    price = models.TextField()

    class Meta(Model.Meta):
        unique_together = ["supplier_id", "sku"]


class Document(Model):
    text = models.TextField()
    version = models.IntegerField(default=1)


MODELS = Order, Delivery, Report, Account, Product, Price, Document


def recipe(title: str, **own: Any) -> dict[str, Any]:
    """The names that a recipe's Python defines, where ``own`` is what a project defines beside its models."""
    names = {"__name__": "recipe", **{model.__name__: model for model in MODELS}, **own}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").splitlines()
        for block in blocks(page):
            heading = next(line for line in reversed(text[: block.line]) if re.match("## ", line))
            if block.language == "python" and heading == f"## {title}":
                exec(compile("\n" * block.line + block.code, page, "exec"), names)
    return names
