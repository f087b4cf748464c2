"""Objects that a key template reads before the lock is held: their rows may have changed once it is held."""

import asyncio
import copy
import logging
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Group, User
from django.db import connections
from django.db.models import F
from django.db.models.base import ModelState
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.functional import SimpleLazyObject
from rest_framework.views import APIView

from django_rlock import distributed_lock, rlock
from django_rlock._web import reads
from django_rlock.locks.holds import WAITS
from tests.beside import beside
from tests.eventually import UNTIL_SERVED, eventually
from tests.web.conftest import Holder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def add_point(user: Any) -> HttpResponse:
    user.last_name = str(int(user.last_name) + 1)
    user.save()
    return HttpResponse(user.last_name)


@distributed_lock("points:<request.user.pk>", wait_time=UNTIL_SERVED)
def lazy(request: HttpRequest) -> HttpResponse:
    return add_point(request.user)


@distributed_lock("points:<request.user.pk>", wait_time=UNTIL_SERVED, atomic=True)
def in_transaction(request: HttpRequest) -> HttpResponse:
    return add_point(request.user)


@distributed_lock(lambda request: f"points:{request.user.pk}", wait_time=UNTIL_SERVED)
def named_by_function(request: HttpRequest) -> HttpResponse:
    return add_point(request.user)


@distributed_lock("points:<request.user.pk>", wait_time=UNTIL_SERVED)
async def through_user(request: HttpRequest) -> HttpResponse:
    points = int(request.user.last_name) + 1  # type: ignore[union-attr] # without a query
    await User.objects.filter(username=request.user.username).aupdate(last_name=str(points))
    return HttpResponse(points)


@distributed_lock("points:<request.user.pk>", wait_time=UNTIL_SERVED)
async def through_auser(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(add_point)(await request.auser())


class Api(APIView):  # type: ignore[misc]
    @distributed_lock("points:<request.user.pk>")
    def post(self, request: Any) -> HttpResponse:
        return add_point(request.user)


@login_required
@distributed_lock("points:<request.user.pk>")
def read_above(request: HttpRequest) -> HttpResponse:
    return add_point(request.user)


@login_required
@distributed_lock("points:<request.user.pk>")
def refreshed(request: HttpRequest) -> HttpResponse:
    user: Any = request.user
    user.refresh_from_db()
    return add_point(user)


@login_required
@distributed_lock("points:<request.user.pk>")
async def async_read_above(request: HttpRequest) -> HttpResponse:
    user: Any = await request.auser()
    user.last_name = str(int(user.last_name) + 1)
    await user.asave()
    return HttpResponse(user.last_name)


LAZY = [lazy, in_transaction, named_by_function, through_user, through_auser]
VIEWS: list[Any] = [*LAZY, read_above, refreshed, async_read_above]

urlpatterns = [*(path(f"{view.__name__}/", view) for view in VIEWS), path("api/", Api.as_view())]


@pytest.fixture(autouse=True)
def _never_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_warned_places", set())


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada", last_name="1")


@pytest.fixture
def group() -> Group:
    return Group.objects.create(name="editors")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "django_rlock.web")
    return lambda: [record.getMessage() for record in caplog.records if "before the lock was held" in record.message]


def answer_of(client: Any, async_client: Any, view: Any) -> bytes:
    """The view's response, with the binding of the view."""
    url = f"/{view.__name__}/"
    response = asyncio.run(async_client.get(url)) if iscoroutinefunction(view) else client.get(url)
    content: bytes = response.content
    return content


@pytest.mark.parametrize("view", LAZY, ids=lambda view: view.__name__)
def test_a_view_that_waited_reads_the_user_again(
    client: Any, async_client: Any, user: User, taken: Holder, view: Any, warnings: Callable[[], list[str]]
) -> None:
    def request() -> bytes:
        try:
            return answer_of(client, async_client, view)
        finally:
            connections.close_all()

    for each in client, async_client:
        each.force_login(user)
    with ExitStack() as waiting:
        with taken(f"points:{user.pk}"):
            response = waiting.enter_context(beside(request))
            eventually(WAITS.snapshot)
            User.objects.update(last_name="5")
        assert response.result(UNTIL_SERVED) == b"6"
    assert User.objects.get().last_name == "6"
    assert not warnings()


def test_a_user_that_others_have_read_stays_the_same_object(user: User) -> None:
    request = HttpRequest()
    request.user = SimpleLazyObject(User.objects.get)  # type: ignore[assignment]
    request.user.tenant = "set by a middleware"  # type: ignore[union-attr]

    @distributed_lock("points:<request.user.pk>")
    def view(request: Any) -> HttpResponse:
        return HttpResponse(request.user.tenant)

    assert view(request).content == b"set by a middleware"


@pytest.mark.parametrize("url", ["/read_above/", "/api/"])
def test_saving_a_user_that_was_read_before_the_lock_is_logged_once(
    client: Any, user: User, url: str, warnings: Callable[[], list[str]]
) -> None:
    client.force_login(user)
    for _ in range(2):
        (client.post if url == "/api/" else client.get)(url)
    (text,) = warnings()
    assert f"{__file__}:{add_point.__code__.co_firstlineno + 2} saves auth.User" in text


def test_an_async_view_that_saves_such_a_user_is_named(
    async_client: Any, user: User, warnings: Callable[[], list[str]]
) -> None:
    async_client.force_login(user)
    assert answer_of(None, async_client, async_read_above) == b"2"
    (text,) = warnings()
    assert text.startswith(f"{__name__}.async_read_above saves auth.User")


def test_a_user_that_was_refreshed_is_saved_silently(
    client: Any, user: User, warnings: Callable[[], list[str]]
) -> None:
    client.force_login(user)
    assert client.get("/refreshed/").content == b"2"
    assert not warnings()


@distributed_lock("group:<group.pk>")
def by_attribute(group: Group, work: Callable[[Group], object]) -> object:
    return work(group)


@distributed_lock("group:<group>")
def by_instance(group: Group, work: Callable[[Group], object]) -> object:
    return work(group)


@distributed_lock("group:<box.group.pk>")
def by_path(box: Any, work: Callable[[Group], object]) -> object:
    return work(box.group)


def named(group: Group, work: Callable[[Group], object]) -> str:
    return f"group:{group.pk}"


@distributed_lock(named)
def by_function(group: Group, work: Callable[[Group], object]) -> object:
    return work(group)


@distributed_lock("group:<group.pk>")
async def in_coroutine(group: Group, work: Callable[[Group], object]) -> object:
    return await sync_to_async(work)(group)


class Box:
    def __init__(self, group: Group) -> None:
        self.group = group


def through_box(group: Group, work: Callable[[Group], object]) -> object:
    return by_path(Box(group), work)


def through_loop(group: Group, work: Callable[[Group], object]) -> object:
    return asyncio.run(in_coroutine(group, work))


CALLS = [by_attribute, by_instance, through_box, by_function, through_loop]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_saving_an_argument_that_the_template_read_is_logged(
    group: Group, call: Any, warnings: Callable[[], list[str]]
) -> None:
    call(group, lambda group: group.save())
    assert len(warnings()) == 1
    assert type(group._state) is ModelState


def refresh(group: Group) -> None:
    group.refresh_from_db()
    group.save()


def refresh_one_field(group: Group) -> None:
    group.refresh_from_db(fields=["name"])
    group.save(update_fields=["name"])


def let_the_database_compute(group: Group) -> None:
    group.name = F("name")
    group.save(update_fields=["name"])


def save_another(group: Group) -> None:
    Group.objects.get(pk=group.pk).save()


def read_only(group: Group) -> None:
    str(group)


@pytest.mark.parametrize(
    "work",
    [refresh, refresh_one_field, let_the_database_compute, save_another, read_only],
    ids=lambda work: work.__name__,
)
@pytest.mark.parametrize("call", [by_attribute, through_loop])
def test_right_uses_are_silent(group: Group, call: Any, work: Any, warnings: Callable[[], list[str]]) -> None:
    call(group, work)
    assert not warnings()


def test_what_is_saved_after_the_call_is_not_its_concern(group: Group, warnings: Callable[[], list[str]]) -> None:
    by_attribute(group, read_only)
    group.save()
    assert not warnings()


def test_a_new_row_is_saved_silently(warnings: Callable[[], list[str]]) -> None:
    distributed_lock("group:<group.name>")(lambda group: group.save())(Group(name="new"))
    assert not warnings()


def test_what_was_read_under_another_lock_is_saved_silently(group: Group, warnings: Callable[[], list[str]]) -> None:
    with rlock(f"group:{group.pk}"):
        by_attribute(Group.objects.get(), lambda group: group.save())
    assert not warnings()


def test_copies_of_what_the_template_read_are_plain(group: Group) -> None:
    def work(group: Group) -> list[Any]:
        return [
            type(each._state) for each in (copy.copy(group), copy.deepcopy(group), pickle.loads(pickle.dumps(group)))
        ]

    assert by_attribute(group, work) == [ModelState] * 3


def test_the_line_is_not_in_a_method_of_the_object(warnings: Callable[[], list[str]], group: Group) -> None:
    def save(self: Group) -> None:
        self.save()

    def work(group: Group) -> None:
        save(group)

    by_attribute(group, work)
    assert f"{work.__code__.co_firstlineno + 1} saves" in warnings()[0]
