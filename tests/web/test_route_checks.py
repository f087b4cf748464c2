"""The check of key templates against the URLconf."""

import functools
import gc
import re
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from pytest_django import Settings
from rest_framework.decorators import action
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from django_rlock import distributed_lock

lock = distributed_lock("stock:<id>")


@lock
def view(request: HttpRequest, pk: int, **kwargs: Any) -> HttpResponse: ...  # type: ignore[empty-body]


@lock
async def aview(request: HttpRequest, pk: int, **kwargs: Any) -> HttpResponse: ...  # type: ignore[empty-body]


@lock
def view_with_default(request: HttpRequest, pk: int, id: int = 1) -> HttpResponse: ...  # type: ignore[empty-body]  # noqa: A002


@distributed_lock("cart:<request.user.pk>:<GET.q>:<header.X-Key>:<data.sku>:<nothing?>")
def from_request(request: HttpRequest) -> HttpResponse: ...  # type: ignore[empty-body]


@distributed_lock("stock:<sku:pk>")
def unknown_converter(request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body]


@distributed_lock(lambda request, pk: f"stock:{pk}")
def callable_template(request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body]


@method_decorator(lock, name="dispatch")
class Dispatch(View):
    pass


class Method(View):
    @lock
    def post(self, request: HttpRequest, pk: int, **kwargs: Any) -> HttpResponse: ...  # type: ignore[empty-body]


class OwnAttribute(View):
    @distributed_lock("stock:<self.kwargs.pk>")
    def post(self, request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body]


class Stocks(ViewSet):  # type: ignore[misc]
    @lock
    def retrieve(self, request: Any, pk: Any, **kwargs: Any) -> Any: ...

    @action(detail=True, methods=["post"])
    @lock
    def buy(self, request: Any, pk: Any, **kwargs: Any) -> Any: ...

    @distributed_lock("stock:<pk>")
    def destroy(self, request: Any, pk: Any) -> Any: ...


def problems(settings: Settings, *urlpatterns: Any) -> list[str]:
    urlconf = ModuleType("urlconf_of_this_test")
    urlconf.urlpatterns = urlpatterns  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urlconf
    messages = [message for message in run_checks(tags=["urls"]) if message.id == "django_rlock.E010"]
    assert all("key-templates" in (message.hint or "") for message in messages)
    return [message.msg for message in messages]


def router() -> SimpleRouter:
    router = SimpleRouter()
    router.register("stocks", Stocks, basename="stock")
    return router


@pytest.mark.parametrize(
    ("name", "callback"),
    [
        ("view", view),
        ("aview", aview),
        ("Dispatch", Dispatch.as_view()),
        ("Method.post", Method.as_view()),
        ("view", distributed_lock("stock:<pk>")(view)),
    ],
    ids=["function", "async function", "dispatch", "method", "stacked"],
)
def test_a_name_that_the_route_does_not_provide(settings: Settings, name: str, callback: Any) -> None:
    (problem,) = problems(settings, path("buy/<int:pk>/", callback))
    assert problem.startswith(f"{__name__}.{name}: stock:<id>: ")
    assert "route `buy/<int:pk>/`" in problem
    assert "'pk'" in problem
    assert problem.endswith("did you mean 'stock:<pk>'?")


def test_the_route_includes_what_it_is_included_under(settings: Settings) -> None:
    inner = [path("buy/", view)]
    assert not problems(settings, path("shops/<int:id>/", include(inner)))
    (problem,) = problems(settings, path("shops/<int:pk>/", include(inner)))
    assert "route `shops/<int:pk>/buy/`" in problem


@pytest.mark.parametrize(
    "pattern",
    [
        path("buy/<int:id>/", view),
        path("buy/", view, {"id": 7}),
        re_path(r"^buy/(?P<id>\d+)/$", view),
        path("shops/", include([path("buy/", view)]), {"id": 7}),
        path("buy/<int:pk>/", view_with_default),
        path("cart/", from_request),
        path("buy/<int:pk>/", callable_template),
        path("buy/<int:pk>/", OwnAttribute.as_view()),
    ],
)
def test_what_is_right(settings: Settings, pattern: Any) -> None:
    assert not problems(settings, pattern)


@pytest.mark.parametrize(
    "above",
    [lambda view: view, csrf_exempt, lambda view: login_required(require_POST(view)), functools.partial],
    ids=["alone", "csrf_exempt", "two", "partial"],
)
def test_a_view_without_a_key_template(settings: Settings, above: Any) -> None:
    @distributed_lock  # type: ignore[arg-type]
    def buy(request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body]

    (problem,) = problems(settings, path("buy/<int:pk>/", above(buy)))
    assert "@distributed_lock above buy() has no key template" in problem


def test_methods_without_a_key_template(settings: Settings) -> None:
    @method_decorator(distributed_lock, name="dispatch")
    class Sell(View):
        @distributed_lock  # type: ignore[arg-type]
        def get(self, request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body, misc]

        @method_decorator(login_required)
        @distributed_lock  # type: ignore[arg-type]
        def post(self, request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body, misc]

        @method_decorator(distributed_lock)
        def put(self, request: HttpRequest, pk: int) -> HttpResponse: ...  # type: ignore[empty-body]

    found = problems(settings, path("sell/<int:pk>/", Sell.as_view()))
    named = {problem.partition(" has no key template")[0].split()[-1] for problem in found}
    assert named == {"dispatch()", "get()", "post()", "put()"}


def test_an_unknown_converter(settings: Settings) -> None:
    (problem,) = problems(settings, path("buy/<int:pk>/", unknown_converter))
    assert "no path converter 'sku'" in problem


def test_view_sets_of_rest_framework(settings: Settings) -> None:
    found = problems(settings, path("api/", include(router().urls)))
    assert {problem.split(": ")[0].rpartition(".")[2] for problem in found} == {"retrieve", "buy"}
    assert len(found) == 2


def test_a_project_without_a_urlconf(settings: Settings) -> None:
    del settings.ROOT_URLCONF
    assert not [message for message in run_checks(tags=["urls"]) if message.id == "django_rlock.E010"]


def aliases() -> list[str]:
    messages = [message for message in run_checks() if message.id == "django_rlock.E011"]
    assert all("docs/checks.md#django_rlocke011" in (message.hint or "") for message in messages)
    return [message.msg for message in messages if message.msg.startswith(__name__)]


@pytest.mark.parametrize("on", ["function", "method", "dispatch"])
def test_an_alias_that_settings_do_not_have(settings: Settings, on: str) -> None:
    settings.RLOCK = {"stocks": {}}
    decorated: list[Any] = []
    if on == "dispatch":
        decorated.append(
            method_decorator(distributed_lock("x", using="nowhere"), name="dispatch")(type("V", (View,), {}))
        )
    else:
        decorated.append(distributed_lock("x", using="nowhere")(view if on == "function" else Method.post))
    (problem,) = aliases()
    assert re.fullmatch(rf"{__name__}, line \d+: @distributed_lock: RLOCK has no alias 'nowhere'\. Known .*", problem)
    decorated.clear()
    gc.collect()  # a class is part of a circle
    assert not aliases()


@pytest.mark.parametrize(
    ("found", "using"),
    [({"stocks": {}}, "stocks"), ({"stocks": {}}, "default"), ("told by another check", "nowhere")],
    ids=["known", "default", "wrong settings"],
)
def test_aliases_of_which_nothing_is_told(settings: Settings, found: Any, using: str) -> None:
    settings.RLOCK = found
    decorated = distributed_lock("x", using=using)(view)
    assert not aliases()
    del decorated
