"""Views under @distributed_lock: what they lock, and how they respond when they cannot."""

import asyncio
import json
import os
import re
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.functional import SimpleLazyObject
from pytest_django import Settings

from django_rlock import LockTimeoutError, distributed_lock, rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_lost
from tests.conftest import OwnServer
from tests.eventually import eventually
from tests.heard import heard
from tests.web.conftest import Holder

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def holding() -> HttpResponse:
    return JsonResponse([hold.lock.name for hold in HOLDS.snapshot()], safe=False)


def unreachable(*_: Any, **__: Any) -> HttpResponse:
    raise AssertionError("The body ran without the lock.")


async def aunreachable(*_: Any, **__: Any) -> HttpResponse:
    raise AssertionError("The body ran without the lock.")


@distributed_lock("stock:<pk>", wait_time=0)
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    return holding()


@distributed_lock("stock:<pk>", wait_time=0)
async def abuy(request: HttpRequest, pk: int) -> HttpResponse:
    await asyncio.sleep(0)
    return holding()


def ask_as_a_browser() -> HttpRequest:
    return RequestFactory().post("/buy/7/", headers={"Accept": BROWSER})


def call(view: Any, request: HttpRequest | None = None, **kwargs: Any) -> HttpResponse:
    request = request or RequestFactory().post("/buy/7/")
    if iscoroutinefunction(view):

        async def run() -> HttpResponse:
            response: HttpResponse = await view(request, **kwargs)
            return response

        return asyncio.run(run())
    response: HttpResponse = view(request, **kwargs)
    return response


# ---- keys ----------------------------------------------------------------------------------------------------


@distributed_lock("cart:<request.user.pk>")
def cart(request: HttpRequest) -> HttpResponse:
    return holding()


@distributed_lock("cart:<request.user.pk>")
async def acart(request: HttpRequest) -> HttpResponse:
    return holding()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("view", [cart, acart])
def test_the_user_of_the_request(view: Any) -> None:
    user = User.objects.create_user("ada")
    request = AsyncRequestFactory().post("/cart/")
    request.user = SimpleLazyObject(lambda: User.objects.get(username="ada"))  # type: ignore[assignment]
    assert json.loads(call(view, request).content) == [f"cart:{user.pk}"]


# ---- taken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lease", "longest"), [(30, 5), (1.5, 2), (0.9, 1)])
def test_retry_after_is_whole_seconds_of_the_lease_and_five_at_most(taken: Holder, lease: float, longest: int) -> None:
    def ask() -> int:
        with taken("stock:7", lease_time=lease):
            return int(call(buy, pk=7)["Retry-After"])

    asked = {ask() for _ in range(20)}
    assert asked <= set(range(1, longest + 1))
    assert longest < 5 or len(asked) > 1


@pytest.mark.parametrize("make_async", [False, True])
def test_view_that_may_not_run_again_for_a_minute(make_async: bool) -> None:
    async def aview(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("done")

    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("done")

    locked = distributed_lock("report:<pk>", at_least=60, wait_time=0)(aview if make_async else view)
    assert call(locked, pk=7).content == b"done"
    response = call(locked, pk=7)
    assert response.status_code == 423
    assert 50 < int(response["Retry-After"]) <= 60
    assert call(locked, pk=8).content == b"done"


def test_what_programs_and_browsers_are_told(taken: Holder) -> None:
    with taken("stock:7"):
        program, browser = (
            call(buy, RequestFactory().post("/buy/7/", headers={"Accept": accept}), pk=7) for accept in ("*/*", BROWSER)
        )
    assert program["Content-Type"] == "application/json"
    assert json.loads(program.content).keys() == {"detail", "code"}
    assert browser["Content-Type"] == "text/html; charset=utf-8"
    assert b"Someone else is working on this" in browser.content
    for response in program, browser:
        assert response.status_code == 423
        assert response["Cache-Control"] == "no-store"
        assert response["Retry-After"]


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_page_counts_down_to_the_retry_and_has_nothing_inline(taken: Holder, method: str) -> None:
    with taken("stock:7"):
        request = getattr(RequestFactory(), method)("/buy/7/?a=1&b=2", headers={"Accept": BROWSER})
        response = call(buy, request, pk=7)
    page = response.content.decode()
    assert f'data-seconds="{response["Retry-After"]}"' in page
    assert "django_rlock/locked.css" in page
    assert ('href="/buy/7/?a=1&amp;b=2"' in page) == (method == "get")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)


def test_the_page_does_without_files_that_were_not_collected(settings: Settings, taken: Holder) -> None:
    manifest = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": manifest}}
    with taken("stock:7"):
        response = call(buy, ask_as_a_browser(), pk=7)
    assert response.status_code == 423
    assert b"<link" not in response.content
    assert b"<script" not in response.content


def test_a_browser_gets_json_where_there_is_no_template(settings: Settings, taken: Holder) -> None:
    settings.TEMPLATES = []
    with taken("stock:7"):
        response = call(buy, ask_as_a_browser(), pk=7)
    assert response.status_code == 423
    assert response["Content-Type"] == "application/json"


def menu(request: HttpRequest) -> dict[str, object]:
    """A context processor that queries the database, as those of many projects do."""
    return {"users": User.objects.count()}


def broken_menu(request: HttpRequest) -> dict[str, object]:
    raise ZeroDivisionError


def templates(processor: Any, source: str) -> list[dict[str, Any]]:
    options = {
        "context_processors": [f"{__name__}.{processor.__name__}"],
        "loaders": [("django.template.loaders.locmem.Loader", {"rlock/locked.html": source})],
    }
    return [{"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": options}]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("view", [buy, abuy])
def test_the_page_may_query_the_database(settings: Settings, taken: Holder, view: Any) -> None:
    settings.TEMPLATES = templates(menu, "{{ users }} users, {{ problem.code }}")
    with taken("stock:7"):
        response = call(view, ask_as_a_browser(), pk=7)
    assert (response.status_code, response.content) == (423, b"0 users, locked")


@pytest.mark.parametrize("view", [buy, abuy])
@pytest.mark.parametrize(
    ("source", "content_type", "failures"),
    [
        ("{{ problem.code }}", "text/html; charset=utf-8", [" with the request"]),
        ("{% load nothing %}", "application/json", [" with the request", ""]),
        ("{% include 'nothing.html' %}", "application/json", [" with the request", ""]),
    ],
)
def test_a_page_that_cannot_be_rendered_is_no_error(
    settings: Settings, taken: Holder, caplog: Any, view: Any, source: str, content_type: str, failures: list[str]
) -> None:
    settings.TEMPLATES = templates(broken_menu, source)
    with taken("stock:7"):
        response = call(view, ask_as_a_browser(), pk=7)
    assert (response.status_code, response["Content-Type"]) == (423, content_type)
    assert b"locked" in response.content
    told = [record.getMessage() for record in caplog.records if record.name == "django_rlock.web"]
    assert told == [f"A page cannot be rendered: rlock/locked.html{how}" for how in failures]


@pytest.mark.parametrize("accept", ["*/*", BROWSER])
def test_the_holder_is_named_under_debug_only(settings: Settings, taken: Holder, accept: str) -> None:
    request = RequestFactory().post("/buy/7/", headers={"Accept": accept})
    with taken("stock:7"):
        settings.DEBUG = True
        shown = call(buy, request, pk=7).content.decode()
        settings.DEBUG = False
        hidden = call(buy, request, pk=7).content.decode()
    # By the process report where there is one already, else by the owner's name.
    names = "another", f"pid {os.getpid()}"
    assert any(name in shown for name in names)
    assert not any(name in hidden for name in names)


def test_the_status_is_the_setting_s_or_the_decorator_s(settings: Settings, taken: Holder) -> None:
    settings.RLOCK = {"default": {"LOCKED_STATUS": 409}}
    other = distributed_lock("stock:<pk>", wait_time=0, status=429)(unreachable)
    with taken("stock:7"):
        assert call(buy, pk=7).status_code == 409
        assert call(other, pk=7).status_code == 429


def test_a_view_waits_for_as_long_as_the_setting_says(settings: Settings, taken: Holder) -> None:
    view = distributed_lock("stock:<pk>")(unreachable)
    with taken("stock:7"):
        settings.RLOCK = {"default": {"VIEW_WAIT_TIME": 0}}
        assert call(view, pk=7).status_code == 423


@pytest.mark.parametrize(
    ("on_locked", "status"),
    [("skip", 204), (lambda error, request, pk: HttpResponse(f"{error.lock_name} {pk}", status=202), 202)],
)
def test_on_locked_of_views(taken: Holder, on_locked: Any, status: int) -> None:
    view = distributed_lock("stock:<pk>", wait_time=0, on_locked=on_locked)(unreachable)
    with taken("stock:7"):
        response = call(view, pk=7)
    assert response.status_code == status
    assert response.content == (b"" if status == 204 else b"stock:7 7")


def test_a_view_can_raise(taken: Holder) -> None:
    view = distributed_lock("stock:<pk>", wait_time=0, on_locked="raise")(unreachable)
    with taken("stock:7"), pytest.raises(LockTimeoutError):
        call(view, pk=7)


def test_a_view_answers_for_the_locks_of_its_body(taken: Holder) -> None:
    @distributed_lock("stock:<pk>")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        with rlock("other", wait_time=0):
            return unreachable()

    with taken("other"):
        assert call(view, pk=7).status_code == 423


# ---- faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_async", [False, True])
def test_redis_down(own_server: OwnServer, make_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    own_server().kill()

    view = distributed_lock("stock:<pk>", wait_time=0.2, on_locked="skip")(aunreachable if make_async else unreachable)
    response = call(view, pk=7)
    assert response.status_code == 503
    assert json.loads(response.content)["code"] == "lock_unavailable"
    assert int(response["Retry-After"]) >= 1
    assert "'POST' got a response with status 503" in caplog.text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("names", [["stock:<pk>"], ["stock:<pk>", "stocks:<pk>"]], ids=len)
@pytest.mark.parametrize("make_async", [False, True], ids=["sync", "async"])
def test_a_redis_that_refuses_connections_is_not_waited_for(
    names: list[str], make_async: bool, own_server: OwnServer
) -> None:
    """Also by one who has a connection, which breaks."""
    server = own_server()
    body = aunreachable if make_async else unreachable
    view = distributed_lock(*names, wait_time=600)(body)
    with rlock("other"):
        pass
    server.kill()
    assert call(view, pk=7).status_code == 503


def lose_lock() -> None:
    """Wait until the lock of this thread, which is taken for a moment only, is lost."""
    with heard(lock_lost) as told:
        eventually(lambda: told)


@pytest.mark.parametrize("made", [HttpResponse, StreamingHttpResponse])
@pytest.mark.parametrize("on_locked", [None, "skip"])
@pytest.mark.parametrize("make_async", [False, True], ids=["sync", "async"])
def test_a_lost_lock(make_async: bool, on_locked: Any, made: Any) -> None:
    def view(request: HttpRequest, pk: int) -> HttpResponseBase:
        lose_lock()
        return made("fine?")

    async def aview(request: HttpRequest, pk: int) -> HttpResponseBase:
        await asyncio.to_thread(lose_lock)
        return made("fine?")

    locked = distributed_lock("stock:<pk>", lease_time=0.1, on_locked=on_locked)
    response = call(locked(aview if make_async else view), pk=7)
    assert response.status_code == 503
    assert json.loads(response.content)["code"] == "lock_lost"


def test_a_cancelled_view_gives_its_lock_back() -> None:
    inside = asyncio.Event()

    @distributed_lock("stock:<pk>")
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        inside.set()
        await asyncio.Event().wait()
        return unreachable()

    async def main() -> None:
        task = asyncio.create_task(view(RequestFactory().post("/"), pk=7))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await rlock("stock:7").alocked()

    asyncio.run(main())
