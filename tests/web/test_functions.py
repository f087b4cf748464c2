"""Plain functions and coroutine functions under @distributed_lock."""

import asyncio
import atexit
import copy
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import update_wrapper, wraps
from typing import Any, assert_type

import pytest
from celery import Celery, shared_task
from django.contrib.auth.models import Group
from django.db import transaction
from django.dispatch import Signal, receiver
from django.http import HttpRequest, HttpResponse
from django.template import Context, Library, Template
from django.test import RequestFactory
from pytest_django import Settings
from rest_framework.decorators import action
from rest_framework.viewsets import ViewSet

from django_rlock import (
    KeyTemplateError,
    LockLostError,
    LockTimeoutError,
    distributed_lock,
    rlock,
)
from django_rlock._web import calls
from django_rlock.locks.holds import HOLDS, WAITS
from tests.beside import beside
from tests.conftest import OwnServer
from tests.eventually import PATIENCE, UNTIL_SERVED, eventually
from tests.operators import free_by_force
from tests.web.conftest import Holder


def held() -> list[str]:
    return [hold.lock.name for hold in HOLDS.snapshot()]


@distributed_lock("stock:<sku>:<size>")
def names(sku: Any, size: str = "m", **_: Any) -> list[str]:
    return held()


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((7,), {}, "stock:7:m"),
        ((7, "l"), {}, "stock:7:l"),
        ((), {"sku": 7, "size": "s", "more": 1}, "stock:7:s"),
    ],
)
def test_the_key_is_made_of_the_arguments_of_the_call(args: Any, kwargs: Any, expected: str) -> None:
    assert names(*args, **kwargs) == [expected]
    assert held() == []


def test_several_templates_lock_all_or_none(taken: Holder) -> None:
    @distributed_lock("account:<source>", "account:<target>", wait_time=0)
    def transfer(source: int, target: int) -> list[str]:
        return held()

    assert transfer(2, 1) == transfer(1, 2) == ["account:1", "account:2"]
    assert transfer(1, 1) == ["account:1"]
    with taken("account:2"), pytest.raises(LockTimeoutError, match="account:2"):
        transfer(1, 2)
    assert not rlock("account:1").locked()


def test_methods_can_use_self_and_further_keyword_arguments() -> None:
    class Basket:
        pk = 3

        @distributed_lock("basket:<self.pk>:<extra>")
        def fill(self, **kwargs: Any) -> list[str]:
            return held()

    assert Basket().fill(extra="a b") == ["basket:3:a%20b"]


def test_a_function_in_place_of_the_template_gets_the_arguments_and_returns_one_name_or_several() -> None:
    @distributed_lock(lambda *skus, size: [f"{size}-{sku}" for sku in skus] if skus[1:] else f"{size}-{skus[0]}")
    def take(*skus: int, size: str) -> list[str]:
        return held()

    assert take(7, size="m") == ["m-7"]
    assert take(2, 1, 3, size="m") == ["m-1", "m-2", "m-3"]


def test_behind_another_decorator_only_keywords_have_names() -> None:
    def loading(func: Any) -> Any:
        @wraps(func)
        def load(**kwargs: Any) -> Any:
            return func(f"order {kwargs['pk']}")

        return load

    @distributed_lock("order:<pk>")
    @loading
    def ship(order: str) -> tuple[str, list[str]]:
        return order, held()

    assert ship(pk=5) == ("order 5", ["order:5"])


# ---- taken ---------------------------------------------------------------------------------------------------


def test_a_function_waits_as_long_as_it_takes(settings: Settings, taken: Holder) -> None:
    settings.RLOCK = {"default": {"VIEW_WAIT_TIME": 0}}
    with ExitStack() as waiting:
        with taken("stock:7:m"):
            result = waiting.enter_context(beside(names, 7))
            eventually(WAITS.snapshot)
        assert result.result(UNTIL_SERVED) == ["stock:7:m"]


def test_a_function_answers_a_taken_lock(taken: Holder) -> None:
    @distributed_lock("stock:<sku>", wait_time=0, on_locked=lambda error, sku, size: (error.lock_name, sku, size))
    def take(sku: int, size: str) -> None:
        raise AssertionError("The body ran without the lock.")

    with taken("stock:7"):
        assert take(7, size="m") == ("stock:7", 7, "m")


def test_a_coroutine_function_runs_under_its_lock_and_answers_a_taken_one(taken: Holder) -> None:
    async def sorry(error: LockTimeoutError, sku: int) -> str:
        await asyncio.sleep(0)
        return error.lock_name or ""

    @distributed_lock("stock:<sku>", wait_time=0, on_locked=sorry)
    async def take(sku: int) -> Any:
        await asyncio.sleep(0)
        return held()

    assert asyncio.run(take(7)) == ["stock:7"]
    assert held() == []
    with taken("stock:7"):
        assert asyncio.run(take(7)) == "stock:7"


def test_on_locked_is_not_asked_about_the_locks_of_the_body(taken: Holder) -> None:
    @distributed_lock("stock:<sku>", on_locked="skip")
    def take(sku: int) -> None:
        with rlock("other", wait_time=0):
            pass

    with taken("other"), pytest.raises(LockTimeoutError):
        take(7)


def test_the_condition_decides_whether_to_lock(taken: Holder) -> None:
    @distributed_lock("stock:<sku>", wait_time=0, condition=lambda sku: sku > 5)
    def take(sku: int) -> list[str]:
        return held()

    with taken("stock:3"), taken("stock:7"):
        assert "stock:3" in take(3)
        with pytest.raises(LockTimeoutError):
            take(7)


# ---- faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loses", [False, True])
def test_the_error_of_the_body_comes_out_and_the_lock_is_released(loses: bool) -> None:
    @distributed_lock("stock:<sku>")
    def take(sku: int) -> None:
        if loses:
            free_by_force("stock:7")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take(7)
    assert not rlock("stock:7").locked()


def test_a_lost_lock_is_told_after_the_body() -> None:
    @distributed_lock("stock:<sku>")
    def take(sku: int) -> None:
        free_by_force("stock:7")

    with pytest.raises(LockLostError):
        take(7)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_work_that_is_done_stays_done_when_redis_goes(
    own_server: OwnServer, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server()

    @distributed_lock("stock:<sku>")
    def take(sku: int) -> str:
        server.kill()
        return "taken"

    @distributed_lock("stock:<sku>")
    async def atake(sku: int) -> str:
        server.kill()
        return "taken"

    assert (asyncio.run(atake(7)) if asynchronous else take(7)) == "taken"
    (record,) = [record for record in caplog.records if "is done, but" in record.getMessage()]
    assert record.levelname == "ERROR"
    assert "stock:7" in record.getMessage()


# ---- at import -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kind": "fari"}, ValueError, "'fair'"),
        ({"kind": ["fair"]}, ValueError, "'fair'"),
        ({"on_locked": "ignore"}, ValueError, "'skip'"),
        ({"on_locked": ["skip"]}, ValueError, "'skip'"),
        ({"status": 200}, ValueError, "400"),
        ({"atomic": "yes"}, ValueError, "'auto'"),
        ({"condition": True}, TypeError, "function"),
        ({"wait_time": -1}, ValueError, "wait_time"),
        ({"lease_time": 0}, ValueError, "lease_time"),
    ],
)
def test_bad_options_are_refused_at_once(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        distributed_lock("stock", **options)


def test_other_uses_are_told_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeout'. Use lease_time="):
        distributed_lock("stock", timeout=3)  # type: ignore[call-overload]
    decorator: Any = distributed_lock("stock")
    with pytest.raises(TypeError, match=r"decorator. Around a block write 'with rlock\(...\):'"), decorator:
        raise AssertionError("The body ran without the lock.")

    async def block() -> None:
        async with decorator:
            raise AssertionError("The body ran without the lock.")

    with pytest.raises(TypeError, match="Around a block"):
        asyncio.run(block())
    for made in rlock("stock"), rlock("stock", "stocks"), rlock("stock", permits=2):
        with pytest.raises(TypeError, match=r"not a decorator. Write @distributed_lock\(...\)"):
            made(generator)
        assert Template("{{ lock.name }}").render(Context({"lock": made})) == made.name
    with pytest.raises(TypeError, match="write 'stock' instead of a lock"):
        distributed_lock(rlock("stock"))


def test_a_name_that_the_function_does_not_take_is_refused_at_import() -> None:
    def take(shop: int, pk: int) -> None: ...

    with pytest.raises(KeyTemplateError, match="did you mean 'stock:<shop>:<pk>'") as caught:
        distributed_lock("stock:<shop>:<id>")(take)
    assert "take(shop, pk)" in str(caught.value)
    distributed_lock("stock:<id>:<request.user.pk>:<GET.q>")(lambda request, **kwargs: None)


def test_a_coroutine_function_can_have_no_transaction() -> None:
    async def take() -> None: ...

    with pytest.raises(ValueError, match="sync_to_async"):
        distributed_lock("stock", atomic=True)(take)


def generator() -> Any:
    yield


class View:
    pass


@shared_task
def task() -> None: ...


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (View, "method_decorator"),
        (task, "below @shared_task"),
        (classmethod(lambda cls: None), "below @classmethod"),
        (7, "key template comes first"),
    ],
    ids=["class", "task", "classmethod", "number"],
)
def test_what_cannot_be_locked_is_refused_at_import(what: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        distributed_lock("stock")(what)


def test_decorating_needs_no_settings() -> None:
    code = """
from django.conf import settings
from django_rlock import distributed_lock

@distributed_lock("stock:<id>", wait_time=1, kind="rlock")
def buy(request, id): ...

@distributed_lock("report:<account_id>")
async def build(account_id): ...

assert not settings.configured
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_without_a_key_template_it_says_what_to_write() -> None:
    @distributed_lock  # type: ignore[arg-type]
    def buy(request: HttpRequest, pk: int) -> HttpResponse:
        raise AssertionError("The body ran.")

    called: Any = buy
    post = RequestFactory().post("/")
    for args, kwargs in [((post, 7), {}), ((post,), {"pk": 7}), ((), {}), ((print,), {}), ((View,), {})]:
        with pytest.raises(TypeError, match=r"above buy\(\) has no key template.*@distributed_lock\('buy:<pk>'\)"):
            called(*args, **kwargs)


def test_a_function_that_names_the_lock_is_none_without_a_template() -> None:
    class Names:
        def __named(self, number: int) -> str:
            return f"stock:{number}"

        @staticmethod
        def named(number: int) -> str:
            return f"stock:{number}"

        method = distributed_lock(__named)

    for naming in Names.named, lambda number: f"stock:{number}":
        assert distributed_lock(naming)(lambda number: number)(7) == 7
    assert Names.method(lambda _self, number: number)(Names(), 7) == 7


def test_above_a_class_it_says_what_to_write() -> None:
    advice = r"above class View has no key.*@method_decorator\(distributed_lock\('view:<pk>'\), name='dispatch'\)"
    with pytest.raises(TypeError, match=advice):
        distributed_lock(View)  # type: ignore[arg-type]


def test_below_a_task_without_a_key_template_it_says_what_to_write() -> None:
    advice = r"no attribute '__name__'.*above generator\(\) has no key template"
    with Celery("bare", set_as_current=False) as app, pytest.raises(AttributeError, match=advice):
        app.task(lazy=False)(distributed_lock(generator))


def test_a_decorator_can_be_examined_and_copied() -> None:
    bare = distributed_lock(generator)
    assert not hasattr(bare, "as_view")
    assert copy.copy(bare).options is bare.options  # type: ignore[attr-defined]
    assert update_wrapper(lambda: None, bare).__doc__
    with pytest.raises(AttributeError, match=r"no attribute 'as_view'\.$"):
        _ = distributed_lock("stock").as_view  # type: ignore[attr-defined]


def test_what_is_skipped_is_typed_as_none_too(taken: Holder) -> None:
    @distributed_lock("stock:<pk>", on_locked="skip")
    def count(pk: int) -> int:
        return pk

    @distributed_lock("stock:<pk>", on_locked="skip")
    async def acount(pk: int) -> int:
        return pk

    @distributed_lock("stock:<pk>", wait_time=0, on_locked="skip")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    @distributed_lock("stock:<pk>")
    def certain(pk: int) -> int:
        return pk

    with taken("stock:7"):
        assert assert_type(count(7), int | None) is None
        assert_type(asyncio.run(acount(7)), int | None)
        assert assert_type(view(RequestFactory().get("/"), 7), HttpResponse).status_code == 204
    assert assert_type(certain(7), int) == 7


# ---- decorators below that register the function -------------------------------------------------------------------

sent = Signal()
library = Library()
registry: dict[str, Any] = {}


def registers(func: Any) -> Any:
    registry[func.__name__] = func
    return func


def stores(func: Any) -> Any:
    """Python does not see the functions of a sqlite3 connection."""
    connection = sqlite3.connect(":memory:")
    connection.create_function("locked", 0, func)
    registry["connection"] = connection
    return func


def test_a_receiver_below_the_lock_is_refused() -> None:
    with pytest.raises(TypeError, match=r"registered .*work\(\): the registered function runs without the lock"):

        @distributed_lock("stock")
        @receiver(sent)  # noqa: DJ013 - the mistake
        def work(**_: Any) -> None: ...


@pytest.mark.parametrize(
    "register",
    [receiver(sent, weak=False), library.filter, library.simple_tag, atexit.register, registers, stores],
    ids=["receiver", "filter", "tag", "atexit", "dict", "sqlite"],
)
def test_a_function_that_a_decorator_below_the_lock_registers_is_told(
    register: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @distributed_lock("stock")
    @register
    def work(**_: Any) -> None: ...

    atexit.unregister(work.__wrapped__)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "work(): the registered function runs without the lock" in record.getMessage()


def test_what_registers_nothing_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    def plain() -> None: ...

    registers(plain)
    distributed_lock("stock")(plain)

    @registers
    @distributed_lock("stock")
    def below() -> None: ...

    @distributed_lock("stock")
    @distributed_lock("outer")
    @transaction.non_atomic_requests
    @wraps(plain)
    def several() -> None: ...

    class Stocks(ViewSet):  # type: ignore[misc]
        @distributed_lock("stock")
        @action(detail=True)
        def above(self, request: Any, pk: int) -> None: ...

    assert not caplog.records


# ---- lock objects that are kept for the next calls -----------------------------------------------------------------


def test_other_settings_make_other_locks(settings: Settings) -> None:
    @distributed_lock("stock:<sku>")
    def terms(sku: int) -> tuple[str, float]:
        [hold] = HOLDS.snapshot()
        return hold.lock.kind, hold.lease

    assert [terms(7), terms(7)] == [("fair", 30.0)] * 2
    settings.RLOCK = {"default": {"KIND": "rlock"}}
    assert terms(7) == ("rlock", 30.0)
    settings.RLOCK = {"default": {"KIND": "rlock", "WATCHDOG_TIMEOUT": 5}}
    assert terms(7) == ("rlock", 5.0)


def test_few_lock_objects_are_kept() -> None:
    call = calls.LockedCall(lambda sku: held(), distributed_lock("stock:<sku>").options)  # type: ignore[attr-defined]
    made = {sku: call._lock(None, ((f"stock:{sku}", "stock:<sku>"),)) for sku in range(calls.MOST_LOCKS)}
    assert call._kept is not None
    assert len(call._kept.locks) == calls.MOST_LOCKS == 1000
    assert call._lock(None, (("stock:1", "stock:<sku>"),)) is made[1], "they are kept while nothing new comes"
    assert call.run((1000,), {}) == ["stock:1000"]
    assert len(call._kept.locks) == 1, "a bound for the memory"
    assert call.run((1,), {}) == ["stock:1"]


# ---- promises of work: it would be done after the release ----------------------------------------------------------


def work(*_: Any) -> Any:
    raise AssertionError("The body ran without the lock.")


def working() -> Iterator[None]:
    yield work()


async def aworking() -> AsyncIterator[None]:
    yield work()


async def atask() -> None:
    work()


class Waiting:
    def __await__(self) -> Iterator[None]:
        return working()


PROMISES: dict[str, Any] = {
    "generator": working,
    "expression": lambda: (work() for _ in range(1)),
    "async generator": aworking,
    "coroutine": atask,
    "awaitable": Waiting,
    "context manager": contextmanager(working),
    "async context manager": asynccontextmanager(aworking),
    "future": Future,
    "map": lambda: map(work, [1]),
    "filter": lambda: filter(work, [1]),
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("decorate", [distributed_lock("stock"), rlock("stock").atomic()], ids=["lock", "atomic"])
def test_a_promise_of_work_is_refused(decorate: Any, promise: str, transactional_db: None) -> None:
    made: list[Any] = []

    @decorate
    def make() -> Any:
        made.append(PROMISES[promise]())
        Group.objects.create(name="rolled back")
        return made[0]

    with pytest.raises(TypeError, match="would run without the lock"):
        make()
    assert promise != "future" or made[0].cancelled()
    assert held() == []
    assert Group.objects.exists() == (decorate.__class__.__name__ == "Decorator")


@pytest.mark.parametrize("promise", [*PROMISES, "task"])
def test_a_promise_of_work_from_a_coroutine_is_refused(promise: str) -> None:
    made: list[Any] = []

    @distributed_lock("stock")
    async def make() -> Any:
        made.append(asyncio.ensure_future(atask()) if promise == "task" else PROMISES[promise]())
        return made[0]

    async def main() -> None:
        with pytest.raises(TypeError, match="would run without the lock"):
            await make()
        if promise == "task":
            with pytest.raises(asyncio.CancelledError):
                await made[0]

    asyncio.run(main())
    assert held() == []


@pytest.mark.parametrize("decorate", [distributed_lock("stock"), rlock("stock").atomic()], ids=["lock", "atomic"])
@pytest.mark.parametrize("promise", ["generator", "async generator", "context manager", "async context manager"])
def test_what_only_makes_a_generator_is_refused_at_import(decorate: Any, promise: str) -> None:
    @wraps(PROMISES[promise])
    def logged(*args: Any) -> Any:
        return PROMISES[promise](*args)

    for function in [PROMISES[promise], *([logged] if "context" in promise else [])]:
        with pytest.raises(TypeError, match=r"plain functions|before its body runs"):
            decorate(function)


def test_a_generator_that_a_decorator_consumes_runs_under_the_lock() -> None:
    @contextmanager
    def around() -> Iterator[None]:
        yield

    def listed(function: Any) -> Any:
        @wraps(function)
        def consume() -> list[str]:
            return [*function()]

        return consume

    @distributed_lock("stock")
    @around()
    @listed
    def names() -> Iterator[str]:
        yield from held()

    assert names() == ["stock"]
