"""Blocking methods inside an event loop: where Django's ORM works, in Jupyter and in Playwright's tests, locks do."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_rlock import FencedLock, MultiLock, PermitExpirableSemaphore, RLock, Semaphore, distributed_lock
from tests.faults.interrupting import MAKERS

VARIABLE = "DJANGO_ALLOW_ASYNC_UNSAFE"


def in_a_loop(function: Callable[[], Any]) -> Any:
    async def task() -> Any:
        return function()

    return asyncio.run(task())


@pytest.fixture
def unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "true")


def test_they_are_refused_otherwise(redis_client, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SynchronousOnlyOperation):
        in_a_loop(RLock("stock:42").acquire)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_lock(unsafe, make, redis_client):
    def cell() -> None:
        lock = make()
        with lock:
            lock.check()
            assert lock.owned()
            assert not lock.lost
            assert not lock.suspect
        assert lock.acquire()
        lock.extend(5)
        lock.release()
        assert not lock.locked()

    in_a_loop(cell)


def test_the_owner_is_the_thread(unsafe, redis_client):
    """A notebook may run each cell in a task of its own."""
    lock = FencedLock("stock:42")
    assert in_a_loop(lock.acquire)
    assert lock.token == in_a_loop(lambda: lock.token)
    in_a_loop(lock.check)
    in_a_loop(lock.release)
    assert not lock.locked()


def test_a_task_does_not_own_what_its_thread_holds(redis_client, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with RLock("stock:42") as lock:
        assert not in_a_loop(lambda: lock.lost)
        with pytest.raises(Exception, match="not held"):
            in_a_loop(lock.check)


def test_permits_and_decorators(unsafe, redis_client):
    def cell() -> None:
        plain, expirable = Semaphore("printers"), PermitExpirableSemaphore("licences")
        plain.try_set_permits(1)
        expirable.try_set_permits(1)
        with plain, expirable.permit():
            assert plain.available_permits() == expirable.available_permits() == 0
        assert distributed_lock("stock:<number>")(lambda number: number)(7) == 7

    in_a_loop(cell)


@pytest.mark.django_db(transaction=True)
def test_transactions(unsafe, redis_client):
    def cell() -> None:
        with RLock("stock:42").atomic():
            pass
        with transaction.atomic():
            with MultiLock(RLock("a"), RLock("b"), until_commit=True):
                pass
            assert RLock("a").locked()
        assert not RLock("a").locked()

    in_a_loop(cell)
    with pytest.raises(RuntimeError, match="no transactions in async code"):
        asyncio.run(RLock("stock:42", until_commit=True).aacquire())
