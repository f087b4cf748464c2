"""KEY_FUNCTION: one template names different locks for different tenants, in views, functions, tasks and tests."""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from celery import Celery
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import Settings

from django_rlock import FairLock, LockLostError, distributed_lock, rlock
from django_rlock.celery import LockedTask
from django_rlock.inspection import force_release, lock_info
from django_rlock.locks.holds import HOLDS
from django_rlock.testing import assert_locked, assert_not_locked, hold

TENANT: ContextVar[str] = ContextVar("tenant", default="public")
of_thread = threading.local()
"""As the connection of a database has the tenant in some packages."""


def by_tenant(name: str) -> str:
    return f"{TENANT.get()}:{name}"


def by_thread(name: str) -> str:
    return f"{of_thread.tenant}:{name}"


@pytest.fixture(autouse=True)
def _tenants(settings: Settings) -> Any:
    own = {"KEY_FUNCTION": f"{__name__}.by_tenant"}
    settings.RLOCK = {"default": own, "shared": {}, "thread": {"KEY_FUNCTION": by_thread}}
    token = TENANT.set("a")
    yield
    TENANT.reset(token)


def in_tenant(tenant: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    token = TENANT.set(tenant)
    try:
        return function(*args, **kwargs)
    finally:
        TENANT.reset(token)


def held() -> list[str]:
    return sorted(hold.lock.name for hold in HOLDS.snapshot())


@distributed_lock("stock:<pk>", wait_time=0)
def function(pk: int) -> list[str]:
    return held()


@distributed_lock("stock:1", "stock:<pk>", wait_time=0)
def several(pk: int) -> list[str]:
    return held()


@distributed_lock("stocks", wait_time=0)
def constant() -> list[str]:
    return held()


@distributed_lock(lambda pk: f"stock:{pk}", wait_time=0)
def named(pk: int) -> list[str]:
    return held()


@distributed_lock("stock:<pk>", wait_time=0)
async def coroutine(pk: int) -> list[str]:
    return held()


@distributed_lock("stock:<pk>", wait_time=0)
def view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(" ".join(held()))


def test_each_tenant_has_its_own_locks() -> None:
    for tenant in "a", "b", "a":
        assert in_tenant(tenant, function, 7) == [f"{tenant}:stock:7"]
        assert in_tenant(tenant, several, 7) == [f"{tenant}:stock:1", f"{tenant}:stock:7"]
        assert in_tenant(tenant, constant) == [f"{tenant}:stocks"]
        assert in_tenant(tenant, named, 7) == [f"{tenant}:stock:7"]
        assert in_tenant(tenant, lambda: asyncio.run(coroutine(7))) == [f"{tenant}:stock:7"]
        assert in_tenant(tenant, view, RequestFactory().get("/"), pk=7).content.decode() == f"{tenant}:stock:7"


def test_a_lock_keeps_its_name_in_another_tenants_code() -> None:
    lock = rlock("stock:7")
    with lock:
        in_tenant("b", lock.release)
        assert lock.acquire()
    assert lock.name == "a:stock:7"
    assert not lock.locked()


def test_an_alias_without_the_function_and_the_classes_take_complete_names() -> None:
    assert rlock("stock:7", using="shared").name == FairLock("stock:7").name == "stock:7"


def test_names_in_reports_are_complete() -> None:
    lock = rlock("stock:7", owner="another")
    assert lock.acquire()
    info = in_tenant("b", lock_info, "a:stock:7")
    assert info is not None
    assert info.name == "a:stock:7"
    assert lock_info("stock:7") is None
    assert in_tenant("b", force_release, "a:stock:7")
    with pytest.raises(LockLostError):
        lock.release()


def test_the_testing_kit_names_by_tenant() -> None:
    with hold("stock:7"):
        assert_locked("stock:7")
        in_tenant("b", assert_not_locked, "stock:7")
        with pytest.raises(AssertionError, match="a:stock:7"), hold("stock:7"):
            pass


def test_an_async_call_is_named_in_the_thread_of_its_request() -> None:
    @distributed_lock("stock:<pk>", using="thread")
    async def locked(pk: int) -> list[str]:
        return held()

    async def request() -> list[str]:
        await sync_to_async(setattr)(of_thread, "tenant", "a")
        return await locked(7)

    assert asyncio.run(request()) == ["a:stock:7"]


def test_a_path_that_cannot_be_imported_is_refused(settings: Settings) -> None:
    settings.RLOCK = {"default": {"KEY_FUNCTION": "tests.web.test_tenants.nothing"}}
    with pytest.raises(ImproperlyConfigured, match=r"RLOCK\['default'\]\['KEY_FUNCTION'\]"):
        rlock("stock:7")


# --- tasks ------------------------------------------------------------------------------------------------------------

app = Celery("tenants", broker="memory://", set_as_current=False)


@app.task(base=LockedTask, lock_key="report:<account_id>", lock_wait_time=0)
def by_template(account_id: int) -> list[str]:
    return held()


@app.task(base=LockedTask, lock_key=lambda task, account_id: f"report:{account_id}", lock_wait_time=0)
def by_function(account_id: int) -> list[str]:
    return held()


@app.task(base=LockedTask, lock_wait_time=0)
def by_arguments(account_id: int) -> list[str]:
    return held()


@app.task(base=LockedTask, lock_key="report:<account_id>", lock_scope="queue")
def queued(account_id: int) -> None:
    raise AssertionError("It is only sent.")


@pytest.mark.parametrize("task", [by_template, by_function, by_arguments], ids=lambda task: task.name)
def test_the_runs_of_each_tenant_have_their_own_locks(task: Any) -> None:
    (name,) = task(7)
    (other,) = in_tenant("b", task, 7)
    assert (name.partition(":")[0], other.partition(":")[0]) == ("a", "b")
    assert name.partition(":")[2] == other.partition(":")[2]


def test_a_message_of_one_tenant_does_not_keep_anothers_out() -> None:
    first = queued.delay(7)
    assert queued.delay(7).id == first.id
    other = in_tenant("b", queued.delay, 7)
    assert other.was_sent
    info = queued.lock_info(7)
    assert info is not None
    assert info.name == "a:report:7"
    assert queued.release_lock(7)
    assert in_tenant("b", queued.release_lock, 7)
