"""The purpose of fencing: a holder pauses past its lease, a second one writes, and the first one's write comes late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F

from django_rlock import FencedLock, LockLostError, StaleTokenError, fenced
from tests.eventually import UNTIL_SERVED, eventually
from tests.fencing.models import Shop, Stock

OLD, NEW = 1_700_000_000_000_001, 1_700_000_000_000_002

pytestmark = pytest.mark.usefixtures("tables")

Write = Callable[[Any, int], None]


def by_update(stock: Stock, token: int) -> None:
    fenced(Stock.objects.filter(pk=stock.pk), token).update(count=F("count") - 1)


def by_joined_update(stock: Stock, token: int) -> None:
    fenced(Stock.objects.filter(pk=stock.pk, shop__name="moon cakes"), token).update(count=F("count") - 1)


def by_save(stock: Stock, token: int) -> None:
    stock.count -= 1
    stock.save(fence=token)


WRITES = [by_update, by_joined_update, by_save]


@pytest.fixture
def stock(tables: str) -> Stock:
    return Stock.objects.create(count=5, shop=Shop.objects.create(name="moon cakes"))


@pytest.fixture
def start(tables: str) -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in a thread, whose connection ends with it."""

    def run(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        finally:
            connections[tables].close()

    with ThreadPoolExecutor(8) as threads:
        yield lambda function, *args: threads.submit(run, function, *args)


@pytest.mark.lengthy
@pytest.mark.parametrize("write", WRITES)
def test_the_late_write_is_refused(write: Write, stock: Stock, start: Callable[..., Future[Any]]) -> None:
    """Two threads, real locks; the first one's pause is longer than its lease."""

    def second_holder() -> None:
        with FencedLock("stock:42", wait_time=10) as lock:
            write(Stock.objects.get(pk=stock.pk), lock.token)

    with pytest.raises(LockLostError), FencedLock("stock:42", lease_time=2) as lock:
        token = lock.token
        read = Stock.objects.get(pk=stock.pk)
        start(second_holder).result(UNTIL_SERVED)  # it waits until the lease has ended
        with pytest.raises(StaleTokenError, match="'stock:42'"):
            write(read, token)
    assert Stock.objects.values_list("count", flat=True).get() == 4


@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_waits_for_the_newer_one(
    write: Write, stock: Stock, start: Callable[..., Future[Any]], tables: str
) -> None:
    """The late statement begins before the newer writer commits, so that it has seen the old token."""
    has_read = threading.Event()

    def late_writer() -> None:
        read = Stock.objects.get(pk=stock.pk)
        has_read.set()
        write(read, OLD)

    with transaction.atomic(using=tables):
        write(stock, NEW)
        late = start(late_writer)
        assert has_read.wait(UNTIL_SERVED)
        if connections[tables].vendor == "postgresql":  # SQLite does not say
            eventually(lambda: someone_waits(tables))
    with pytest.raises(StaleTokenError):
        late.result(UNTIL_SERVED)
    assert Stock.objects.values_list("count", "fence").get() == (4, NEW)


def someone_waits(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0] > 0


def test_many_writers_at_once(stock: Stock, start: Callable[..., Future[Any]]) -> None:
    """Whatever their order, the stored token only rises, and the row is what its last writer made it."""
    tokens = [OLD + number for number in range(24)]

    def write(token: int) -> bool:
        try:
            fenced(Stock.objects.filter(pk=stock.pk), token).update(count=token - OLD)
        except StaleTokenError:
            return False
        return True

    written = [start(write, token) for token in tokens[::2] + tokens[1::2][::-1]]
    assert True in [each.result(UNTIL_SERVED) for each in written]
    assert Stock.objects.values_list("count", "fence").get() == (23, tokens[-1])
