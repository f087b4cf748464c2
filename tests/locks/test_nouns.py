"""Errors and log records of semaphores and latches speak of semaphores and latches, and of no lock."""

import re

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_rlock import (
    CountDownLatch,
    FairLock,
    LockLostError,
    LockTimeoutError,
    LockUnavailableError,
    PermitExpirableSemaphore,
    Semaphore,
)
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.watchdog import note_loss
from tests.eventually import eventually

KEY = "rlock:printers"

CALLS = [
    (Semaphore, "semaphore", "acquire"),
    (Semaphore, "semaphore", "release"),
    (PermitExpirableSemaphore, "semaphore", "acquire"),
    (PermitExpirableSemaphore, "semaphore", "available_permits"),
    (CountDownLatch, "latch", "count"),
    (CountDownLatch, "latch", "count_down"),
]
each_call = pytest.mark.parametrize(
    ("kind", "noun", "method"), CALLS, ids=[f"{noun}-{method}" for _, noun, method in CALLS]
)


def assert_speaks_of(noun: str, error: BaseException) -> None:
    text = str(error)
    assert text.startswith(f"{noun.capitalize()} 'printers' "), text
    assert not re.search(r"\block(s|ed)?\b", text, re.IGNORECASE), text


@each_call
async def test_redis_is_down(binding, own_server, kind, noun, method):
    own_server().kill()
    counter = kind("printers", **({} if method == "count" else {"wait_time": 0}))
    with pytest.raises(LockUnavailableError) as caught:
        await binding.call(counter, method)
    assert_speaks_of(noun, caught.value)


@each_call
async def test_key_holds_something_else(binding, redis_client, kind, noun, method):
    redis_client.hset(KEY, "another", 1)
    with pytest.raises(LockUnavailableError, match=f"not a {noun}") as caught:
        await binding.call(kind("printers"), method)
    assert_speaks_of(noun, caught.value)


async def test_no_permit_in_time(binding):
    with pytest.raises(LockTimeoutError) as caught:
        async with binding.inside(Semaphore("printers", wait_time=0)):
            raise AssertionError
    assert_speaks_of("semaphore", caught.value)


async def test_no_permit_with_a_lease_in_time(binding):
    block = PermitExpirableSemaphore("printers").permit(wait_time=0)
    with pytest.raises(LockTimeoutError) as caught:
        async with block if binding.name == "async" else binding.inside(block):
            raise AssertionError
    assert_speaks_of("semaphore", caught.value)


async def test_permit_whose_lease_ended(binding, redis_client):
    redis_client.set(KEY, 1)
    permit = await binding.call(PermitExpirableSemaphore("printers"), "acquire", lease_time=0.001)
    await binding.until(lambda: permit.lost)
    with pytest.raises(LockLostError) as caught:
        permit.check()
    assert_speaks_of("permit of semaphore", caught.value)


def test_report_of_a_lost_permit(redis_client, caplog):
    redis_client.set(KEY, 1)
    permit = PermitExpirableSemaphore("printers", on_lost=lambda _: 1 / 0).acquire(renewed=True)
    [hold] = HOLDS.snapshot()
    hold.deadline = 0
    assert note_loss(hold, 1.0)
    eventually(lambda: "callback" in caplog.text)
    assert "Permit of semaphore 'printers' ('rlock:printers') was lost while held by" in caplog.text
    assert "The on_lost callback of permit of semaphore 'printers' failed." in caplog.text
    assert permit is not None
    with pytest.raises(LockLostError) as caught:
        permit.check()
    assert_speaks_of("permit of semaphore", caught.value)


@pytest.mark.parametrize(
    ("kind", "noun"), [(Semaphore, "semaphore"), (PermitExpirableSemaphore, "semaphore"), (CountDownLatch, "latch")]
)
@pytest.mark.parametrize(("name", "error"), [("", ValueError), (7, TypeError), ("x" * 2000, ValueError)])
def test_names_that_are_none(kind, noun, name, error):
    with pytest.raises(error, match=f"A {noun}'s name must"):
        kind(name)


@pytest.mark.parametrize("kind", [Semaphore, CountDownLatch])
async def test_blocking_call_inside_a_loop(kind):
    with pytest.raises(SynchronousOnlyOperation) as caught:
        getattr(kind("printers"), "wait" if kind is CountDownLatch else "acquire")()
    assert "lock " not in str(caught.value).lower()


async def test_a_lock_is_called_a_lock(binding, redis_client):
    redis_client.set(KEY, 1)
    with pytest.raises(LockUnavailableError, match=r"^Lock 'printers' is .*, not a lock\. Nothing was changed"):
        await binding.acquire(FairLock("printers"))
