"""A sale from its opening to its result, and its state meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from django.urls import reverse
from django_redis import get_redis_connection

from example_project.shop.buyers import send_buyers
from example_project.shop.models import Lane, Sale

KEEP = 24 * 60 * 60
"""After how many seconds Redis forgets a sale."""


@dataclass(frozen=True)
class Result:
    """The result of a sale, so far or final. ``sold`` is the number of orders in the database."""

    lane: str
    buyers: int
    stock: int
    sold: int
    sold_out: int
    refused: int
    errors: int
    oversold: int
    seconds: float | None

    @property
    def right(self) -> bool:
        """Whether everything was sold once, and all other buyers were informed."""
        sold = min(self.stock, self.buyers)
        return (self.sold, self.sold_out, self.errors) == (sold, self.buyers - sold, 0)


def open_sales(buyers: int, stock: int, lanes: Iterable[str] = Lane.values) -> list[Sale]:
    """One sale for each lane, all with the same buyers and the same stock; the one that takes longest is the last."""
    in_order = sorted(lanes, key=lambda lane: lane == Lane.PAUSED)
    return [Sale.objects.create(lane=lane, buyers=buyers, stock=stock, left=stock) for lane in in_order]


def hold_sale(sale: Sale, url: str) -> Result:
    """Put the stock on the shelf of the site at ``url``, send all buyers to it at once, and record the outcomes."""
    redis = get_redis_connection()
    redis.set(f"shop:stock:{sale.sku}", sale.stock, ex=KEEP)
    paths = {buyer: reverse(f"buy-{sale.lane}", args=[sale.sku, buyer]) for buyer in sale.numbers}
    started = time.monotonic()
    for buyer, outcome in send_buyers(url, paths):
        redis.hset(_answers_key(sale), str(buyer), outcome)
    sale.seconds = time.monotonic() - started
    sale.save(update_fields=["seconds"])
    redis.expire(_answers_key(sale), KEEP)
    return result_of(sale)


def tiles_of(sale: Sale) -> list[str]:
    """The outcome of each buyer: sold, oversold, sold_out, refused, error, or pending."""
    answers = get_redis_connection().hgetall(_answers_key(sale))
    tiles = {buyer: answers.get(b"%d" % buyer, b"pending").decode() for buyer in sale.numbers}
    for count, buyer in enumerate(sale.orders.values_list("buyer", flat=True), start=1):
        tiles[buyer] = "sold" if count <= sale.stock else "oversold"
    return list(tiles.values())


def result_of(sale: Sale, tiles: list[str] | None = None) -> Result:
    """The totals of a sale."""
    counts = Counter(tiles_of(sale) if tiles is None else tiles)
    return Result(
        lane=sale.lane,
        buyers=sale.buyers,
        stock=sale.stock,
        sold=counts["sold"] + counts["oversold"],
        sold_out=counts["sold_out"],
        refused=counts["refused"],
        errors=counts["error"],
        oversold=counts["oversold"],
        seconds=sale.seconds,
    )


def _answers_key(sale: Sale) -> str:
    return f"shop:answers:{sale.sku}"
