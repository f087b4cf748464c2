"""Sales and their orders, and the reports that were requested."""

from __future__ import annotations

import secrets
import uuid

from django.db import models


def new_sku() -> str:
    """A number for one sale's moon cakes, so that no two sales share a stock or a lock."""
    return f"moon-cake-{secrets.token_hex(4)}"


class Lane(models.TextChoices):
    """A way to sell; the values are part of the buyers' URLs."""

    NONE = "none", "No lock"
    NAIVE = "naive", "SET NX, short expiry"
    PAUSED = "paused", "SET NX, long expiry"
    DATABASE = "database", "The database alone"
    LOCKED = "locked", "@distributed_lock"


SAFE_LANES = frozenset({Lane.DATABASE, Lane.LOCKED})
"""Those that never oversell."""


class Sale(models.Model):
    """One flash sale in one lane: ``buyers`` people want one of ``stock`` moon cakes each, at the same moment."""

    sku = models.SlugField(unique=True, default=new_sku, editable=False)
    lane = models.CharField(max_length=10, choices=Lane.choices)
    buyers = models.PositiveIntegerField()
    stock = models.PositiveIntegerField()
    left = models.PositiveIntegerField("left, where the database counts", editable=False)
    opened_at = models.DateTimeField(auto_now_add=True)
    seconds = models.FloatField("duration in seconds", null=True, editable=False)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.sku}: {self.get_lane_display()}"

    @property
    def numbers(self) -> range:
        """The buyers' numbers."""
        return range(1, self.buyers + 1)


class Order(models.Model):
    """A moon cake that was paid for, and that the shop has to deliver."""

    sale = models.ForeignKey(Sale, models.CASCADE, to_field="sku", db_column="sku", related_name="orders")
    buyer = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.sale_id} for buyer {self.buyer}"


class Report(models.Model):
    """One press of the report button, and its outcome."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        SKIPPED = "skipped"

    account_id = models.PositiveIntegerField()
    task_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    asked_at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    orders = models.PositiveIntegerField(null=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"report {self.pk} of account {self.account_id}: {self.state}"
