"""What type checkers see of rlock(): each kind's class, and no option that does not exist.

Run by mypy, pyright and pytest."""

import asyncio
from typing import assert_type

import pytest
from celery import Celery, shared_task
from celery.result import AsyncResult

from django_rlock import (
    BaseLock,
    ConstantBackoff,
    FairLock,
    FencedLock,
    MultiLock,
    PermitExpirableSemaphore,
    ReadLock,
    RedLock,
    RLock,
    Semaphore,
    SpinLock,
    WriteLock,
    rlock,
)
from django_rlock.celery import LockedTask

NAME = "stock:42"


def test_the_kind_tells_the_class():
    assert_type(rlock(NAME), BaseLock)
    assert_type(rlock(NAME, "stock:43"), BaseLock)
    assert_type(rlock(NAME, kind="fair", wait_time=3), FairLock)
    assert_type(rlock(NAME, kind="rlock"), RLock)
    assert_type(rlock(NAME, kind="spin", backoff=ConstantBackoff(0.01)), SpinLock)
    assert_type(rlock(NAME, kind="fenced"), FencedLock)
    assert_type(rlock(NAME, kind="read", prefer="writer"), ReadLock)
    assert_type(rlock(NAME, kind="write"), WriteLock)
    for lock, kind in (
        (rlock(NAME), FairLock),
        (rlock(NAME, kind="fenced"), FencedLock),
        (rlock(NAME, "b"), MultiLock),
    ):
        assert type(lock) is kind


class Build(LockedTask[[int, str], str]):
    name = "build"

    def run(self, account_id: int, title: str) -> str:
        return f"{title} {account_id}"


def build(account_id: int, title: str) -> str:
    return f"{title} {account_id}"


def test_a_task_has_its_parameters_and_its_result():
    with Celery("types", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True
        decorated: LockedTask[[int, str], str] = app.task(base=LockedTask, shared=False)(build)
        of_a_class = Build()
        app.register_task(of_a_class)
        given = app.task(base=LockedTask[[int, str], str], shared=False, name="given")(build)
        for task in (decorated, of_a_class, given):
            assert assert_type(task(7, "report"), str) == "report 7"
            assert assert_type(task.delay(7, "report"), AsyncResult[str]).get() == "report 7"
            task.delay("report", 7)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="title"):
                task.delay(7)  # type: ignore[call-arg]


def test_a_shared_task_has_the_parameters_that_its_base_names():
    @shared_task(base=LockedTask[[int, str], str], lock_key="build:<account_id>")
    def shared(account_id: int, title: str) -> str:
        return f"{title} {account_id}"

    with Celery("types", broker="memory://") as app:
        app.conf.task_always_eager = True
        assert assert_type(shared.delay(7, "report"), AsyncResult[str]).get() == "report 7"
        assert shared.lock_key == "build:<account_id>"
        shared.delay("report", 7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="title"):
            shared.delay(7)  # type: ignore[call-arg]


def test_type_checkers_refuse_a_misspelt_attribute() -> None:
    """At run time it is an attribute like any other, as a mock's is."""
    lock: RLock = RLock(NAME)
    lock.wait_tiem = 3  # type: ignore[attr-defined]


def test_a_redlock_is_typed(settings):
    settings.RLOCK = {"quorum": {"NODES": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]}}
    lock = assert_type(rlock(NAME, kind="redlock", using="quorum", fencing=False), RedLock)
    assert type(lock) is RedLock


@pytest.mark.parametrize(
    ("make", "ours"),
    [
        (lambda: rlock(NAME, timeout=60), "lease_time="),  # type: ignore[call-overload]
        (lambda: rlock(NAME, "stock:43", blocking_timeout=3), "wait_time="),  # type: ignore[call-overload]
        (lambda: RLock(NAME, expire=60), "lease_time="),  # type: ignore[arg-type]
        (lambda: RLock(NAME, id="token"), "owner="),  # type: ignore[arg-type]
        (lambda: RLock(NAME, alias="locks"), "using="),  # type: ignore[arg-type]
        (lambda: RLock(NAME, cache="locks"), "using="),  # type: ignore[arg-type]
        (lambda: RLock(NAME, thread_local=False), "Use nothing"),  # type: ignore[arg-type]
        (lambda: SpinLock(NAME, blocking_timeout=3), "wait_time="),  # type: ignore[call-arg]
        (lambda: MultiLock(RLock(NAME), timeout=60), "lease_time="),  # type: ignore[arg-type]
    ],
    ids=["rlock", "several names", "RLock", "id", "alias", "cache", "thread_local", "SpinLock", "MultiLock"],
)
def test_an_option_of_another_library_is_refused_with_the_name_of_ours(make, ours):
    with pytest.raises(TypeError, match=ours):
        make()


def test_a_misspelt_option_is_refused_by_name():
    with pytest.raises(TypeError, match=r"^RLock\(\) got an unexpected keyword argument 'leese_time'\.$"):
        RLock(NAME, leese_time=5)  # type: ignore[arg-type]


CALLS = {
    "timeout": (lambda lock: lock.acquire(timeout=3), "Use wait_time="),
    "blocking_timeout": (lambda lock: lock.acquire(blocking_timeout=3), "Use wait_time="),
    "expire": (lambda lock: lock.acquire(expire=3), "Use lease_time="),
    "ttl": (lambda lock: lock.acquire(True, ttl=3), "Use lease_time="),
    "token": (lambda lock: lock.acquire(token="1"), "Use owner="),
    "misspelt": (lambda lock: lock.acquire(wait_tine=3), r"'wait_tine'\.$"),
    "additional_time": (lambda lock: lock.extend(additional_time=3), "'lease_time'"),
    "replace_ttl": (lambda lock: lock.extend(3, replace_ttl=True), "Use lease_time="),
    "in asyncio": (lambda lock: asyncio.run(lock.aacquire(timeout=3)), "Use wait_time="),
    "extend in asyncio": (lambda lock: asyncio.run(lock.aextend(3, replace_ttl=True)), "Use lease_time="),
}


@pytest.mark.parametrize(("call", "hint"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("lock", [FairLock("stock:42"), MultiLock(RLock("stock:42"), RLock("stock:43"))], ids=repr)
def test_an_argument_of_another_librarys_method_is_refused_with_a_hint(lock: BaseLock, call, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        call(lock)


SEMAPHORE, PERMITS = Semaphore("stock:42"), PermitExpirableSemaphore("stock:42")


@pytest.mark.parametrize(
    "call",
    [SEMAPHORE.acquire, SEMAPHORE.aacquire, PERMITS.acquire, PERMITS.aacquire, PERMITS.permit],
    ids=lambda call: call.__qualname__,
)
def test_an_argument_of_another_librarys_semaphore_is_refused_with_a_hint(call) -> None:
    with pytest.raises(TypeError, match="Use wait_time="):
        asyncio.run(call(timeout=3))
