"""A lock error becomes a response only where the response is sent; everywhere else it is raised."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, User
from django.contrib.syndication.views import Feed as SyndicationFeed
from django.core.checks import run_checks
from django.db import transaction
from django.dispatch import Signal, receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import decorator_from_middleware, method_decorator, sync_and_async_middleware
from django.views import View
from django.views.decorators.cache import cache_page, never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from ninja import NinjaAPI
from pytest_django import Settings
from rest_framework.decorators import action, api_view
from rest_framework.generics import UpdateAPIView
from rest_framework.permissions import BasePermission
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet, ModelViewSet

from django_rlock import LockLostError, LockTimeoutError, LockUnavailableError, distributed_lock
from django_rlock.ninja import register
from tests.conftest import OwnServer
from tests.operators import free_by_force
from tests.web.conftest import Holder

MIDDLEWARE = "django_rlock.middleware.LockMiddleware"

lock: Any = distributed_lock("stock:7", wait_time=0)


def respond(*_: Any, **__: Any) -> HttpResponse:
    return HttpResponse("done")


async def arespond(*_: Any, **__: Any) -> HttpResponse:
    return HttpResponse("done")


# ---- views -----------------------------------------------------------------------------------------------------------


class Passing:
    def __init__(self, get_response: Any) -> None: ...


@sync_and_async_middleware
def passing(get_response: Any) -> Any:
    @wraps(get_response)
    def call(request: HttpRequest) -> Any:
        return get_response(request)

    return call


class Post(View):
    @lock
    def post(self, request: HttpRequest) -> HttpResponse:
        return respond()

    put = lock(respond)


class Derived(Post):
    def post(self, request: HttpRequest) -> HttpResponse:
        return super().post(request)


def delegating(request: HttpRequest) -> Any:
    return Post.as_view()(request)


@method_decorator([csrf_exempt, lock], name="dispatch")
class Twice(Post):
    pass


class Decorated(View):
    @method_decorator([never_cache, lock])
    def post(self, request: HttpRequest) -> HttpResponse:
        return respond()


class AsyncPost(View):
    @lock
    async def post(self, request: HttpRequest) -> HttpResponse:
        return respond()


class Feed:
    @lock
    def __call__(self, request: HttpRequest) -> HttpResponse:
        return respond()

    @lock
    def method(self, request: HttpRequest) -> HttpResponse:
        return respond()

    of_class: Any = classmethod(lock(respond))
    static: Any = staticmethod(lock(respond))


class Plain:
    def __call__(self, request: HttpRequest) -> HttpResponse:
        return respond()

    def method(self, request: HttpRequest) -> HttpResponse:
        return respond()


class AsyncPlain:
    async def __call__(self, request: HttpRequest) -> HttpResponse:
        return respond()


class LatestFeed(SyndicationFeed):  # type: ignore[type-arg]
    title = description = link = "/latest/"

    def items(self) -> list[Any]:
        return []


def sized(request: HttpRequest, size: int) -> HttpResponse:
    return HttpResponse(f"{size}")


class Stocks(GenericViewSet):  # type: ignore[misc]
    @action(detail=False, methods=["post"])
    @lock
    def buy(self, request: Any) -> HttpResponse:
        return respond()

    @lock
    def create(self, request: Any) -> HttpResponse:
        return respond()


class Generic(ModelViewSet):  # type: ignore[misc]
    update = lock(ModelViewSet.update)


class Update(UpdateAPIView):  # type: ignore[misc]
    @lock
    def update(self, request: Any) -> HttpResponse:
        return respond()


class Groups(admin.ModelAdmin):  # type: ignore[type-arg]
    @lock
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return respond()

    @lock
    def refresh(self, request: HttpRequest) -> HttpResponse:
        return respond()

    def get_urls(self) -> Any:
        return [path("refresh/", self.admin_site.admin_view(self.refresh)), *super().get_urls()]


site = admin.AdminSite("locked")
site.register(Group, Groups)

api = NinjaAPI(urls_namespace="plain")
api.post("/operation/")(lock(respond))
api.put("/operation/")(lock(arespond))
registered = NinjaAPI(urls_namespace="registered")
register(registered)
registered.post("/operation/")(distributed_lock("stock:7", wait_time=0, status=429)(respond))

VIEWS: dict[str, Any] = {
    "function": lock(respond),
    "async": lock(arespond),
    "stacked": distributed_lock("outer")(lock(respond)),
    "partial": partial(lock(respond), size=3),
    "locked-partial": distributed_lock("stock:<size>", wait_time=0)(partial(sized, size=7)),
    "locked-object": lock(Plain()),
    "locked-async-object": lock(AsyncPlain()),
    "locked-feed": lock(LatestFeed()),
    "locked-method": lock(Plain().method),
    "decorated": csrf_exempt(require_POST(cache_page(60)(lock(never_cache(respond))))),
    "decorator_from_middleware": decorator_from_middleware(Passing)(lock(respond)),
    "sync_and_async_middleware": passing(lock(respond)),
    "admin_view": site.admin_view(lock(respond)),
    "method": Post.as_view(),
    "super": Derived.as_view(),
    "dispatch": Twice.as_view(),
    "method_decorator": Decorated.as_view(),
    "async-method": AsyncPost.as_view(),
    "as_view": csrf_exempt(lock(Post.as_view())),
    "delegated-to-a-class": delegating,
    "callable": Feed(),
    "bound-method": Feed().method,
    "class-method": Feed.of_class,
    "static-method": Feed.static,
    "api_view": never_cache(api_view(["POST"])(never_cache(lock(respond)))),
    "action": Stocks.as_view({"post": "buy"}),
    "view-set": Stocks.as_view({"post": "create"}),
    "partial_update": Generic.as_view({"post": "partial_update"}),
}
SENT = {
    **{name: ("post", f"/{name}/") for name in VIEWS},
    "generic view": ("put", "/update/"),
    "ModelAdmin": ("post", "/admin/auth/group/"),
    "view of a ModelAdmin": ("post", "/admin/auth/group/refresh/"),
    "operation": ("post", "/ninja/operation/"),
    "async operation": ("put", "/ninja/operation/"),
}


# ---- other callables -------------------------------------------------------------------------------------------------


def unreachable(*_: Any, **__: Any) -> Any:
    raise AssertionError("The body ran without the lock.")


async def aunreachable(*_: Any, **__: Any) -> Any:
    raise AssertionError("The body ran without the lock.")


charge, acharge = lock(unreachable), lock(aunreachable)
paid = Signal()
receiver(paid)(charge)


def charged(answer: object) -> HttpResponse:
    """The response of a view that does not look at the answer."""
    return HttpResponse(f"charged: {answer}")


async def acharging(request: HttpRequest) -> HttpResponse:
    return charged(await acharge(request))


def in_a_thread(request: HttpRequest) -> HttpResponse:
    with ThreadPoolExecutor(1) as pool:
        return charged(pool.submit(charge, request).result())


class OwnMethod(View):
    charge = charge

    def post(self, request: HttpRequest) -> HttpResponse:
        return charged(self.charge(request))


class SetUp(View):
    setup = charge
    post = charged


class Basket:
    charge = charge
    decorated = method_decorator(lock)(unreachable)


class Permission(BasePermission):  # type: ignore[misc]
    has_permission = charge


class Permitted(APIView):  # type: ignore[misc]
    permission_classes = [Permission]

    def post(self, request: Any) -> HttpResponse:
        return charged(True)


class Helped(APIView):  # type: ignore[misc]
    def post(self, request: Any) -> HttpResponse:
        return charged(charge(request))


class Delegating(Stocks):
    def list(self, request: Any) -> HttpResponse:
        return charged(self.buy(request))


@api.post("/charge/")
def charging_operation(request: Any) -> str:
    return f"charged: {charge(request)}"


HELPERS: dict[str, Any] = {
    "helper": lambda request: charged(charge(request)),
    "async-helper": acharging,
    "keyword": lambda request: charged(charge(request=request)),
    "receiver": lambda request: charged(paid.send(None, request=request)),
    "thread": in_a_thread,
    "view-in-a-view": lambda request: charged(VIEWS["function"](request)),
    "view-in-a-thread": lambda request: charged(VIEWS["decorated"](request)),
    "own-method": OwnMethod.as_view(),
    "setup": SetUp.as_view(),
    "method-of-another-class": lambda request: charged(Basket().charge(request)),
    "decorated-method": lambda request: charged(Basket().decorated(request)),
    "permission": Permitted.as_view(),
    "helper-of-an-api-view": Helped.as_view(),
    "action-of-another": Delegating.as_view({"post": "list"}),
    "context-processor": lambda request: render(request, "admin/404.html"),
}


@distributed_lock(lambda request, pk="6": f"stock:{pk}", wait_time=0)
def recursive(request: HttpRequest, pk: str = "6") -> HttpResponse:
    return charged(recursive(request, pk="7")) if pk == "6" else unreachable()


OUTER = {
    "helper-of-a-locked-view": distributed_lock("outer")(HELPERS["helper"]),
    "async-helper-of-a-locked-view": distributed_lock("outer")(acharging),
    "recursive": recursive,
}


class LockingMiddleware:
    """Locks before the URL is resolved, or before the view is called."""

    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        if request.path == "/unresolved/":
            charge(request)
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_: Any) -> Any:
        return charge(request) if request.path == "/processed/" else None


class HookedGroups(admin.ModelAdmin):  # type: ignore[type-arg]
    actions = ["publish"]

    @distributed_lock("group:<obj.pk>", wait_time=0)
    def save_model(self, request: Any, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)

    @distributed_lock("group:<obj.pk>", wait_time=0)
    def delete_model(self, request: Any, obj: Any) -> None:
        super().delete_model(request, obj)

    @distributed_lock("permission", wait_time=0)
    def has_module_permission(self, request: Any) -> bool:
        return super().has_module_permission(request)

    @distributed_lock("queryset", wait_time=0)
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request)

    @distributed_lock("published", wait_time=0)
    def publish(self, request: Any, queryset: Any) -> None: ...


class HookedInline(admin.TabularInline):  # type: ignore[type-arg]
    model = User.groups.through

    @lock
    def get_extra(self, request: Any, obj: Any = None, **kwargs: Any) -> int:
        return 0


class HookedUsers(admin.ModelAdmin):  # type: ignore[type-arg]
    inlines = [HookedInline]


hooked = admin.AdminSite("hooked")
hooked.register(Group, HookedGroups)
hooked.register(User, HookedUsers)


class Backend:
    @distributed_lock("login:<username>", wait_time=0)
    def authenticate(self, request: Any, username: str = "", password: str = "") -> Any:
        return None  # nobody's password is right


class SkippingBackend:
    @distributed_lock("login:<username>", wait_time=0, on_locked="skip")
    def authenticate(self, request: Any, username: str = "", password: str = "") -> Any:
        return None


urlpatterns = [
    *(path(f"{name}/", view) for name, view in {**VIEWS, **HELPERS, **OUTER}.items()),
    path("processed/", respond),
    path("update/", Update.as_view()),
    path("admin/", site.urls),
    path("hooked/", hooked.urls),
    path("ninja/", api.urls),
    path("registered/", registered.urls),
]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _usual(settings: Settings, no_users: None) -> None:
    options = {"context_processors": [f"{__name__}.charge"]}
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "OPTIONS": options}]


@pytest.fixture
def staff(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ada"))
    return client


@pytest.mark.parametrize(("method", "url"), SENT.values(), ids=SENT)
def test_a_view_responds(method: str, url: str, staff: Client, taken: Holder) -> None:
    with taken("stock:7"):
        for _ in range(2):
            response = getattr(staff, method)(url)
            assert response.status_code == 423, response.content
            assert response.json()["code"] == "locked"


@pytest.mark.parametrize("name", [name for name in VIEWS if name.startswith("locked-")])
def test_an_object_as_a_view_runs_under_its_lock(name: str, client: Client, atomic_requests: None) -> None:
    async_view = name == "locked-async-object"
    with pytest.raises(RuntimeError, match="async views") if async_view else nullcontext():
        assert client.post(f"/{name}/").status_code == 200
    assert VIEWS[name].__name__ in {"sized", "Plain", "AsyncPlain", "LatestFeed", "method"}
    assert VIEWS[name].__module__ == __name__


def test_an_object_inside_a_transaction_warns_by_its_class(caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        lock(Plain())(RequestFactory().get("/"))
    assert f"{__name__}.Plain takes its lock inside" in caplog.text


def test_an_operation_of_a_registered_api_has_its_own_status(client: Client, taken: Holder) -> None:
    with taken("stock:7"):
        assert client.post("/registered/operation/").status_code == 429


@pytest.mark.parametrize("url", [*(f"/{name}/" for name in HELPERS), "/ninja/charge/"])
def test_another_callable_raises(url: str, client: Client, taken: Holder, settings: Settings) -> None:
    with taken("stock:7"):
        with pytest.raises(LockTimeoutError, match="stock:7"):
            client.post(url)
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
        response = Client().post(url)
        assert (response.status_code, response.json()["code"]) == (423, "locked")


@pytest.mark.parametrize("url", ["/unresolved/", "/processed/"])
def test_the_middleware_responds_for_other_middleware(url: str, taken: Holder, settings: Settings) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE, f"{__name__}.LockingMiddleware"]
    with taken("stock:7"):
        for client in Client(raise_request_exception=False), AsyncClient(raise_request_exception=False):
            response: Any = client.post(url)
            response = asyncio.run(response) if asyncio.iscoroutine(response) else response
            assert (response.status_code, response.json()["code"]) == (423, "locked")
        settings.MIDDLEWARE = settings.MIDDLEWARE[1:]
        with pytest.raises(LockTimeoutError):
            Client().post(url)


@pytest.mark.parametrize("name", OUTER)
def test_the_view_responds_for_another_call_inside(name: str, client: Client, taken: Holder) -> None:
    with taken("stock:7"):
        response = client.post(f"/{name}/")
        assert (response.status_code, response.json()["code"]) == (423, "locked")
        # The same in a test that calls the view itself.
        if "async" not in name:
            assert OUTER[name](RequestFactory().post("/")).status_code == 423


def test_other_lock_errors_are_raised_too(client: Client, own_server: OwnServer) -> None:
    server = own_server()

    @distributed_lock("stock:7")
    def lose(request: HttpRequest) -> None:
        free_by_force("stock:7")

    with pytest.raises(LockLostError):
        lose(request=RequestFactory().get("/"))
    server.kill()
    with pytest.raises(LockUnavailableError):
        client.post("/helper/")


@pytest.mark.parametrize(
    ("name", "method", "url", "data"),
    [
        ("group:1", "post", "/hooked/auth/group/1/change/", {"name": "changed"}),
        ("group:1", "post", "/hooked/auth/group/1/delete/", {"post": "yes"}),
        ("permission", "get", "/hooked/", {}),
        ("queryset", "get", "/hooked/auth/group/", {}),
        ("published", "post", "/hooked/auth/group/", {"action": "publish", "_selected_action": "1"}),
    ],
    ids=["save_model", "delete_model", "permission", "queryset", "action"],
)
def test_the_admin_does_not_say_that_work_was_done(
    name: str, method: str, url: str, data: Any, staff: Client, taken: Holder, settings: Settings
) -> None:
    group = Group.objects.create(pk=1, name="before")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "OPTIONS": {"context_processors": []}}]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
    with taken(name):
        assert getattr(staff, method)(url, data).status_code == 423
    group.refresh_from_db()
    assert group.name == "before"
    assert not LogEntry.objects.exists()


def test_a_taken_lock_lets_nobody_log_in(settings: Settings, taken: Holder) -> None:
    settings.AUTHENTICATION_BACKENDS = [f"{__name__}.Backend"]
    for request in None, RequestFactory().post("/"):
        with taken("login:ada"), pytest.raises(LockTimeoutError):
            authenticate(request, username="ada", password="wrong")
    settings.AUTHENTICATION_BACKENDS = [f"{__name__}.SkippingBackend"]
    with taken("login:ada"):
        assert authenticate(RequestFactory().post("/"), username="ada", password="wrong") is None


def test_the_check_names_hooks(settings: Settings) -> None:
    settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", f"{__name__}.Backend"]
    found = [message for message in run_checks() if message.id == "django_rlock.W012"]
    hooks = (
        *("HookedGroups.delete_model", "HookedGroups.get_queryset", "HookedGroups.has_module_permission"),
        *("HookedGroups.save_model", "HookedInline.get_extra", "Backend.authenticate"),
    )
    assert sorted(message.msg.partition(" ")[0] for message in found) == sorted(f"{__name__}.{hook}" for hook in hooks)
    assert all("is not a view" in message.msg and "w012" in str(message.hint) for message in found)
