"""A response that renders late keeps its lock until it is rendered, whether that succeeds or not."""

import asyncio
import gc
import pickle
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.deprecation import MiddlewareMixin
from django.views.generic import ListView, TemplateView
from pytest_django import Settings

from django_rlock import distributed_lock, rlock
from django_rlock.locks.holds import HOLDS
from tests.background import until_clean

TEMPLATE = "{{ held }} {{ fail }}"


def is_held() -> str:
    return "held" if rlock("stock:7").locked() else "free"


def fail() -> None:
    raise ZeroDivisionError


def template(text: str = TEMPLATE) -> Any:
    return engines["django"].from_string(text)


@distributed_lock("stock:7")
def function(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, template(), {"held": is_held})


@distributed_lock("stock:7")
async def afunction(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, template(), {"held": is_held})


@distributed_lock("stock:7")
def failing(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, template(), {"held": is_held, "fail": fail})


@method_decorator(distributed_lock("stock:7"), name="dispatch")
class Generic(TemplateView):
    def get_template_names(self) -> Any:
        return template()

    extra_context = {"held": is_held}


@method_decorator(distributed_lock("stock:7"), name="dispatch")
class Listing(ListView):  # type: ignore[type-arg]
    model = Group
    extra_context = {"held": is_held}

    def get_template_names(self) -> Any:
        return template("{{ held }} {% for group in object_list %}{{ group.name }}{% endfor %}")


stacked = distributed_lock("outer:7")(function)
several = distributed_lock("stock:7", "stock:8")(function.__wrapped__)  # type: ignore[attr-defined]
VIEWS = {
    "function": function,
    "afunction": afunction,
    "generic": Generic.as_view(),
    "listing": Listing.as_view(),
    "stacked": stacked,
    "several": several,
}
urlpatterns = [path(f"{name}/", view) for name, view in {**VIEWS, "failing": failing, "replaced": function}.items()]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]


class Replacing(MiddlewareMixin):
    """Replaces a response that would render late."""

    def process_template_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        return SimpleTemplateResponse(template("another")) if request.path == "/replaced/" else response


@pytest.fixture(autouse=True)
def _middleware(settings: Settings) -> None:
    settings.MIDDLEWARE = [f"{__name__}.Replacing"]


@pytest.mark.parametrize("get", [Client().get, async_to_sync(AsyncClient().get)], ids=["WSGI", "ASGI"])
@pytest.mark.parametrize("view", VIEWS)
def test_it_is_rendered_under_the_lock(view: str, get: Any) -> None:
    assert get(f"/{view}/").content.startswith(b"held")
    assert is_held() == "free"
    assert HOLDS.snapshot() == []


def test_a_failure_gives_it_back() -> None:
    assert Client(raise_request_exception=False).get("/failing/").status_code == 500
    assert is_held() == "free"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_is_never_rendered_gives_it_back() -> None:
    assert Client().get("/replaced/").content == b"another"
    gc.collect()
    until_clean()
    assert is_held() == "free"
    assert HOLDS.snapshot() == []


def test_who_holds_it_besides_keeps_it() -> None:
    with rlock("stock:7"):
        assert Client().get("/function/").content.startswith(b"held")
        assert is_held() == "held"
    assert is_held() == "free"


def test_what_is_rendered_already_ends_with_the_view() -> None:
    @distributed_lock("stock:7")
    def view(request: HttpRequest) -> HttpResponse:
        return TemplateResponse(request, template(), {"held": is_held}).render()

    assert view(RequestFactory().get("/")).content.startswith(b"held")
    assert is_held() == "free"


def test_rendering_leaves_no_trace() -> None:
    response: Any = function(RequestFactory().get("/"))
    assert response.render() is response
    assert "render" not in vars(response)
    assert pickle.loads(pickle.dumps(response)).content == response.content


def test_it_may_be_rendered_inside_an_event_loop() -> None:
    async def render() -> None:
        response: Any = await afunction(RequestFactory().get("/"))
        response.context_data = {"held": "inside"}
        response.render()

    asyncio.run(render())
    until_clean()
    assert is_held() == "free"
