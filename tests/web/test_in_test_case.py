"""Projects test their views in Django's TestCase, whose transaction is nobody's concern."""

import pytest
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_rlock import distributed_lock, rlock
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


def test_the_transaction_of_the_lock_counts_as_committed(caplog: pytest.LogCaptureFixture) -> None:
    @distributed_lock("stock:<pk>", atomic=True)
    def take(pk: int) -> str:
        rlock(f"stock:{pk}").force_release()
        return "sold"

    assert take(7) == "sold"
    assert "is done, but" in caplog.text
