"""Event loops that the project drops without closing them, as sync code does that makes one for each call."""

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_rlock import RLock, rlock
from django_rlock._transport.async_pool import connections_of
from django_rlock._transport.servers import server
from django_rlock.exceptions import LockUnavailableError
from tests.eventually import PATIENCE, eventually

FEW = 3
"""MAX_CONNECTIONS of these tests."""


@pytest.fixture
def few(settings: Any) -> None:
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": FEW}}


@pytest.fixture
def dropped() -> Iterator[list[asyncio.AbstractEventLoop]]:
    """Loops that the test keeps, so that no collector helps."""
    kept: list[asyncio.AbstractEventLoop] = []
    yield kept
    for loop in kept:
        loop.close()


async def visit() -> None:
    async with rlock("stock:1"):
        pass


def are_collected(refs: list[weakref.ref[Any]]) -> bool:
    """Whether the objects are gone. A background thread may look at them just now."""
    gc.collect()
    return not any(each() for each in refs)


def run_and_drop(dropped: list[asyncio.AbstractEventLoop], body: Callable[[], Any] = visit) -> None:
    loop = asyncio.new_event_loop()
    dropped.append(loop)
    loop.run_until_complete(body())


@pytest.mark.usefixtures("few")
def test_dropped_loops_leave_connections_for_threads_and_other_loops(dropped):
    for _ in range(2 * FEW):
        run_and_drop(dropped)
    with rlock("stock:2", wait_time=0):
        asyncio.run(visit())
    assert server("default").size <= FEW


@pytest.mark.usefixtures("few")
def test_a_loop_whose_connection_was_taken_back_goes_on_with_another_one(dropped):
    run_and_drop(dropped)
    first = connections_of(dropped[0]).shared[server("default")]
    for _ in range(FEW):
        run_and_drop(dropped)
    assert not first.is_open
    for loop in dropped:
        loop.run_until_complete(visit())
    assert first.connection.sock.fileno() == -1  # its loop has closed it
    assert server("default").size <= FEW


@pytest.mark.usefixtures("few")
def test_a_loop_that_runs_keeps_its_connection():
    held, gate = threading.Barrier(FEW + 1), threading.Event()
    refused: list[str] = []

    async def hold(number: int) -> None:
        async with rlock(f"stock:{number}"):
            held.wait(PATIENCE)
            await asyncio.to_thread(gate.wait)

    loops = [threading.Thread(target=asyncio.run, args=(hold(number),)) for number in range(FEW)]
    for each in loops:
        each.start()
    held.wait(PATIENCE)
    try:
        RLock("stock:9").acquire(wait_time=0)
    except LockUnavailableError as error:
        refused.append(str(error))
    gate.set()
    for each in loops:
        each.join()
    assert "All 3 connections are in use" in refused[0]
    assert "event loop" in refused[0]
    assert RLock("stock:9").acquire(wait_time=0)
    RLock("stock:9").release()


@pytest.mark.usefixtures("few")
def test_a_task_that_waits_for_a_reply_is_not_disturbed(dropped, own_server):
    """Its loop stands still for a moment, as one does that runs now and then."""
    paused = own_server()
    run_and_drop(dropped)
    paused.pause()
    loop = dropped[0]
    working = loop.create_task(visit())
    loop.run_until_complete(asyncio.sleep(0))
    connection = connections_of(loop).shared[server("default")]
    assert connection.owes
    connection.take_back()
    assert connection.is_open
    paused.resume()
    loop.run_until_complete(working)
    assert connection.is_open


@pytest.mark.usefixtures("few")
def test_a_dropped_task_is_not_woken_in_place_of_another_waiter(dropped):
    """It waited for a connection, and its loop will never run again."""
    here = server("default")
    taken = [here.take(PATIENCE) for _ in range(FEW)]

    async def begin() -> None:
        task = asyncio.create_task(visit())
        await asyncio.to_thread(eventually, lambda: here._waits)
        del task

    run_and_drop(dropped, begin)
    refs = [*here._waits]
    assert len(refs) == 1
    dropped.pop().close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Task was destroyed but it is pending!"
        eventually(partial(are_collected, refs))
    for each in taken:
        here.give_back(each)
    with rlock("stock:1", wait_time=0):
        pass


@pytest.mark.filterwarnings("ignore:unclosed event loop")
def test_a_loop_that_nobody_refers_to_is_collected_with_its_connection():
    server("default").close_idle()  # that of other tests
    loops = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(visit())
        loops.append(weakref.ref(loop))
        del loop
    eventually(partial(are_collected, loops))
    assert server("default").size <= 1
