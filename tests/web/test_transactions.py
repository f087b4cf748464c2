"""The order of locks and transactions: acquire, BEGIN, view, COMMIT, release."""

import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_rlock import LockLostError, distributed_lock, rlock
from django_rlock.signals import lock_lost
from tests.conftest import OwnServer
from tests.eventually import UNTIL_SERVED
from tests.operators import free_by_force
from tests.web.conftest import Holder
from tests.web.sale import LOCKED, ROLLED_BACK, UNLOCKED, sell, sold


def plain(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(sell())


@transaction.non_atomic_requests
def opted_out(request: HttpRequest, pk: int) -> HttpResponse:
    return plain(request, pk)


def failing(request: HttpRequest, pk: int) -> HttpResponse:
    plain(request, pk)
    raise ZeroDivisionError


def losing(request: HttpRequest, pk: int) -> HttpResponse:
    """Loses its lock, which is taken for a moment only."""
    lost = threading.Event()

    def tell(**_: Any) -> None:
        lost.set()

    lock_lost.connect(tell)
    response = plain(request, pk)
    assert lost.wait(UNTIL_SERVED)
    return response


def forced(request: HttpRequest, pk: int) -> HttpResponse:
    """Is not notified that its lock is gone."""
    free_by_force(f"stock:{pk}")
    return plain(request, pk)


def forced_around(request: HttpRequest, pk: int) -> HttpResponse:
    """Loses what a decorator around it holds."""
    free_by_force(f"outer:{pk}")
    return plain(request, pk)


def forced_late(request: HttpRequest, pk: int) -> HttpResponse:
    """Is not notified that its lock is gone before it releases it, after COMMIT."""
    transaction.on_commit(lambda: free_by_force(f"stock:{pk}"))
    return plain(request, pk)


class Post(View):
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return plain(request, pk)


class MixinPost:
    @distributed_lock("stock:<pk>")
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return plain(request, pk)


class MixedPost(MixinPost, View):
    pass


class LostMethodPost(View):
    @distributed_lock("stock:<pk>", lease_time=0.1)
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return losing(request, pk)


@method_decorator(distributed_lock("stock:<pk>"), name="dispatch")
class DispatchPost(Post):
    pass


@method_decorator(distributed_lock("stock:<pk>"), name="dispatch")
class AsyncPost(View):
    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return await sync_to_async(plain)(request, pk)


class AsyncMethodPost(View):
    @distributed_lock("stock:<pk>")
    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return await sync_to_async(plain)(request, pk)


@method_decorator(distributed_lock("stock:<pk>"), name="dispatch")
class AsyncOptedOut(AsyncMethodPost):
    pass


@method_decorator(distributed_lock("stock:<pk>", atomic=False), name="dispatch")
class AsyncNeverPost(AsyncMethodPost):
    pass


lock = distributed_lock("stock:<pk>")
views = {
    "function": lock(plain),
    "dispatch": DispatchPost.as_view(),
    "as-view": lock(Post.as_view()),
    "always": distributed_lock("stock:<pk>", atomic=True)(plain),
    "at-once": distributed_lock("stock:<pk>", wait_time=0)(plain),
    "never": distributed_lock("stock:<pk>", atomic=False)(plain),
    "condition": distributed_lock("stock:<pk>", condition=lambda request, pk: False)(plain),
    "stacked": distributed_lock("outer:<pk>")(lock(plain)),
    "opted-out-below": lock(opted_out),
    "opted-out-above": transaction.non_atomic_requests(lock(plain)),
    "failing": lock(failing),
    "losing": distributed_lock("stock:<pk>", lease_time=0.1)(losing),
    "losing-late": distributed_lock("stock:<pk>", lease_time=0.1, atomic=False)(losing),
    "forced": lock(forced),
    "forced-around": distributed_lock("outer:<pk>")(lock(forced_around)),
    "forced-several": distributed_lock("stock:<pk>", "stocks:<pk>")(forced),
    "forced-late": lock(forced_late),
    "async-dispatch": AsyncPost.as_view(),
    "async-method": AsyncMethodPost.as_view(),
    "async-never": AsyncNeverPost.as_view(),
    "async-opted-out": transaction.non_atomic_requests(AsyncOptedOut.as_view()),
    "mixin": MixedPost.as_view(),
    "lost-method": LostMethodPost.as_view(),
}
urlpatterns = [path(f"{name}/<int:pk>/", view) for name, view in views.items()]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.usefixtures("events")]


@pytest.fixture
def client() -> Client:
    return Client(raise_request_exception=False)


@pytest.mark.parametrize(
    ("view", "order"),
    [
        *((view, LOCKED) for view in ("function", "dispatch", "as-view", "always")),
        ("never", ["BEGIN", "acquire stock:7", "body", "release stock:7", "COMMIT"]),  # it was chosen: no warning
        ("condition", UNLOCKED),
        ("stacked", ["acquire outer:7", *LOCKED, "release outer:7"]),
        *((view, ["acquire stock:7", "body", "release stock:7"]) for view in ("opted-out-below", "opted-out-above")),
    ],
    ids=str,
)
def test_the_order_of_locks_and_transaction_under_atomic_requests(
    view: str,
    order: list[str],
    atomic_requests: None,
    client: Client,
    events: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert client.post(f"/{view}/7/").content == b"sold"
    assert events == order
    assert sold()
    assert not caplog.records


def test_it_can_be_had_without_atomic_requests(client: Client, events: list[str]) -> None:
    client.post("/always/7/")
    assert events == LOCKED


@pytest.mark.parametrize("view", ["async-dispatch", "async-method", "async-never"])
def test_django_refuses_transactions_of_async_views(view: str, atomic_requests: None, events: list[str]) -> None:
    with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
        Client().post(f"/{view}/7/")
    assert events == []
    assert not sold()


def test_an_async_view_without_transactions_runs(request: pytest.FixtureRequest, client: Client) -> None:
    assert client.post("/async-dispatch/7/").content == b"sold"
    request.getfixturevalue("atomic_requests")
    assert client.post("/async-opted-out/8/").content == b"sold"


def test_an_error_rolls_back_before_the_release(atomic_requests: None, client: Client, events: list[str]) -> None:
    assert client.post("/failing/7/").status_code == 500
    assert events == ROLLED_BACK
    assert not sold()


def test_a_lock_that_is_lost_before_commit_rolls_back(atomic_requests: None, client: Client, events: list[str]) -> None:
    response = client.post("/losing/7/")
    assert response.status_code == 503
    assert response.json()["code"] == "lock_lost"
    assert events == ["acquire stock:7", "BEGIN", "body", "ROLLBACK"]
    assert not sold()


@pytest.mark.parametrize("view", ["forced", "forced-around", "forced-several"])
def test_a_lock_that_an_operator_freed_is_noticed_before_commit(
    view: str, atomic_requests: None, client: Client, events: list[str]
) -> None:
    response = client.post(f"/{view}/7/")
    assert response.status_code == 503
    assert response.json()["code"] == "lock_lost"
    assert "COMMIT" not in events
    assert not sold()


def test_an_outer_lock_is_not_asked_about_elsewhere(atomic_requests: None, client: Client, events: list[str]) -> None:
    assert client.post("/stacked/7/").content == b"sold"
    distributed_lock("stock:<pk>", atomic=True)(create)(8)


def test_a_loss_that_shows_after_commit_is_logged(
    atomic_requests: None, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.post("/forced-late/7/").content == b"sold"
    assert sold()
    (record,) = [record for record in caplog.records if "is done, but" in record.getMessage()]
    assert record.levelname == "ERROR"


@pytest.mark.parametrize("view", ["losing-late", "lost-method"])
def test_an_answer_to_a_lost_lock_rolls_djangos_transaction_back(
    view: str, atomic_requests: None, client: Client
) -> None:
    assert client.post(f"/{view}/7/").status_code == 503
    assert not sold()


def test_a_method_of_a_mixin_is_too_late_and_says_so_once(
    atomic_requests: None, client: Client, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    client.post("/mixin/7/")
    client.post("/mixin/8/")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "MixinPost.post" in record.getMessage()
    assert "derives from View" in record.getMessage()
    assert events[:2] == ["BEGIN", "acquire stock:7"]
    assert events[-2:] == ["release stock:8", "COMMIT"]


def test_taken_locks_are_answered_without_a_transaction(
    atomic_requests: None, client: Client, events: list[str], taken: Holder
) -> None:
    with taken("stock:7"):
        events.clear()
        assert client.post("/at-once/7/").status_code == 423
        assert events == []


# ---- functions -----------------------------------------------------------------------------------------------


def create(pk: int) -> None:
    sell()


def test_a_function_has_a_transaction_when_it_asks_for_one(events: list[str]) -> None:
    distributed_lock("stock:<pk>")(create)(6)
    assert "BEGIN" not in events[:3]
    events.clear()
    distributed_lock("stock:<pk>", atomic=True)(create)(7)
    assert events == LOCKED


def test_a_function_inside_a_transaction_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    @distributed_lock("stock:<pk>")
    def warned_once(pk: int) -> None: ...

    for pk in 7, 8:
        with transaction.atomic():
            warned_once(pk)
    (record,) = caplog.records
    assert "warned_once" in record.getMessage()
    assert "atomic=True" in record.getMessage()


@pytest.mark.parametrize("atomic", [False, "auto"])
def test_no_warning_where_none_is_due(caplog: pytest.LogCaptureFixture, atomic: Any) -> None:
    @distributed_lock("stock:<pk>", atomic=atomic)
    def quiet(pk: int) -> None: ...

    quiet(7)
    if atomic is False:
        with transaction.atomic():
            quiet(7)
    with rlock("stock:7"), transaction.atomic():
        quiet(7)  # held before BEGIN, and beyond COMMIT
    assert not caplog.records


def test_a_lost_lock_inside_a_larger_transaction_is_told_even_after_its_own_block() -> None:
    @distributed_lock("stock:<pk>", atomic=True)
    def take(pk: int) -> None:
        free_by_force("stock:7")
        create(pk)

    with pytest.raises(LockLostError), transaction.atomic():
        take(7)
    assert not sold()


def test_committed_work_stays_when_redis_goes(own_server: OwnServer) -> None:
    server = own_server()

    @distributed_lock("stock:<pk>", atomic=True)
    def take(pk: int) -> str:
        transaction.on_commit(server.kill)
        create(pk)
        return "sold"

    assert take(7) == "sold"
    assert sold()
    assert not connection.in_atomic_block
