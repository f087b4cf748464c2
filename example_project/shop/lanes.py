# ruff: noqa: ARG001 - a view gets a request, needed or not
"""Five ways to sell from a stock. Only the last two are right.

The page shows this code exactly as it is here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django_redis import get_redis_connection

from django_rlock import distributed_lock
from example_project.shop.models import Lane, Order, Sale

QUICK_PAYMENT, SLOW_PAYMENT = 0.015, 0.12
"""How long a bank takes, in seconds; every eighth buyer has a slow one."""

SHORT_EXPIRY = 0.06
"""Expiry of a naive lock, in seconds: long enough for a quick payment, and too short for a slow one."""

LONG_EXPIRY = float(os.environ.get("SHOP_LONG_EXPIRY", "30"))
"""The same, long enough for any payment."""

LONGEST_PAUSE = LONG_EXPIRY + 20
"""How long the first holder of the long one is paused at most, in seconds."""


def buy_unlocked(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    return sell(sku, buyer)


@contextmanager
def naive_lock(sku: str, expiry: float) -> Iterator[None]:
    redis = get_redis_connection()
    key = f"naive-lock:{sku}"
    while not redis.set(key, 1, nx=True, px=round(expiry * 1000)):
        time.sleep(0.05)
    try:
        yield
    finally:
        redis.delete(key)


def buy_naive(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    with naive_lock(sku, SHORT_EXPIRY):
        return sell(sku, buyer)


def buy_paused(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    with naive_lock(sku, LONG_EXPIRY):
        return sell(sku, buyer, paused=is_first(sku))


def buy_by_update(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    in_stock = Sale.objects.filter(sku=sku, left__gt=0)
    if not in_stock.update(left=F("left") - 1):
        return sold_out()
    take_payment(buyer)
    Order.objects.create(sale_id=sku, buyer=buyer)
    return sold()


@transaction.atomic
def buy_by_row_lock(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    sale = Sale.objects.select_for_update().get(sku=sku)
    if sale.left == 0:
        return sold_out()
    take_payment(buyer)
    sale.left -= 1
    sale.save(update_fields=["left"])
    Order.objects.create(sale=sale, buyer=buyer)
    return sold()


@distributed_lock("stock:<sku>")
def buy_locked(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    return sell(sku, buyer)


def sell(sku: str, buyer: int, paused: bool = False) -> HttpResponse:
    redis = get_redis_connection()
    key = f"shop:stock:{sku}"
    stock = int(redis.get(key) or 0)
    if stock == 0:
        return sold_out()
    take_payment(buyer)
    if paused:
        stand_still(key, stock)
    redis.set(key, stock - 1)
    Order.objects.create(sale_id=sku, buyer=buyer)
    return sold()


def take_payment(buyer: int) -> None:
    time.sleep(SLOW_PAYMENT if buyer % 8 == 0 else QUICK_PAYMENT)


def stand_still(key: str, stock: int) -> None:
    """Be paused, as a stopped process is, until the lock has expired and ten others have bought."""
    resume_at = time.monotonic() + LONGEST_PAUSE
    while int(get_redis_connection().get(key) or 0) > max(0, stock - 10) and time.monotonic() < resume_at:
        time.sleep(0.1)


def is_first(sku: str) -> bool:
    return bool(get_redis_connection().set(f"shop:first:{sku}", 1, nx=True, ex=3600))


def sold() -> HttpResponse:
    return JsonResponse({"outcome": "sold"}, status=201)


def sold_out() -> HttpResponse:
    return JsonResponse({"outcome": "sold out"}, status=409)


# SQLite locks no rows.
buy_by_database = buy_by_row_lock if connection.features.has_select_for_update else buy_by_update

VIEWS = {
    Lane.NONE: buy_unlocked,
    Lane.NAIVE: buy_naive,
    Lane.PAUSED: buy_paused,
    Lane.DATABASE: buy_by_database,
    Lane.LOCKED: buy_locked,
}
