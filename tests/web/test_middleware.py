"""LockMiddleware, in sync and async stacks."""

import asyncio
import json
import re
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from pytest_django import Settings

from django_rlock import PermitExpirableSemaphore, distributed_lock, rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import context
from django_rlock.middleware import LockMiddleware
from tests.background import is_handed_over
from tests.conftest import OwnServer
from tests.web.conftest import Holder

MIDDLEWARE = "django_rlock.middleware.LockMiddleware"


def take(request: HttpRequest) -> HttpResponse:
    with rlock("stock:7", wait_time=0):
        return JsonResponse([hold.context for hold in HOLDS.snapshot()], safe=False)


async def atake(request: HttpRequest) -> HttpResponse:
    async with rlock("stock:7", wait_time=0):
        return JsonResponse([hold.context for hold in HOLDS.snapshot()], safe=False)


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


def leave(request: HttpRequest) -> HttpResponse:
    lock = rlock("stock:7")
    assert lock.acquire()
    assert lock.acquire()
    return HttpResponse("done")


def leave_and_fail(request: HttpRequest) -> HttpResponse:
    leave(request)
    raise ZeroDivisionError


def leave_permit(request: HttpRequest) -> HttpResponse:
    licences = PermitExpirableSemaphore("licences")
    licences.try_set_permits(1)
    permit = licences.acquire(renewed=True)
    assert permit is not None
    return HttpResponse(permit.id)


async def aleave(request: HttpRequest) -> HttpResponse:
    assert await rlock("stock:7").aacquire()
    return HttpResponse("done")


kept: list[object] = []
"""A project's monitoring keeps more of a request than the request itself needs."""


async def aleave_and_keep(request: HttpRequest) -> HttpResponse:
    kept.append(asyncio.current_task())
    try:
        await aleave(request)
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        kept.append(error)
        raise


async def aleave_in_task(request: HttpRequest) -> HttpResponse:
    task = asyncio.create_task(aleave(request))
    kept.append(task)
    return await task


async def aleave_in_thread(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(leave)(request)


@login_required
def logged_in(request: HttpRequest) -> HttpResponse:
    return take_decorated(request)


@distributed_lock("stock:7")
def take_decorated(request: HttpRequest) -> HttpResponse:
    return JsonResponse([hold.context for hold in HOLDS.snapshot()], safe=False)


@distributed_lock("stock:7")
async def atake_decorated(request: HttpRequest) -> HttpResponse:
    return JsonResponse([hold.context for hold in HOLDS.snapshot()], safe=False)


background: set[asyncio.Task[Any]] = set()


async def start_background_task(request: HttpRequest) -> HttpResponse:
    inside = asyncio.Event()

    async def work() -> None:
        async with rlock("stock:7"):
            inside.set()
            await asyncio.Event().wait()

    background.add(asyncio.create_task(work()))
    await inside.wait()
    return HttpResponse("started")


urlpatterns = [
    path(f"{view.__name__}/", view)
    for view in (
        take,
        atake,
        broken,
        leave,
        leave_and_fail,
        leave_permit,
        aleave,
        aleave_and_keep,
        aleave_in_task,
        aleave_in_thread,
        logged_in,
        take_decorated,
        atake_decorated,
        start_background_task,
    )
]


def with_secret(view: Any) -> Any:
    """The view at a URL with a secret."""
    if asyncio.iscoroutinefunction(view):

        async def areset(request: HttpRequest, token: str) -> Any:
            return await view(request)

        return areset
    return lambda request, token: view(request)


RESETTING = [take, atake, take_decorated, atake_decorated, leave, aleave]
urlpatterns += [path(f"reset/{view.__name__}/<token>/", with_secret(view)) for view in RESETTING]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _installed(settings: Settings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]


def get_sync(url: str) -> Any:
    return Client(raise_request_exception=False).get(url, headers={"Accept": "*/*"})


def get_async(url: str) -> Any:
    async def get() -> Any:
        return await AsyncClient(raise_request_exception=False).get(url, headers={"Accept": "*/*"})

    return asyncio.run(get())


LEAVING = ["/leave/", "/leave_and_fail/", "/aleave/", "/aleave_and_keep/", "/aleave_in_task/", "/aleave_in_thread/"]
STACKS = pytest.mark.parametrize("get", [get_sync, get_async], ids=["WSGI", "ASGI"])


@STACKS
@pytest.mark.parametrize("url", ["/take/", "/atake/"])
def test_a_taken_lock_is_answered(get: Any, url: str, taken: Holder) -> None:
    with taken("stock:7"):
        response = get(url)
    assert response.status_code == 423
    assert response["Retry-After"]
    assert response["Cache-Control"] == "no-store"
    assert response.json()["code"] == "locked"


def test_redis_down_is_answered(own_server: OwnServer) -> None:
    own_server().kill()
    response = get_sync("/take/")
    assert response.status_code == 503
    assert response.json()["code"] == "lock_unavailable"


# ---- the report ----------------------------------------------------------------------------------------------


@STACKS
@pytest.mark.parametrize("url", ["/take/", "/atake/", "/take_decorated/", "/atake_decorated/"])
def test_the_report_names_the_route(get: Any, url: str) -> None:
    assert json.loads(get(url).content) == [{"route": f"GET {url}"}]
    assert context.get() is None


@STACKS
@pytest.mark.parametrize("url", ["/reset/take/c7k2/", "/reset/atake/c7k2/", "/reset/take_decorated/c7k2/"])
def test_the_report_has_no_secret_of_the_path(get: Any, url: str) -> None:
    assert json.loads(get(url).content) == [{"route": f"GET {url.replace('c7k2', '<token>')}"}]


def test_the_decorator_alone_reports_no_secret_of_the_path(client: Client, settings: Settings) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    for name in "take_decorated", "atake_decorated":
        assert client.get(f"/reset/{name}/c7k2/").json() == [{"route": f"GET /reset/{name}/<token>/"}]


def test_before_the_url_is_resolved_the_report_has_the_method_only() -> None:
    assert json.loads(LockMiddleware(take)(RequestFactory().get("/reset/c7k2/")).content) == [{"route": "GET"}]  # type: ignore[union-attr]


@STACKS
@pytest.mark.parametrize("url", ["/reset/leave/c7k2/", "/reset/aleave/c7k2/"])
def test_the_log_has_no_secret_of_the_path(get: Any, url: str, caplog: pytest.LogCaptureFixture) -> None:
    get(url)
    assert "<token>" in caplog.text
    assert "c7k2" not in "".join(record.getMessage() for record in caplog.records if "rlock" in record.name)


def test_the_log_of_a_failure_has_no_secret_of_the_path(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_server().kill()
    assert get_sync("/reset/take_decorated/c7k2/").status_code == 503
    (record,) = [record for record in caplog.records if record.name == "django_rlock.web"]
    assert "'GET /reset/take_decorated/<token>/' got a response with status 503" in record.getMessage()
    assert "c7k2" not in record.getMessage()


@pytest.mark.parametrize("middleware", [True, False])
def test_the_decorator_names_the_route_and_the_user_who_is_known(
    client: Client, settings: Settings, middleware: bool
) -> None:
    if not middleware:
        settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    user = User.objects.create_user("ada")
    client.force_login(user)
    assert client.get("/logged_in/").json() == [{"route": "GET /logged_in/", "user": str(user.pk)}]
    assert context.get() is None


def test_the_user_is_not_worth_a_query(client: Client, django_assert_num_queries: Any) -> None:
    client.force_login(User.objects.create_user("ada"))
    with django_assert_num_queries(0):
        assert client.get("/take_decorated/").json() == [{"route": "GET /take_decorated/"}]


@STACKS
def test_an_error_of_the_view_is_djangos_and_ends_the_context(get: Any) -> None:
    assert get("/broken/").status_code == 500
    assert context.get() is None


# ---- leftovers -----------------------------------------------------------------------------------------------


@STACKS
@pytest.mark.parametrize("url", LEAVING)
def test_what_a_request_leaves_is_released(get: Any, url: str, caplog: pytest.LogCaptureFixture) -> None:
    get(url)
    assert not HOLDS.snapshot()
    assert not rlock("stock:7").locked()
    (record,) = [record for record in caplog.records if record.name == "django_rlock.middleware"]
    assert record.levelname == "WARNING"
    assert "stock:7" in record.getMessage()
    assert f"GET {url}" in record.getMessage()
    assert re.search(rf"{re.escape(__file__)}:\d+", record.getMessage())
    assert is_handed_over(caplog)


@STACKS
def test_a_request_that_leaves_nothing_is_not_warned_of(get: Any, caplog: pytest.LogCaptureFixture) -> None:
    get("/take/")
    assert not [record for record in caplog.records if record.name.startswith("django_rlock")]


@STACKS
def test_a_permit_that_nobody_keeps_is_left_to_its_lease(get: Any) -> None:
    """It may be released by its id, anywhere."""
    response = get("/leave_permit/")
    assert response.status_code == 200
    PermitExpirableSemaphore("licences").release(response.content.decode())


def test_what_was_held_before_the_request_stays(caplog: pytest.LogCaptureFixture) -> None:
    with rlock("other") as lock:
        get_sync("/leave/")
        assert lock.owned()


def test_what_is_gone_already_is_no_error(own_server: OwnServer, caplog: pytest.LogCaptureFixture) -> None:
    server = own_server()

    def view(request: HttpRequest) -> HttpResponse:
        assert rlock("stock:7").acquire()
        server.kill()
        return HttpResponse("done")

    response: Any = LockMiddleware(view)(RequestFactory().get("/x/"))
    assert response.content == b"done"
    assert "could not be released" in caplog.text
    assert not HOLDS.snapshot()


def test_a_task_that_goes_on_keeps_its_lock() -> None:
    async def main() -> None:
        await AsyncClient().get("/start_background_task/")
        assert await rlock("stock:7").alocked()
        task = background.pop()
        task.cancel()
        await asyncio.wait([task])
        assert not await rlock("stock:7").alocked()

    asyncio.run(main())
