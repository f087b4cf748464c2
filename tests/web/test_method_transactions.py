"""The lock of one method of a class: around its transaction, and of no concern to those of the other methods."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.serializers import ModelSerializer
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet, ViewSet

from django_rlock import distributed_lock
from django_rlock._web import calls
from tests.operators import free_by_force
from tests.web.sale import LOCKED, ROLLED_BACK, UNLOCKED, sell, sold, tell, told


def respond() -> Response:
    return Response(sell())


lock = distributed_lock("stock:<pk>")


class Token(BaseAuthentication):  # type: ignore[misc]
    def authenticate(self, request: Any) -> Any:
        tell("authenticate")
        return User(pk=7), None


class Allowed(BasePermission):  # type: ignore[misc]
    def has_permission(self, request: Any, view: Any) -> bool:
        tell("permit")
        return "X-Refused" not in request.headers


class Throttle(BaseThrottle):  # type: ignore[misc]
    def allow_request(self, request: Any, view: Any) -> bool:
        tell("throttle")
        return True


class Stocks(ViewSet):  # type: ignore[misc]
    @lock
    def update(self, request: Any, pk: int) -> Response:
        return respond()

    def list(self, request: Any, pk: int) -> Response:
        return respond()

    @action(detail=True)
    @lock
    def below(self, request: Any, pk: int) -> Response:
        return respond()

    @lock
    @action(detail=True)
    def above(self, request: Any, pk: int) -> Response:
        return respond()

    @above.mapping.delete
    def undo(self, request: Any, pk: int) -> Response:
        return respond()

    @lock
    def partial_update(self, request: Any, pk: int) -> Response:
        sell()
        raise ValidationError("no")

    def create(self, request: Any, pk: int) -> Response:
        sell()
        raise ValidationError("no")

    @lock
    def destroy(self, request: Any, pk: int) -> Response:
        free_by_force("stock:7")
        return respond()


class OwnDispatch(Stocks):
    """Inherits the methods."""

    authentication_classes = [Token]
    permission_classes = [Allowed]
    throttle_classes = [Throttle]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)

    @action(detail=True)
    @lock
    def own(self, request: Any, pk: int) -> Response:
        return respond()


class Groups(ModelSerializer):  # type: ignore[misc]
    class Meta:
        model = Group
        fields = ["name"]


class Generic(ModelViewSet):  # type: ignore[misc]
    queryset = Group.objects.all()
    serializer_class = Groups

    @lock
    def create(self, request: Any, pk: int) -> Any:
        tell("body")
        return super().create(request, pk=pk)

    destroy = lock(ModelViewSet.destroy)

    @distributed_lock("late:7")
    def perform_update(self, serializer: Any) -> None:
        tell("body")
        serializer.save()


class ApiView(APIView):  # type: ignore[misc]
    @lock
    def get(self, request: Any, pk: int) -> Response:
        return respond()

    def post(self, request: Any, pk: int) -> Response:
        return respond()


class Plain(View):
    @lock
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(sell())

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(sell())


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class OptedOut(Plain):
    pass


@transaction.non_atomic_requests
@api_view(["GET"])
@lock
def function(request: Any, pk: int) -> Response:
    return respond()


@api_view(["GET"])
@lock
def late_function(request: Any, pk: int) -> Response:
    return respond()


ACTIONS = {
    "get": "list",
    "post": "create",
    "put": "update",
    "patch": "partial_update",
    "delete": "destroy",
}
urlpatterns = [
    path("stocks/<int:pk>/", Stocks.as_view(ACTIONS)),
    path("stocks/<int:pk>/below/", Stocks.as_view({"get": "below"})),
    path("stocks/<int:pk>/above/", Stocks.as_view(dict(Stocks.above.mapping))),
    path("dispatch/<int:pk>/", OwnDispatch.as_view(ACTIONS)),
    path("dispatch/<int:pk>/own/", OwnDispatch.as_view({"get": "own"})),
    path("generic/<int:pk>/", Generic.as_view({"post": "create", "put": "update", "delete": "destroy"})),
    path("api-view/<int:pk>/", ApiView.as_view()),
    path("plain/<int:pk>/", Plain.as_view()),
    path("around/<int:pk>/", distributed_lock("around:<pk>")(Plain.as_view())),
    path("opted-out/<int:pk>/", OptedOut.as_view()),
    path("function/<int:pk>/", function),
    path("late-function/<int:pk>/", late_function),
]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.usefixtures("no_users", "events")]


@pytest.fixture(autouse=True)
def _never_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_warned_functions", set())


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("put", "/stocks/7/"),
        ("get", "/stocks/7/below/"),
        ("get", "/stocks/7/above/"),
        ("get", "/api-view/7/"),
        ("head", "/api-view/7/"),
        ("get", "/plain/7/"),
        ("head", "/plain/7/"),
        ("get", "/opted-out/7/"),
        ("get", "/function/7/"),
    ],
)
def test_the_transaction_is_inside_the_lock(
    method: str,
    url: str,
    atomic_requests: None,
    client: Client,
    events: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert getattr(client, method)(url).status_code == 200
    assert events == LOCKED
    assert sold()
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "url"),
    [("get", "/stocks/7/"), ("delete", "/stocks/7/above/"), ("post", "/api-view/7/"), ("post", "/plain/7/")],
)
def test_other_methods_keep_their_transactions(
    method: str, url: str, atomic_requests: None, client: Client, events: list[str]
) -> None:
    assert getattr(client, method)(url).status_code == 200
    assert events == UNLOCKED


def test_a_class_that_opted_out_is_left_alone(atomic_requests: None, client: Client, events: list[str]) -> None:
    client.post("/opted-out/7/")
    assert events == ["body"]


@pytest.mark.parametrize(("method", "expected"), [("patch", ROLLED_BACK), ("post", ["BEGIN", "body", "ROLLBACK"])])
def test_an_error_that_the_framework_answers_is_rolled_back(
    method: str, expected: list[str], atomic_requests: None, client: Client, events: list[str]
) -> None:
    assert getattr(client, method)("/stocks/7/").status_code == 400
    assert events == expected
    assert not sold()


def test_a_lock_that_was_freed_is_noticed_before_commit(
    atomic_requests: None, client: Client, events: list[str]
) -> None:
    response = client.delete("/stocks/7/")
    assert (response.status_code, response.json()["code"]) == (503, "lock_lost")
    assert response["Cache-Control"] == "no-store"
    assert "COMMIT" not in events
    assert not sold()


def test_authentication_permissions_and_throttles_come_before_the_lock(
    atomic_requests: None, client: Client, events: list[str]
) -> None:
    before = ["authenticate", "permit", "throttle"]
    client.put("/dispatch/7/")
    client.get("/dispatch/7/own/")
    assert events == [*before, *LOCKED, *before, "acquire stock:7", "BEGIN", "body", *events[-2:]]
    events.clear()
    assert client.put("/dispatch/7/", headers={"X-Refused": "1"}).status_code == 403
    assert events == before[:2]
    client.get("/dispatch/7/")
    assert events[2:4] == ["BEGIN", "authenticate"]


def test_generic_views(atomic_requests: None, client: Client, events: list[str]) -> None:
    assert client.post("/generic/7/", {"name": "seven"}).status_code == 201
    assert events == LOCKED
    pk = Group.objects.get().pk
    events.clear()
    assert client.delete(f"/generic/{pk}/").status_code == 204
    assert events == [f"acquire stock:{pk}", "BEGIN", "COMMIT", f"release stock:{pk}"]


def test_a_function_below_api_view_alone_is_too_late_and_says_what_to_do(
    atomic_requests: None, client: Client, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    client.get("/late-function/7/")
    assert events == ["BEGIN", "acquire stock:7", "body", "release stock:7", "COMMIT"]
    (record,) = caplog.records
    assert "late_function takes its lock inside" in record.getMessage()
    assert "@transaction.non_atomic_requests above that" in record.getMessage()


def test_a_method_that_gets_no_request_is_too_late_and_says_so(
    atomic_requests: None, client: Client, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    pk = Group.objects.create(name="six").pk
    events.clear()
    assert client.put(f"/generic/{pk}/", {"name": "seven"}, "application/json").status_code == 200
    assert events == ["BEGIN", "acquire late:7", "body", "release late:7", "COMMIT"]
    assert "perform_update" in caplog.text


def test_a_decorator_around_the_class_needs_its_lock_for_commit(
    atomic_requests: None, client: Client, events: list[str]
) -> None:
    def free(what: str, **_: Any) -> None:
        free_by_force("around:7")

    client.post("/around/7/")
    client.get("/around/7/")
    around = ["acquire around:7", *UNLOCKED, "release around:7", "acquire around:7", *LOCKED, "release around:7"]
    assert events == around
    told.connect(free)
    try:
        for method in client.post, client.get:
            events.clear()
            assert method("/around/7/").status_code == 503
            assert "COMMIT" not in events
    finally:
        told.disconnect(free)
