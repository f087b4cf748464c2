"""``FencedModel.save(fence=...)``, and its ``save()`` without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_rlock import StaleTokenError
from tests.fencing.models import FreshStock, RenamedStock, Shop, ShopWithLicence, Stock

OLD, MINE, NEW = 1_700_000_000_000_001, 1_700_000_000_000_002, 1_700_000_000_000_003

pytestmark = pytest.mark.usefixtures("tables")

Save = Callable[..., None]


@pytest.fixture(params=["save", "asave"])
def save(request: pytest.FixtureRequest) -> Save:
    """Either binding: ``save(stock, fence=1)``."""
    method = getattr(Stock, request.param)
    return method if request.param == "save" else async_to_sync(method)


def stored(stock: Any) -> tuple[int, int | None]:
    return Stock.objects.values_list("count", "fence").get(pk=stock.pk)


def overtaken(stock: Any) -> Any:
    """A later holder writes the row after the object was loaded."""
    Stock.objects.filter(pk=stock.pk).update(count=9, fence=NEW)
    return stock


@pytest.mark.parametrize("before", [None, OLD, MINE])
def test_a_token_that_is_not_older_is_written(save: Save, before: int | None) -> None:
    stock = Stock.objects.create(count=5, fence=before)
    stock.count = 4
    save(stock, fence=MINE)
    assert stored(stock) == (4, MINE)
    assert stock.fence == MINE


def test_an_older_token_is_refused(save: Save) -> None:
    stock = overtaken(Stock.objects.create(count=5))
    with pytest.raises(StaleTokenError) as caught:
        save(stock, fence=MINE)
    assert stored(stock) == (9, NEW)
    assert (caught.value.row, caught.value.token, caught.value.stored) == (f"fencing.stock:{stock.pk}", MINE, NEW)


@pytest.mark.parametrize("before", [None, OLD])
def test_without_a_token_an_object_that_was_loaded_before_is_refused(save: Save, before: int | None) -> None:
    stock = overtaken(Stock.objects.create(count=5, fence=before))
    with pytest.raises(StaleTokenError):
        save(stock)
    with pytest.raises(StaleTokenError):
        save(stock, update_fields=["count"])
    assert stored(stock) == (9, NEW)


def test_without_a_token_an_object_that_was_loaded_since_is_written(save: Save) -> None:
    stock = Stock.objects.get(pk=overtaken(Stock.objects.create(count=5)).pk)
    stock.count = 1
    save(stock)
    assert stored(stock) == (1, NEW)


def test_a_new_row_has_the_token_or_none(save: Save) -> None:
    first, second = Stock(count=1), Stock(count=2)
    save(first, fence=MINE)
    save(second)
    assert [stored(first), stored(second)] == [(1, MINE), (2, None)]
    assert Stock.objects.create(count=3, fence=NEW).fence == NEW


def test_a_new_object_does_not_overwrite_a_row_of_a_later_holder() -> None:
    """Django would try an INSERT after the UPDATE of no row, which ends a transaction of PostgreSQL's."""
    stock = overtaken(Stock.objects.create(count=5))
    for token in (None, MINE):
        with pytest.raises(StaleTokenError):
            Stock(pk=stock.pk, count=1).save(fence=token)
    Stock(pk=stock.pk, count=1).save(fence=NEW)
    assert stored(stock) == (1, NEW)


def test_a_row_that_is_gone_is_as_django_has_it() -> None:
    stock = Stock.objects.create(count=5)
    Stock.objects.all().delete()
    for options in ({"force_update": True}, {"update_fields": ["count"]}):
        with pytest.raises(DatabaseError, match="did not affect any rows"):
            stock.save(fence=MINE, **options)
    stock.save(fence=MINE)
    assert stored(stock) == (5, MINE)


def test_the_token_is_stored_with_whatever_fields_are_named(save: Save) -> None:
    stock = Stock.objects.create(count=5)
    Stock.objects.update(count=6)
    save(stock, fence=MINE, update_fields=["shop"])
    assert stored(stock) == (6, MINE)
    save(stock, fence=NEW, update_fields=[])
    assert stored(stock) == (6, MINE)


def test_an_object_without_its_token() -> None:
    stock = overtaken(Stock.objects.create(count=5))
    partial = Stock.objects.defer("fence").get(pk=stock.pk)
    with pytest.raises(ValueError, match="without its fencing token"):
        partial.save()
    with pytest.raises(StaleTokenError):
        partial.save(fence=MINE)
    partial = Stock.objects.only("count").get(pk=stock.pk)
    partial.count = 1
    partial.save(fence=NEW + 1)
    assert stored(stock) == (1, NEW + 1)


def test_expressions(save: Save) -> None:
    stock = Stock.objects.create(count=5)
    stock.count = F("count") - 1
    save(stock, fence=MINE)
    assert stored(stock) == (4, MINE)


def test_one_statement(tables: str) -> None:
    stock = Stock.objects.create(count=5)
    with CaptureQueriesContext(connections[tables]) as queries:
        stock.save(fence=MINE)
    (query,) = queries
    assert query["sql"].startswith("UPDATE")


def test_an_open_transaction_is_rolled_back(tables: str) -> None:
    mine, theirs = Stock.objects.create(count=5), overtaken(Stock.objects.create(count=5))
    with transaction.atomic(using=tables):
        mine.count = 1
        mine.save(fence=MINE)
        with pytest.raises(StaleTokenError):
            theirs.save(fence=MINE)
    assert stored(mine) == (5, None)


def test_a_proxy_is_its_table() -> None:
    stock = overtaken(Stock.objects.create(count=5))
    with pytest.raises(StaleTokenError, match=r"fencing\.stock"):
        RenamedStock.objects.defer().get(pk=stock.pk).save(fence=MINE)


def test_a_token_in_the_first_of_two_tables() -> None:
    stock = FreshStock.objects.create(count=5, days=3)
    stock.days = 2
    stock.save(fence=OLD)
    assert FreshStock.objects.values_list("days", "fence").get() == (2, OLD)
    overtaken(stock).days = 1
    for options in ({}, {"update_fields": ["days"]}):
        with pytest.raises(StaleTokenError):
            stock.save(fence=MINE, **options)
    assert FreshStock.objects.values_list("count", "days", "fence").get() == (9, 2, NEW)


def test_a_token_in_the_second_of_two_tables() -> None:
    shop = ShopWithLicence.objects.create(name="moon cakes")
    shop.save(fence=NEW)
    shop.name = "sun cakes"
    with pytest.raises(StaleTokenError):
        shop.save(fence=MINE)
    assert Shop.objects.get().name == "moon cakes"


@pytest.mark.parametrize("token", ["1", 1.5, True])
def test_what_is_no_token_is_refused(token: Any) -> None:
    with pytest.raises(TypeError, match="A fencing token is an int"):
        Stock().save(fence=token)
    assert not Stock.objects.exists()


def test_methods_that_write_are_not_called_by_templates() -> None:
    methods: list[Any] = [Stock.save, Stock.asave]
    assert [method.alters_data for method in methods] == [True, True]
