"""Each recipe of the cookbook does what its page says: alone, contended, under ATOMIC_REQUESTS and without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import path
from pytest_django import Settings

from django_rlock import LockTimeoutError, rlock
from django_rlock.testing import hold
from tests.background import renew_now
from tests.docs.cookbook import MODELS, Account, Document, Order, Price, Product, Report, recipe
from tests.eventually import eventually
from tests.operators import free_by_force

pytestmark = pytest.mark.usefixtures("tables")

urlpatterns: list[Any] = []


@pytest.fixture
def tables(transactional_db: None) -> Iterator[None]:
    with connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    yield
    with connection.schema_editor() as editor:
        for model in reversed(MODELS):
            editor.delete_model(model)


@pytest.fixture(params=[True, False], ids=["ATOMIC_REQUESTS", "autocommit"])
def site(
    request: pytest.FixtureRequest,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Any]:
    """Serves views, by their routes. None of them may release a lock before COMMIT, which is logged."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django_rlock.middleware.LockMiddleware"]
    settings.RLOCK = {"default": {"VIEW_WAIT_TIME": 0}}

    def serve(**routes: Any) -> Client:
        monkeypatch.setattr(f"{__name__}.urlpatterns", [path(*route) for route in routes.items()])
        return client()

    yield serve
    logged = caplog.get_records("call")
    assert [record.message for record in logged if record.name.startswith("django_rlock")] == []


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    with Celery("recipes", broker="memory://", set_as_current=False, fixups=[]) as made:
        monkeypatch.setattr("celery.shared_task", partial(made.task, shared=False))
        yield made


def client(name: str = "alice") -> Client:
    made = Client()
    made.force_login(User.objects.get_or_create(username=name)[0])
    return made


def test_a_double_submit_charges_once(site: Any) -> None:
    charged: list[str] = []
    names = recipe("Double submit", charge=lambda order, idempotency_key: charged.append(idempotency_key))
    alice = site(pay=names["place_order"])
    first, second, other = (alice.post("/pay", {"token": token}) for token in ("a", "a", "b"))
    assert first["Location"] == second["Location"] != other["Location"]
    assert charged == ["a", "b"]
    with hold(f"order:{User.objects.get().pk}:a"):
        assert alice.post("/pay", {"token": "a"}).status_code == 423
    assert "login" in Client().post("/pay", {"token": "a"})["Location"]


def test_a_webhook_is_handled_once_and_again_after_a_failure(site: Any) -> None:
    handled: list[Any] = []
    names = recipe("Webhook idempotency", verify_signature=lambda request: None, handle=handled.append)
    service = site(hook=names["receive"])
    deliver = partial(service.post, "/hook", {"paid": 7}, "application/json", headers={"webhook-id": "a"})
    names["handle"] = lambda event: 1 // 0
    with pytest.raises(ZeroDivisionError):
        deliver()
    names["handle"] = handled.append
    assert [deliver().status_code, deliver().status_code] == [200, 200]
    assert handled == [{"paid": 7}]
    with hold("webhook:a"):
        assert deliver().status_code == 423
    assert service.post("/hook").status_code == 400


def test_a_report_is_sent_once_and_built(site: Any, app: Celery) -> None:
    names = recipe("One report at a time", total_of=lambda account_id: 6 * account_id)
    alice = site(**{"report/<int:account_id>": names["request_report"]})
    first, second, other = (alice.post(f"/report/{account_id}").json() for account_id in (7, 7, 8))
    assert [first["is_new"], second["is_new"], other["is_new"]] == [True, False, True]
    assert first["task"] == second["task"] != other["task"]
    names["build_report"](7)
    assert Report.objects.get(account_id=7).total == 42


def test_a_nightly_job_bills_each_account_once_on_one_host() -> None:
    billed: list[int] = []
    bill = recipe("A nightly job on many hosts", bill=lambda account: billed.append(account.pk))["Command"]
    lock = rlock(f"command:{bill.__module__}")
    Account.objects.create()
    with hold(lock.name):
        call_command(bill())
    assert billed == []
    for late_host in (False, True):
        call_command(bill())
        assert len(billed) == 1, late_host
        Account.objects.create()
    lock.force_release()
    call_command(bill())
    assert sorted(billed) == [1, 2, 3]


def test_a_code_is_sent_once_a_minute(site: Any) -> None:
    sent: list[str] = []
    names = recipe("Cool-down", send_text_message=lambda user: sent.append(user.username))
    alice = site(code=names["send_code"])
    assert alice.post("/code").content == b"sent"
    refused = alice.post("/code")
    assert refused.status_code == 429
    assert 50 < int(refused["Retry-After"]) <= 60
    assert client("bob").post("/code").status_code == 200
    assert sent == ["alice", "bob"]


def test_three_tasks_and_blocks_at_a_time_ask_the_partner(app: Celery) -> None:
    asked: list[Any] = []
    names = recipe("Three at a time", send_to_partner=asked.append)
    order = Order.objects.create(buyer=User.objects.create(), token="a")
    with rlock("partner-api", permits=3, owner="another"), rlock("partner-api", permits=3, owner="a third"):
        names["push_order"](order.pk)
        names["ask_partner"]("how many?")
        with rlock("partner-api", permits=3, owner="a fourth"):
            names["push_order"].lock_wait_time = names["push_order"].lock_max_retries = 0
            with pytest.raises(LockTimeoutError):
                names["push_order"].apply([order.pk], throw=True)
    assert asked == [order, "how many?"]


def test_a_product_is_sold_until_none_is_left(site: Any) -> None:
    paid: list[Product] = []
    alice = site(**{"buy/<sku>": recipe("Stock", pay=lambda user, product: paid.append(product))["buy"]})
    Product.objects.create(sku="cake", left=1)
    with hold("stock:cake"):
        assert alice.post("/buy/cake").status_code == 423
    assert [alice.post("/buy/cake").content for _ in range(2)] == [b"yours", b"sold out"]
    assert len(paid) == 1
    assert alice.post("/buy/pie").status_code == 404


def test_an_import_may_be_repeated(app: Celery, tmp_path: Path) -> None:
    import_prices = recipe("Import of a file")["import_prices"]
    file = tmp_path / "prices.csv"
    file.write_text("sku,price\n" + "".join(f"{sku},{sku}.50\n" for sku in range(501)))
    for _ in range(2):
        import_prices(1, str(file))
    assert Price.objects.count() == 501
    assert Price.objects.get(sku="500").price == "500.50"


def test_a_leader_leads_until_its_lock_is_lost() -> None:
    def step() -> None:
        steps.append(1)
        if len(steps) == 2:
            free_by_force("leader")
            renew_now()
            assert eventually(lambda: command.lock.lost)

    steps: list[int] = []
    command = recipe("One celery beat, and leader election", lead=step)["Command"]()
    with pytest.raises(CommandError) as error:
        call_command(command)
    assert error.value.returncode == 70
    assert len(steps) == 2


def test_a_document_is_locked_for_a_session(site: Any) -> None:
    names = recipe("A lock across HTTP requests")
    alice = site(**{"edit/<int:pk>": names["edit"], "save/<int:pk>": names["save"]})
    bob = client("bob")
    document = Document.objects.create(text="old")
    url = f"/{{}}/{document.pk}".format
    assert [alice.get(url("edit")).content for _ in range(2)] == [b"old", b"old"]
    assert bob.get(url("edit")).status_code == bob.post(url("save")).status_code == 423
    assert (rlock(f"document:{document.pk}").remaining_lease() or 0) > 100
    assert alice.post(url("save"), {"text": "new", "version": 1}).content == b"saved"
    assert bob.get(url("edit")).content == b"new"
    assert bob.post(url("save"), {"text": "newer", "version": 1}).status_code == 409


def test_an_account_is_locked_for_java_and_django(site: Any, settings: Settings, redis_client: redis.Redis) -> None:
    names = recipe("Java beside Django")
    settings.CACHES = {**settings.CACHES, "shared": settings.CACHES["default"]}
    settings.RLOCK = {alias: {**entry, "VIEW_WAIT_TIME": 0} for alias, entry in names["RLOCK"].items()}
    account = Account.objects.create()
    withdraw = partial(site(**{"withdraw/<int:account_id>": names["withdraw"]}).post, f"/withdraw/{account.pk}")
    redis_client.hset(f"account:{account.pk}", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", 1)  # as Redisson does
    assert withdraw().status_code == 423
    redis_client.delete(f"account:{account.pk}")
    assert withdraw().status_code == 200
    assert Account.objects.get().balance == 90
