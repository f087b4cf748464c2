"""What docs/fencing.md says of each way of writing: a late one is refused, or passes where no one claims first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from asgiref.sync import async_to_sync
from django.core.serializers.base import DeserializedObject
from django.db import IntegrityError, connections, models, transaction
from django.forms import modelform_factory

from django_rlock import StaleTokenError, fenced
from tests.fencing.models import Shop, Stock

TOKEN, LATE = 1_700_000_000_000_002, 1_700_000_000_000_001

PAGE = (Path(__file__).parents[2] / "docs/fencing.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.usefixtures("tables")

Way = Callable[[Stock], object]


def rows(stock: Stock) -> models.QuerySet[Stock]:
    return Stock.objects.filter(pk=stock.pk)


def execute(sql: str, *values: int) -> None:
    with connections[Stock.objects.all().db].cursor() as cursor:
        cursor.execute(sql, values)


def load_data(stock: Stock) -> None:
    DeserializedObject(stock).save()


def old_form(stock: Stock) -> None:
    form = modelform_factory(Stock, fields=["count"])({"count": 1}, instance=stock)
    assert form.is_valid()
    form.save()


class StockOfAMigration(models.Model):  # noqa: DJ008
    objects: ClassVar[models.Manager[Self]]

    count = models.IntegerField()
    fence = models.BigIntegerField(null=True)

    class Meta:
        app_label = "fencing"
        managed = False
        db_table = "fencing_stock"


def of_a_migration(stock: Stock) -> None:
    row = StockOfAMigration.objects.get(pk=stock.pk)
    row.count = 1
    row.save()


def related(stock: Stock) -> Any:
    assert stock.shop is not None
    return stock.shop.stock_set


def add_to_another(stock: Stock) -> None:
    Shop.objects.create(name="sun cakes").stock_set.add(stock)


def upsert(stock: Stock, *fields: str) -> None:
    Stock.objects.bulk_create([stock], update_conflicts=True, unique_fields=["id"], update_fields=["count", *fields])


# Each has an object that was loaded before the later holder wrote, with a count of 1.
REFUSED: dict[str, list[Way]] = {
    "`fenced(queryset, token).update()` `.aupdate()`": [
        lambda stock: fenced(rows(stock), LATE).update(count=1),
        lambda stock: async_to_sync(fenced(rows(stock), LATE).aupdate)(count=1),
    ],
    "`save(fence=token)` `asave(fence=token)`": [
        lambda stock: stock.save(fence=LATE),
        lambda stock: async_to_sync(stock.asave)(fence=LATE),
    ],
    "`save()` of an object loaded before; forms and the admin": [Stock.save, old_form],
    '`update_or_create(defaults={…, "fence": token})`': [
        lambda stock: Stock.objects.update_or_create(pk=stock.pk, defaults={"count": 1, "fence": LATE}),
    ],
    "`loaddata`": [load_data],
}
PASSES: dict[str, list[Way]] = {
    "`update()`, also of related managers": [
        lambda stock: rows(stock).update(count=1),
        lambda stock: related(stock).update(count=1),
    ],
    "`update_or_create()` without a token": [
        lambda stock: Stock.objects.update_or_create(pk=stock.pk, defaults={"count": 1}),
    ],
    "`bulk_update()`": [lambda stock: Stock.objects.bulk_update([stock], ["count"])],
    "`bulk_create(update_conflicts=True)`": [upsert],
    "`delete()` of an object or a queryset": [
        lambda stock: stock.delete(),
        lambda stock: rows(stock).delete(),
    ],
    "`add()` `set()` `remove()` of related managers": [
        lambda stock: related(stock).clear(),
        lambda stock: related(stock).remove(stock),
        lambda stock: related(stock).set([]),
        add_to_another,
    ],
    "raw SQL": [lambda stock: execute("UPDATE fencing_stock SET count = 1 WHERE id = %s", stock.pk)],
    "models of migrations (`apps.get_model`)": [of_a_migration],
}
WITH_THE_TOKEN: list[Way] = [
    lambda stock: rows(stock).update(count=1, fence=LATE),
    lambda stock: rows(stock).update(count=1, fence=None),
    lambda stock: Stock.objects.bulk_update([stock], ["count", "fence"]),
    lambda stock: upsert(stock, "fence"),
    lambda stock: execute("UPDATE fencing_stock SET count = 1, fence = %s WHERE id = %s", LATE, stock.pk),
]


def each(ways: dict[str, list[Way]]) -> list[Way]:
    return [way for group in ways.values() for way in group]


def state() -> list[tuple[object, ...]]:
    return list(Stock.objects.values_list("count", "fence", "shop__name"))


@pytest.fixture
def late(tables: str) -> Stock:
    """An object that was loaded under LATE, before a later holder wrote."""
    late = Stock.objects.create(count=5, fence=LATE, shop=Shop.objects.create(name="moon cakes"))
    rows(late).update(count=9, fence=TOKEN)
    late.count = 1
    return late


@pytest.mark.parametrize("write", each(REFUSED))
def test_refused(write: Way, late: Stock) -> None:
    with pytest.raises(StaleTokenError):
        write(late)
    assert state() == [(9, TOKEN, "moon cakes")]


@pytest.mark.parametrize("write", each(PASSES))
def test_passes_unless_the_row_is_claimed_first(write: Way, late: Stock, tables: str) -> None:
    with pytest.raises(StaleTokenError), transaction.atomic(using=tables):
        fenced(rows(late), LATE).update()
        write(late)
    assert state() == [(9, TOKEN, "moon cakes")]
    with transaction.atomic(using=tables):
        fenced(rows(late), TOKEN).update()
        write(late)
    assert state() != [(9, TOKEN, "moon cakes")]


def test_the_page_names_each_way() -> None:
    documented = dict(re.findall(r"^\| (.+?) \| (is refused|\*\*passes\*\*)", PAGE, re.MULTILINE))
    assert documented == dict.fromkeys(REFUSED, "is refused") | dict.fromkeys(PASSES, "**passes**")


in_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture
def trigger(tables: str) -> Iterator[None]:
    """The page's trigger."""
    (recipe,) = re.findall(r"```plpgsql\n(.*?)```", PAGE, re.DOTALL)
    execute(recipe.replace("shop_stock", "fencing_stock").replace("%", "%%"))
    yield
    execute("DROP FUNCTION refuse_late_writer CASCADE")


@in_postgres
@pytest.mark.parametrize("write", WITH_THE_TOKEN)
def test_the_trigger_refuses_whatever_carries_an_older_token(write: Way, trigger: None, late: Stock) -> None:
    with pytest.raises(IntegrityError, match=f"written under token {TOKEN}"):
        write(late)
    assert state() == [(9, TOKEN, "moon cakes")]


@in_postgres
def test_the_trigger_lets_the_others_through(trigger: None, late: Stock) -> None:
    fenced(rows(late), TOKEN).update(count=3)
    with pytest.raises(StaleTokenError):
        late.save()
    new = Stock.objects.get(pk=late.pk)
    new.count = 2
    new.save(fence=TOKEN + 1)
    assert state() == [(2, TOKEN + 1, "moon cakes")]
