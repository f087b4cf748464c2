"""No exception of a signal's handler vanishes: where all ends as it should, no Python code runs as objects are dropped.

Python drops what is raised in ``__del__`` and in a weak reference's callback. A soft time limit would go unnoticed.
"""

import asyncio
import gc
import signal
import sys
import threading
from contextlib import contextmanager

import pytest
from django.db import transaction
from django.http import StreamingHttpResponse
from django.test import RequestFactory

from django_rlock import FairLock, PermitExpirableSemaphore, RLock, Semaphore, distributed_lock
from django_rlock._transport.servers import server
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS, WAITS
from tests.beside import beside
from tests.eventually import eventually
from tests.faults.interrupting import MAKERS, block_of
from tests.faults.storm import is_weak_callback

OURS = {"__del__", "_when_dropped"}


@contextmanager
def nothing_runs_as_objects_are_dropped():
    """In this thread, inside the block; nothing of ours, and no table of weak references with callbacks in Python.

    Without the garbage collector, which would drop here what earlier tests and other threads have left.
    """
    ran = set()

    def note(frame, event, _argument) -> None:
        code = frame.f_code
        is_ours = code.co_name in OURS and "/django_rlock/" in code.co_filename
        if event == "call" and (is_ours or is_weak_callback(code)):
            ran.add(f"{code.co_filename}: {code.co_qualname}, in {frame.f_back.f_code.co_qualname}")

    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()
    assert not ran


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_block(make, redis_client):
    lock = make()
    with nothing_runs_as_objects_are_dropped():
        block_of(lock)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_block_in_a_task(make, redis_client):
    async def block() -> None:
        async with make():
            pass

    with nothing_runs_as_objects_are_dropped():
        asyncio.run(block())


@pytest.mark.parametrize("make", [lambda: FairLock("stock:42"), lambda: RLock("stock:42")], ids=["fair", "plain"])
def test_wait(make, redis_client):
    inside = threading.Event()

    def hold() -> None:
        with make():
            inside.set()
            eventually(WAITS.snapshot)

    with beside(hold):
        inside.wait()
        with nothing_runs_as_objects_are_dropped():
            block_of(make())


def test_hold_that_has_listened_to_forced_releases(redis_client):
    with nothing_runs_as_objects_are_dropped(), RLock("stock:42"):
        eventually(lambda: HOLDS.snapshot()[0].subscription)


def test_permits(redis_client):
    plain, expirable = Semaphore("printers"), PermitExpirableSemaphore("licences")
    plain.try_set_permits(1)
    expirable.try_set_permits(1)
    with nothing_runs_as_objects_are_dropped(), plain, expirable.permit(renewed=True):
        pass


@pytest.mark.django_db(transaction=True)
def test_transactions(redis_client):
    with nothing_runs_as_objects_are_dropped():
        with RLock("stock:42").atomic():
            pass
        with transaction.atomic(), RLock("stock:43", until_commit=True):
            pass
    assert not RLock("stock:43").locked()


@pytest.mark.django_db
def test_response_that_keeps_its_lock(redis_client):
    view = distributed_lock("stock:42")(lambda request: StreamingHttpResponse(()))
    request = RequestFactory().get("/")
    with nothing_runs_as_objects_are_dropped():
        response = view(request)
        assert RLock("stock:42").locked()
        response.close()
        del response
    assert not RLock("stock:42").locked()


def test_connection(redis_client):
    with nothing_runs_as_objects_are_dropped():
        server("default").open().close()


class LimitError(Exception):
    """As Celery's soft time limit."""


def raise_limit(*_) -> None:
    raise LimitError


@pytest.fixture
def struck_release(monkeypatch):
    """A signal comes as a release begins, which is called as an object is dropped."""
    former = signal.signal(signal.SIGUSR1, raise_limit)
    flows = type(BaseLock._engine)
    release = flows.release

    def release_late(*args):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return release(*args)

    monkeypatch.setattr(flows, "release", staticmethod(release_late))
    yield
    signal.signal(signal.SIGUSR1, former)


def leave_by_rollback(lock) -> None:
    with transaction.atomic():
        lock.acquire()
        lock.release()
        transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("struck_release")
@pytest.mark.parametrize("owner", [None, "order 7"], ids=["thread", "name"])
def test_a_signal_during_the_release_after_a_rollback(redis_client, owner):
    """Django drops what it would call after COMMIT."""
    trace = sys.gettrace()
    with pytest.raises(LimitError):
        leave_by_rollback(RLock("stock:42", until_commit=True, owner=owner))
    eventually(lambda: not redis_client.exists("rlock:stock:42"))
    assert sys.gettrace() is trace


@pytest.mark.usefixtures("struck_release")
def test_a_signal_during_the_release_of_a_block_that_was_dropped(redis_client):
    """It was interrupted before."""

    def enter_and_be_dropped() -> None:
        lock = RLock("stock:42")
        leave = lock.__exit__  # "with" looks it up first
        lock.__enter__()
        del leave

    with pytest.raises(LimitError):
        enter_and_be_dropped()
    eventually(lambda: not redis_client.exists("rlock:stock:42"))
