"""Views of Django REST framework: the lock's errors go through the project's exception handler."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from pytest_django import Settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_rlock import LockTimeoutError, distributed_lock, rlock
from django_rlock.locks.holds import HOLDS
from tests.web.conftest import Holder


def holding() -> Response:
    return Response([(hold.lock.name, hold.context) for hold in HOLDS.snapshot()])


class Buy(APIView):  # type: ignore[misc]
    @distributed_lock("stock:<data.sku>", wait_time=0.1)
    def post(self, request: Any) -> Response:
        return holding()


@method_decorator(distributed_lock("stock:<data.sku>", wait_time=0.1), name="dispatch")
class BuyAround(APIView):  # type: ignore[misc]
    def post(self, request: Any) -> Response:
        return holding()


class Stocks(ViewSet):  # type: ignore[misc]
    @action(detail=False, methods=["post"])
    @distributed_lock("stock:<data.sku>", wait_time=0.1)
    def buy(self, request: Any) -> Response:
        return holding()


@api_view(["POST"])
@distributed_lock("stock:<data.sku>", wait_time=0.1)
def buy(request: Any) -> Response:
    return holding()


INNER = {"method": Buy.as_view(), "action": Stocks.as_view({"post": "buy"}), "function": buy}
VIEWS = {**INNER, "dispatch": BuyAround.as_view()}


def post(view: Any, **data: Any) -> Any:
    response = view(APIRequestFactory().post("/buy/", data, format="json"))
    if hasattr(response, "render"):
        response.render()
    return response


pytestmark = pytest.mark.usefixtures("no_users")


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_key_is_read_from_the_data(view: Any) -> None:
    assert post(view, sku="a1").data == [("stock:a1", {"route": "POST"})]
    assert not rlock("stock:a1").locked()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_taken_lock(view: Any, taken: Holder) -> None:
    with taken("stock:a1"):
        response = post(view, sku="a1")
    assert response.status_code == 423
    assert response["Cache-Control"] == "no-store"
    assert int(response["Retry-After"]) in range(1, 6)
    assert b'"code":"locked"' in response.content.replace(b" ", b"")


def test_the_projects_handler_sees_the_error(settings: Settings, taken: Holder) -> None:
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": handler}
    with taken("stock:a1"):
        assert post(Buy.as_view(), sku="a1").data == "stock:a1"


def handler(error: Exception, context: Any) -> Response:
    assert isinstance(error.__cause__, LockTimeoutError)
    return Response(error.__cause__.lock_name)


def test_html_is_negotiated_by_rest_framework(taken: Holder) -> None:
    request = RequestFactory().post("/buy/", b'{"sku": "a1"}', "application/json", headers={"Accept": "text/html"})
    with taken("stock:a1"):
        assert BuyAround.as_view()(request)["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("view", INNER.values(), ids=INNER)
def test_a_missing_value_is_the_frameworks_400(view: Any) -> None:
    response = post(view)
    assert response.status_code == 400
    assert response.data["detail"].code == "parse_error"
    assert "sku" in response.data["detail"]


class Basic(BaseAuthentication):  # type: ignore[misc]
    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        return None if name is None else (User(pk=7, username=name), None)

    def authenticate_header(self, request: Any) -> str:
        return "Basic"


class Cart(APIView):  # type: ignore[misc]
    authentication_classes = [Basic]

    @distributed_lock("cart:<request.user.pk>")
    def post(self, request: Any) -> Response:
        return holding()


class SessionCart(Cart):
    authentication_classes = []


@pytest.mark.parametrize(("view", "status"), [(Cart, 401), (SessionCart, 403)])
def test_an_anonymous_user_is_asked_to_log_in(settings: Settings, view: Any, status: int) -> None:
    settings.REST_FRAMEWORK = {"UNAUTHENTICATED_USER": AnonymousUser}
    assert view.as_view()(APIRequestFactory().post("/")).status_code == status
    if view is Cart:
        assert view.as_view()(APIRequestFactory().post("/", headers={"X-User": "ann"})).data[0][0] == "cart:7"
