"""``fenced(...).update()``: Django's update, under a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import transaction
from django.db.models import F

from django_rlock import FencedLock, StaleTokenError, distributed_lock, fenced
from django_rlock.locks.fencing import FencedRows
from tests.fencing.models import Account, FreshStock, RenamedStock, Shop, Stock

OLD, MINE, NEW = 1_700_000_000_000_001, 1_700_000_000_000_002, 1_700_000_000_000_003

pytestmark = pytest.mark.usefixtures("tables")

Update = Callable[..., int]


@pytest.fixture(params=["update", "aupdate"])
def update(request: pytest.FixtureRequest) -> Update:
    """Either binding: ``update(fenced(...), count=1)``."""
    method = getattr(FencedRows, request.param)
    return method if request.param == "update" else async_to_sync(method)


def stored(stock: Any) -> tuple[int, int | None]:
    return Stock.objects.values_list("count", "fence").get(pk=stock.pk)


@pytest.mark.parametrize("before", [None, OLD, MINE])
def test_a_token_that_is_not_older_is_written(update: Update, before: int | None) -> None:
    stock = Stock.objects.create(count=5, fence=before)
    assert update(fenced(Stock.objects.filter(pk=stock.pk), MINE), count=F("count") - 1) == 1
    assert stored(stock) == (4, MINE)


def test_an_older_token_is_refused(update: Update) -> None:
    stock = Stock.objects.create(count=5, fence=NEW)
    with pytest.raises(StaleTokenError) as caught:
        update(fenced(Stock.objects.filter(pk=stock.pk), MINE), count=1)
    assert stored(stock) == (5, NEW)
    error = caught.value
    assert (error.row, error.token, error.stored, error.lock_name) == (f"fencing.stock:{stock.pk}", MINE, NEW, None)


def test_the_error_names_the_lock_whose_token_it_is() -> None:
    with FencedLock("stock:42") as lock:
        stock = Stock.objects.create(fence=lock.token + 1)
        with pytest.raises(StaleTokenError, match="later holder of lock 'stock:42'"):
            fenced(Stock.objects.filter(pk=stock.pk), lock.token).update(count=1)


def test_under_the_decorator_the_token_is_at_hand() -> None:
    @distributed_lock("stock:<pk>", kind="fenced")
    def sell(pk: int) -> int:
        return fenced(Stock.objects.filter(pk=pk), FencedLock(f"stock:{pk}").token).update(count=F("count") - 1)

    stock = Stock.objects.create(count=5)
    assert (sell(stock.pk), sell(stock.pk)) == (1, 1)
    count, token = stored(stock)
    assert count == 3
    assert token


def test_no_row_is_no_late_write(update: Update) -> None:
    assert update(fenced(Stock.objects.filter(pk=-1), MINE), count=1) == 0
    assert update(fenced(Stock.objects.none(), MINE), count=1) == 0


def test_all_rows_or_none(update: Update) -> None:
    mine, theirs = Stock.objects.create(count=5), Stock.objects.create(count=5, fence=NEW)
    with pytest.raises(StaleTokenError, match=f"fencing.stock:{theirs.pk} "):
        update(fenced(Stock.objects.all(), MINE), count=1)
    assert [stored(mine), stored(theirs)] == [(5, None), (5, NEW)]


def test_rows_that_the_update_takes_out_of_the_filter() -> None:
    stock = Stock.objects.create(count=5, fence=OLD)
    assert fenced(Stock.objects.filter(count=5), MINE).update(count=0) == 1
    assert stored(stock) == (0, MINE)


def test_an_open_transaction_is_rolled_back_even_if_the_error_is_caught(tables: str) -> None:
    mine, theirs = Stock.objects.create(count=5), Stock.objects.create(count=5, fence=NEW)
    with transaction.atomic(using=tables):
        Stock.objects.filter(pk=mine.pk).update(count=1)
        with pytest.raises(StaleTokenError):
            fenced(Stock.objects.filter(pk=theirs.pk), MINE).update(count=1)
    assert stored(mine) == (5, None)


def test_a_savepoint_of_the_caller_limits_what_is_undone(tables: str) -> None:
    mine, theirs = Stock.objects.create(count=5), Stock.objects.create(count=5, fence=NEW)
    with transaction.atomic(using=tables):
        fenced(Stock.objects.filter(pk=mine.pk), MINE).update(count=1)
        with pytest.raises(StaleTokenError), transaction.atomic(using=tables):
            fenced(Stock.objects.filter(pk=theirs.pk), MINE).update(count=1)
    assert stored(mine) == (1, MINE)


def test_a_join_does_not_widen_what_is_written() -> None:
    cakes, teas = (Stock.objects.create(count=5, shop=Shop.objects.create(name=name)) for name in ("cakes", "teas"))
    assert fenced(Stock.objects.filter(shop__name="cakes"), MINE).update(count=1) == 1
    assert [stored(cakes), stored(teas)] == [(1, MINE), (5, None)]
    with pytest.raises(StaleTokenError):
        fenced(Stock.objects.filter(shop__name="cakes"), OLD).update(count=2)


def test_another_field_and_a_model_that_is_no_fenced_model() -> None:
    account = Account.objects.create()
    rows = Account.objects.filter(pk=account.pk)
    assert fenced(rows, MINE, field="written_under").update(balance=7) == 1
    with pytest.raises(StaleTokenError):
        fenced(rows, OLD, field="written_under").update(balance=8)
    assert rows.values_list("balance", "written_under").get() == (7, MINE)
    with pytest.raises(FieldDoesNotExist):
        fenced(rows, MINE).update(balance=8)


def test_a_proxy_is_its_table() -> None:
    stock = Stock.objects.create(count=5)
    assert fenced(RenamedStock.objects.filter(pk=stock.pk), MINE).update(count=1) == 1
    assert stored(stock) == (1, MINE)


@pytest.mark.parametrize("values", [{"days": 3}, {"count": 3}, {}])
def test_a_token_in_the_table_of_a_parent_is_refused(values: dict[str, int]) -> None:
    stock = FreshStock.objects.create(count=5)
    with pytest.raises(FieldError, match="fence is not a column"):
        fenced(FreshStock.objects.filter(pk=stock.pk), MINE).update(**values)
    assert stored(stock) == (5, None)


@pytest.mark.parametrize("token", [None, "1", 1.5, True])
def test_what_is_no_token_is_refused(token: Any) -> None:
    with pytest.raises(TypeError, match="A fencing token is an int"):
        fenced(Stock.objects.all(), token)


def test_the_token_cannot_be_given_twice() -> None:
    with pytest.raises(TypeError, match="fence"):
        fenced(Stock.objects.all(), MINE).update(fence=NEW)
