"""What is logged and called back in other threads sees the context variables of the code that it is about."""

import asyncio
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from django_rlock import FairLock, MultiLock, PermitExpirableSemaphore, RLock
from django_rlock._core import callbacks
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.watchdog import lose
from django_rlock.signals import lock_lost
from tests.background import settle
from tests.eventually import PATIENCE
from tests.heard import heard

request_id: ContextVar[str] = ContextVar("request_id", default="none")


@pytest.fixture
def logged() -> Iterator[list[tuple[str, str]]]:
    """The message of each record, and the request that a filter finds."""
    found: list[tuple[str, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.getMessage(), request_id.get()))

    handler, logger = Handler(), logging.getLogger("django_rlock")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def requests_of(logged: list[tuple[str, str]], what: str) -> set[str]:
    callbacks.flush(PATIENCE)
    return {request for message, request in logged if what in message}


def test_records_of_a_thread_and_of_a_task(logged, redis_client):
    async def task() -> None:
        request_id.set("second")
        async with RLock("stock:43"):
            pass

    token = request_id.set("first")
    with RLock("stock:42"):
        pass
    request_id.reset(token)
    asyncio.run(task())
    for lock, request in ("stock:42", "first"), ("stock:43", "second"):
        assert requests_of(logged, f"Acquired {lock!r}") == {request}
        assert requests_of(logged, f"Released {lock!r}") == {request}


def take_permits(on_lost: Any) -> Any:
    semaphore = PermitExpirableSemaphore("licences", on_lost=on_lost)
    semaphore.try_set_permits(1)
    return semaphore.acquire(renewed=True)


@pytest.mark.parametrize(
    "take",
    [
        lambda on_lost: RLock("stock:42", on_lost=on_lost).acquire(),
        lambda on_lost: MultiLock(*[FairLock(name, on_lost=on_lost) for name in "ab"]).acquire(),
        take_permits,
    ],
    ids=["lock", "group", "permits"],
)
def test_loss_is_reported_in_the_context_of_the_acquire(take, logged, redis_client):
    seen: list[str] = []
    token = request_id.set("first")
    kept = take(lambda _lock: seen.append(request_id.get()))
    request_id.reset(token)
    lost = HOLDS.snapshot()
    try:
        with heard(lock_lost, note=lambda **_: request_id.get()) as told:
            for hold in lost:
                lose(hold, "it was freed by force")
            settle()
        assert requests_of(logged, "was lost") == {"first"}
    finally:
        for hold in lost:
            HOLDS.remove(hold)
    assert seen == told == ["first"] * len(lost)
    del kept


def test_metrics(redis_client):
    """An exporter may attach the trace of the request to its sample."""
    seen: list[str] = []
    token = request_id.set("first")
    callbacks.post(lambda: seen.append(request_id.get()))
    request_id.reset(token)
    callbacks.flush(PATIENCE)
    assert seen == ["first"]
