"""A lock that a request or a task leaves held is released at its end; its thread or greenlet goes on with others."""

import re
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import gevent
import pytest
from celery import Celery, signals
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from django_rlock import FairLock, RLock, rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.middleware import begin_request, begin_run, end_request, end_run
from tests.beside import in_another_thread
from tests.locks.leaving import LOCKS, lock

__all__ = ["lock"]

counts: list[int] = []
"""How often the lock was held inside each request or task."""


@pytest.fixture(autouse=True)
def _no_counts() -> None:
    counts.clear()


def leave(request: HttpRequest, kind: str) -> HttpResponse:
    lock = LOCKS[kind]()
    assert lock.acquire(wait_time=0)
    counts.append(HOLDS.snapshot()[0].count)
    return HttpResponse()


def leave_in_function(request: HttpRequest) -> HttpResponse:
    assert lock_in_helper()
    raise ZeroDivisionError


def lock_in_helper() -> bool:
    return RLock("stock:42").acquire()


def leave_lease(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(RLock("stock:42", lease_time=60).acquire(wait_time=0)))


def stream(request: HttpRequest) -> StreamingHttpResponse:
    lock = RLock("stock:42")
    lock.acquire()

    def pieces() -> Iterator[str]:
        try:
            yield str(lock.held)
            yield str(lock.held)
        finally:
            lock.release()

    return StreamingHttpResponse(pieces())


def name_owner(request: HttpRequest) -> HttpResponse:
    RLock("stock:42", owner="order 7").acquire()
    return HttpResponse()


def run_task(request: HttpRequest) -> HttpResponse:
    """Eagerly, inside the request."""
    lock = RLock("stock:41")
    lock.acquire()
    tasks.pop().apply()
    return HttpResponse(f"{lock.held} {RLock('stock:42').held}")


tasks: list[Any] = []
urlpatterns = [
    path("leave/<kind>/", leave),
    *(path(f"{view.__name__}/", view) for view in (leave_in_function, leave_lease, stream, name_owner, run_task)),
]
pytestmark = pytest.mark.urls(__name__)


def get(url: str) -> Any:
    return Client(raise_request_exception=False).get(url)


@pytest.mark.parametrize("kind", LOCKS)
def test_what_a_request_left_is_not_the_next_ones(redis_client, kind, caplog):
    get(f"/leave/{kind}/")
    assert not redis_client.exists("rlock:stock:42", "rlock:stock:43")
    get(f"/leave/{kind}/")
    assert counts == [1, 1]
    assert not HOLDS
    assert re.search(rf"A request has ended and still held lock 'stock:42', acquired at {__file__}:\d+", caplog.text)
    assert "owner=" in caplog.text
    assert "hand_over()" in caplog.text


def test_what_a_request_that_fails_left_is_released(redis_client):
    assert get("/leave_in_function/").status_code == 500
    assert not HOLDS
    assert not redis_client.exists("rlock:stock:42")


def test_requests_of_one_greenlet_share_nothing(redis_client):
    def serve() -> None:
        get("/leave/plain/")
        get("/leave/plain/")

    gevent.spawn(serve).get()
    assert counts == [1, 1]
    assert not redis_client.exists("rlock:stock:42")


async def test_async_servers_leave_nothing(redis_client):
    await AsyncClient().get("/leave/plain/")
    await AsyncClient().get("/leave/plain/")
    assert counts == [1, 1]
    assert not redis_client.exists("rlock:stock:42")


def test_what_was_held_before_a_request_stays(redis_client):
    """Even if the request enters it, and leaves it entered."""
    lock = RLock("stock:42")
    lock.acquire()
    with FairLock("stock:43"):
        get("/leave/plain/")
        assert counts == [2]
        assert lock.hold_count() == 1
        assert FairLock("stock:43").held
    lock.release()
    assert not redis_client.exists("rlock:stock:42")


def test_a_response_may_release_it(caplog):
    assert b"".join(get("/stream/").streaming_content) == b"TrueTrue"
    assert not HOLDS
    assert "still held" not in caplog.text


def test_a_name_keeps_a_lock_longer(redis_client):
    get("/name_owner/")
    assert redis_client.exists("rlock:stock:42")
    RLock("stock:42", owner="order 7").release()


def test_a_chosen_lease_runs_on_for_nobody(redis_client, caplog):
    """As "once a minute" is written by some; but the next request must not be inside."""
    assert get("/leave_lease/").content == b"True"
    assert redis_client.exists("rlock:stock:42")
    assert not HOLDS
    assert get("/leave_lease/").content == b"False"
    assert "still held" not in caplog.text


def test_a_response_that_another_thread_closes_ends_nothing_there():
    """That thread may hold a lock of its own."""
    lock, held = RLock("stock:42"), list[bool]()

    def close() -> None:
        lock.acquire()
        end_request()
        held.append(lock.held)
        lock.release()

    begin_request()
    in_another_thread(copy_context().run, close)
    assert held == [True]


@pytest.fixture
def app():
    """The app connects these when Django starts, if the project has loaded Celery by then."""
    signals.task_prerun.connect(begin_run)
    signals.task_postrun.connect(end_run)
    with Celery("in process", broker="memory://", set_as_current=False) as made:
        yield made
    signals.task_prerun.disconnect(begin_run)
    signals.task_postrun.disconnect(end_run)


def test_what_a_task_left_is_not_the_next_ones(app, lock, redis_client, caplog):
    @app.task(name="leaves", shared=False)
    def leaves() -> None:
        assert lock.acquire(wait_time=0)
        counts.append(HOLDS.snapshot()[0].count)
        raise ZeroDivisionError

    for _ in range(2):
        leaves.apply()
    assert counts == [1, 1]
    assert not redis_client.exists("rlock:stock:42", "rlock:stock:43")
    assert re.search(r"Task leaves\[.*\] has ended and still held lock 'stock:42', acquired at ", caplog.text)


def test_a_task_inside_a_request_ends_its_own_only(app, redis_client):
    @app.task(shared=False)
    def leaves() -> None:
        RLock("stock:42").acquire()

    tasks.append(leaves)
    assert get("/run_task/").content == b"True False"
    assert not HOLDS
    assert not redis_client.exists("rlock:stock:41", "rlock:stock:42")


def test_a_block_around_a_task_keeps_its_lock(app, lock):
    @app.task(shared=False)
    def leaves() -> None:
        lock.acquire()

    with lock:
        leaves.apply()
        assert [hold.count for hold in HOLDS.snapshot()] == [1] * len(lock.parts)
    assert not HOLDS


def test_a_lost_lock_is_forgotten(app):
    @app.task(name="loses", shared=False)
    def loses() -> None:
        lock = rlock("stock:42")
        lock.acquire()
        rlock("stock:42").force_release()

    loses.apply()
    assert not HOLDS
