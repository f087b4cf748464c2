"""A lock above what requires a login: a request of nobody gets the login page, not an error about the lock's name."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin, PermissionRequiredMixin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_rlock import distributed_lock
from django_rlock.locks.holds import HOLDS

lock = distributed_lock("cart:<request.user.pk>")


def holding(request: HttpRequest) -> HttpResponse:
    return HttpResponse(" ".join(hold.lock.name for hold in HOLDS.snapshot()))


async def aholding(request: HttpRequest) -> HttpResponse:
    return holding(request)


class Cart(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return holding(request)


class AsyncCart(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return holding(request)


@method_decorator(lock, name="dispatch")
class Above(LoginRequiredMixin, Cart):
    pass


@method_decorator(lock, name="dispatch")
class AsyncAbove(LoginRequiredMixin, AsyncCart):
    pass


class OwnDispatch(LoginRequiredMixin, Cart):
    @lock
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class Method(LoginRequiredMixin, View):
    @lock
    def get(self, request: HttpRequest) -> HttpResponse:
        return holding(request)


@method_decorator(lock, name="dispatch")
class Strict(PermissionRequiredMixin, Cart):
    permission_required = "auth.add_user"
    raise_exception = True


@method_decorator([lock, login_required], name="dispatch")
class Decorated(Cart):
    pass


VIEWS: dict[str, Any] = {
    "mixin": Above.as_view(),
    "async mixin": AsyncAbove.as_view(),
    "own dispatch": OwnDispatch.as_view(),
    "method": Method.as_view(),
    "decorator": lock(login_required(holding)),
    "async decorator": lock(login_required(aholding)),
    "permission": lock(permission_required("auth.add_user")(holding)),
    "right order": login_required(lock(holding)),
    "decorated dispatch": Decorated.as_view(),
    "around as_view": lock(login_required(Cart.as_view())),
}

urlpatterns = [path(f"{name.replace(' ', '-')}/", view) for name, view in VIEWS.items()]
urlpatterns += [
    path("elsewhere/", lock(login_required(login_url="/elsewhere/", redirect_field_name="to")(holding))),
    path("strict/", Strict.as_view()),
    path("open/", lock(holding)),
    path("optional/", distributed_lock("cart:<request.user.pk?>:<GET.q>")(login_required(holding))),
]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def get(client: Any, async_client: Any, url: str, view: Any) -> Any:
    return asyncio.run(async_client.get(url)) if iscoroutinefunction(view) else client.get(url)


@pytest.mark.parametrize("name", VIEWS)
def test_nobody_is_asked_to_log_in(client: Any, async_client: Any, name: str) -> None:
    url = f"/{name.replace(' ', '-')}/"
    response = get(client, async_client, url, VIEWS[name])
    assert (response.status_code, response["Location"]) == (302, f"/accounts/login/?next={url}")


@pytest.mark.parametrize("name", VIEWS)
def test_somebody_gets_the_view_under_its_lock(client: Any, async_client: Any, name: str) -> None:
    user = User.objects.create_superuser("ada")
    for each in client, async_client:
        each.force_login(user)
    response = get(client, async_client, f"/{name.replace(' ', '-')}/", VIEWS[name])
    assert response.content == f"cart:{user.pk}".encode()


@pytest.mark.parametrize(
    ("url", "status", "location"),
    [
        ("/elsewhere/", 302, "/elsewhere/?to=/elsewhere/"),
        ("/strict/", 403, None),
        ("/open/", 400, None),  # nothing below the lock requires a login
        ("/optional/", 400, None),  # the query is missing
    ],
)
def test_the_response_is_that_of_what_requires_the_login(
    client: Any, url: str, status: int, location: str | None
) -> None:
    response = client.get(url)
    assert (response.status_code, response.get("Location")) == (status, location)
