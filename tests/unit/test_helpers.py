"""The threads that call for tasks what would block their loop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_rlock._core.threads import Call, Helpers
from django_rlock._transport.async_pool import TASKS
from tests.eventually import UNTIL_SERVED, eventually

MOST = 3


@pytest.fixture
def helpers():
    return Helpers(MOST)


@pytest.fixture
def doors():
    """Opened at the end, so that no thread is left if the test fails."""
    door = threading.Event()
    yield door
    door.set()


def test_many_calls_share_a_few_threads(helpers, doors):
    inside: list[int] = []

    def body():
        inside.append(threading.get_ident())
        doors.wait(UNTIL_SERVED)
        return len(inside)

    calls = [Call(body) for _ in range(3 * MOST)]
    for call in calls:
        helpers.take(call)
    eventually(lambda: len(inside) == MOST)
    assert len(helpers._marks) == MOST
    doors.set()
    assert all(call.wait(UNTIL_SERVED) for call in calls)
    assert len(inside) == 3 * MOST
    assert len(set(inside)) == MOST


def test_no_call_is_forgotten(helpers):
    """Many callers add calls while threads end for want of them."""

    def ask(number):
        call = Call(lambda: number)
        helpers.take(call)
        assert call.wait(UNTIL_SERVED)
        return call.result()

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(ask, range(2000))) == list(range(2000))
    eventually(lambda: not helpers._marks)


def test_thread_that_could_not_be_started_does_not_count(helpers, monkeypatch):
    def refuse(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("django_rlock._core.threads.start", refuse)
        for _ in range(2 * MOST):
            with pytest.raises(KeyboardInterrupt):
                helpers.take(Call(lambda: None))
    call = Call(lambda: "called")
    helpers.take(call)
    assert call.wait(UNTIL_SERVED)
    assert call.result() == "called"


def test_the_caller_calls_where_no_thread_is_left(helpers, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("django_rlock._core.threads.start", refuse)
    call = Call(threading.get_ident)
    helpers.take(call)
    assert call.result() == threading.get_ident()


def test_tasks_get_results_and_errors():
    async def body():
        return await asyncio.gather(*[TASKS.call(divmod, 7, number) for number in range(20)], return_exceptions=True)

    error, *values = asyncio.run(body())
    assert isinstance(error, ZeroDivisionError)
    assert values == [divmod(7, number) for number in range(1, 20)]
