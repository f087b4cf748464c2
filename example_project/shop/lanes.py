# ruff: noqa: ARG001 - a view gets a request, needed or not
"""Three ways to sell from a stock that is read, and written back a moment later. Only the last one is right.

The page shows this code as it stands here.
"""

from __future__ import annotations

import time

from django.http import HttpRequest, HttpResponse, JsonResponse
from django_redis import get_redis_connection

from django_rlock import distributed_lock
from example_project.shop.models import Lane, Order

QUICK_PAYMENT, SLOW_PAYMENT = 0.015, 0.2
"""Seconds that a bank takes; every eighth buyer has a slow one."""

EXPIRY_MS = 60
"""Expiry of the naive lock: plenty for a quick payment, and too short for a slow one."""


def buy_unlocked(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    return sell(sku, buyer)


def buy_naive(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    redis = get_redis_connection()
    key = f"naive-lock:{sku}"
    while not redis.set(key, 1, nx=True, px=EXPIRY_MS):
        time.sleep(0.05)
    try:
        return sell(sku, buyer)
    finally:
        redis.delete(key)


@distributed_lock("stock:<sku>")
def buy_locked(request: HttpRequest, sku: str, buyer: int) -> HttpResponse:
    return sell(sku, buyer)


def sell(sku: str, buyer: int) -> HttpResponse:
    redis = get_redis_connection()
    key = f"shop:stock:{sku}"
    stock = int(redis.get(key) or 0)
    if stock == 0:
        return JsonResponse({"outcome": "sold out"}, status=409)
    take_payment(buyer)
    redis.set(key, stock - 1)
    Order.objects.create(sale_id=sku, buyer=buyer)
    return JsonResponse({"outcome": "sold"}, status=201)


def take_payment(buyer: int) -> None:
    time.sleep(SLOW_PAYMENT if buyer % 8 == 0 else QUICK_PAYMENT)


VIEWS = {Lane.NONE: buy_unlocked, Lane.NAIVE: buy_naive, Lane.LOCKED: buy_locked}
