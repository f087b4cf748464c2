"""Projects test their views in Django's TestCase, whose transaction must not matter."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from django_rlock import distributed_lock
from tests.operators import free_by_force
from tests.web.test_transactions import losing

pytestmark = pytest.mark.django_db


def test_no_warning(atomic_requests: None, caplog: pytest.LogCaptureFixture) -> None:
    @distributed_lock("stock:<pk>")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("sold")

    @distributed_lock("stock:<pk>")
    def function(pk: int) -> None: ...

    view(RequestFactory().post("/"), pk=7)
    function(7)
    assert not caplog.records


def test_a_lost_lock_undoes_the_view_and_no_more(atomic_requests: None) -> None:
    @distributed_lock("stock:<pk>", lease_time=0.1)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return losing(request, pk)

    Group.objects.create(name="before")
    assert view(RequestFactory().post("/"), pk=7).status_code == 503
    assert [group.name for group in Group.objects.all()] == ["before"]


@pytest.mark.urls("tests.web.test_method_transactions")
@pytest.mark.parametrize("method", ["patch", "post"], ids=["with a lock", "without"])
def test_an_error_that_rest_framework_answers_undoes_the_view_and_no_more(
    method: str, atomic_requests: None, no_users: None, client: Client
) -> None:
    Group.objects.create(name="before")
    assert getattr(client, method)("/stocks/7/").status_code == 400
    assert [group.name for group in Group.objects.all()] == ["before"]


def test_the_transaction_of_the_lock_counts_as_committed(caplog: pytest.LogCaptureFixture) -> None:
    def free_at_commit(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith("RELEASE"):
            free_by_force("stock:7")
        return execute(sql, *args)

    @distributed_lock("stock:<pk>", atomic=True)
    def take(pk: int) -> str:
        return "sold"

    with connection.execute_wrapper(free_at_commit):
        assert take(7) == "sold"
    assert "is done, but" in caplog.text
