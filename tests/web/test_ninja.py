"""Operations of django-ninja: the lock around their transaction, and their responses."""

from types import ModuleType
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import Client
from django.urls import path
from ninja import NinjaAPI, Router, Schema
from ninja.errors import HttpError
from ninja.security import APIKeyHeader
from pytest_django import Settings

from django_rlock import distributed_lock, rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.ninja import register
from tests.conftest import OwnServer
from tests.operators import free_by_force
from tests.web.conftest import Holder
from tests.web.sale import LOCKED, ROLLED_BACK, UNLOCKED, sell, sold

lock = distributed_lock("stock:<pk>", wait_time=0)


class Key(APIKeyHeader):
    param_name = "X-Key"

    def authenticate(self, request: Any, key: str | None) -> Any:
        return key


class Order(Schema):
    sku: str


api = NinjaAPI(urls_namespace="locked")
register(api)
router = Router()


@api.post("/stocks/{pk}/")
@lock
def buy(request: Any, pk: int) -> str:
    return sell()


@api.get("/stocks/{pk}/")
def look(request: Any, pk: int) -> str:
    return sell()


@api.put("/stocks/{pk}/")
@lock
def fail(request: Any, pk: int) -> str:
    sell()
    raise HttpError(409, "no")


@api.delete("/stocks/{pk}/")
@lock
def lose(request: Any, pk: int) -> str:
    free_by_force("stock:7")
    return sell()


@router.post("/{pk}/", auth=Key())
@lock
def protected(request: Any, pk: int) -> str:
    return sell()


@api.post("/orders/")
@distributed_lock("order:<order.sku>")
def order(request: Any, order: Order) -> list[str]:
    return held()


@api.post("/keys/")
@distributed_lock("key:<header.Idempotency-Key>:<request.user.pk?>")
def key(request: Any) -> list[str]:
    return held()


@api.post("/carts/")
@distributed_lock("cart:<request.user.pk>")
def cart(request: Any) -> list[str]:
    return held()


@api.post("/inside/")
def inside(request: Any) -> str:
    sell()
    with rlock("stock:7", wait_time=0, until_commit=False):
        return "held"


@api.post("/async/{pk}/")
@lock
async def abuy(request: Any, pk: int) -> list[str]:
    return held()


def held() -> list[str]:
    return [hold.lock.name for hold in HOLDS.snapshot()]


api.add_router("/routed/", router)
urlpatterns = [path("", api.urls)]

pytestmark = pytest.mark.urls(__name__)


def test_the_transaction_is_inside_the_lock(
    atomic_requests: None, client: Client, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert client.post("/stocks/7/").json() == "sold"
    assert client.post("/routed/7/", headers={"X-Key": "k"}).json() == "sold"
    assert events == [*LOCKED, *LOCKED]
    assert not caplog.records


def test_other_operations_of_the_path_keep_their_transactions(
    atomic_requests: None, client: Client, events: list[str]
) -> None:
    assert client.get("/stocks/7/").json() == "sold"
    assert events == UNLOCKED


def test_an_error_that_ninja_answers_is_rolled_back(atomic_requests: None, client: Client, events: list[str]) -> None:
    assert client.put("/stocks/7/").status_code == 409
    assert events == ROLLED_BACK


def test_authentication_comes_before_the_lock(atomic_requests: None, client: Client, events: list[str]) -> None:
    assert client.post("/routed/7/").status_code == 401
    assert events == []


def test_a_lock_that_was_freed_is_noticed_before_commit(
    atomic_requests: None, client: Client, events: list[str]
) -> None:
    response = client.delete("/stocks/7/")
    assert (response.status_code, response.json()["code"]) == (503, "lock_lost")
    assert "COMMIT" not in events
    assert not sold()


@pytest.mark.parametrize("url", ["/stocks/7/", "/inside/", "/async/7/"])
def test_a_taken_lock(client: Client, taken: Holder, url: str, transactional_db: None) -> None:
    with taken("stock:7"):
        response = client.post(url)
    assert (response.status_code, response.json()["code"]) == (423, "locked")
    assert response["Cache-Control"] == "no-store"
    assert int(response["Retry-After"]) in range(1, 6)


def test_a_lock_that_the_body_does_not_get_rolls_djangos_transaction_back(
    atomic_requests: None, client: Client, taken: Holder, events: list[str]
) -> None:
    with taken("stock:7"):
        assert client.post("/inside/").status_code == 423
    assert not sold()


def test_redis_down(client: Client, own_server: OwnServer) -> None:
    own_server().kill()
    response = client.post("/stocks/7/")
    assert (response.status_code, response.json()["code"]) == (503, "lock_unavailable")


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("url", "told"), [("/keys/", "Idempotency-Key"), ("/carts/", "user")])
def test_a_missing_value(client: Client, settings: Settings, url: str, told: str, debug: bool) -> None:
    settings.DEBUG = debug
    response = client.post(url)
    assert response.status_code == 400
    assert told in response.json()["detail"]
    assert response["Cache-Control"] == "no-store"


def test_keys_are_read_from_validated_arguments_and_headers(client: Client) -> None:
    assert client.post("/orders/", {"sku": "a1"}, "application/json").json() == ["order:a1"]
    assert client.post("/keys/", headers={"Idempotency-Key": "k"}).json() == ["key:k:"]
    assert client.post("/async/7/").json() == ["stock:7"]


def test_it_is_too_late_when_the_urls_are_made() -> None:
    with pytest.raises(RuntimeError, match=r"before the first use of api\.urls"):
        register(api)


def test_a_lock_above_the_operation_is_refused() -> None:
    with pytest.raises(TypeError, match="below"):
        lock(look)


def test_templates_are_checked(settings: Settings) -> None:
    @lock
    def wrong(request: Any, sku: str, **kwargs: Any) -> None: ...

    @distributed_lock("stock:<nope:sku>")
    def unknown(request: Any, sku: str) -> None: ...

    def right(request: Any, sku: str, pk: int, **kwargs: Any) -> None: ...

    checked = NinjaAPI(urls_namespace="checked")
    register(checked)
    checked.get("/wrong/{sku}/")(wrong)
    checked.post("/wrong/{sku}/")(unknown)
    checked.get("/right/{sku}/")(lock(right))
    settings.ROOT_URLCONF = ModuleType("urlconf_of_this_test")
    settings.ROOT_URLCONF.urlpatterns = [path("api/", checked.urls)]
    first, second = sorted(each.msg for each in run_checks(tags=["urls"]) if each.id == "django_rlock.E010")
    assert "unknown: stock:<nope:sku>: " in first
    assert "wrong: stock:<pk>: no argument 'pk'; route `api/wrong/<sku>/` has 'sku'" in second
