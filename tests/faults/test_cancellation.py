"""asyncio: acquire that is cancelled at every await, asyncio.timeout, gather, and loops that end."""

import asyncio
import contextlib
import gc
import itertools
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation

from django_rlock import FencedLock, MultiLock, RLock
from django_rlock._transport.async_pool import _loops
from django_rlock._transport.listener import Listener, TaskWaiter, ThreadWaiter
from django_rlock.locks.holds import HOLDS
from tests.beside import in_another_thread
from tests.eventually import eventually

KEY = "rlock:stock:42"


class Cancelling:
    """Drives a coroutine, and cancels it at its n-th suspension."""

    def __init__(self, coro, at: int) -> None:
        self.coro = coro
        self.left = at
        self.struck = False

    def __await__(self):
        value = None
        steps = self.coro.__await__()
        while True:
            try:
                waited_for = steps.send(value)
            except StopIteration as end:
                return end.value
            if self.left == 0:
                self.struck = True
                if waited_for is not None:
                    waited_for.cancel()
                steps.throw(asyncio.CancelledError())
                raise AssertionError("the cancellation was swallowed")
            self.left -= 1
            value = yield waited_for


async def cancelled_at(coro, at: int) -> bool:
    """Whether the coroutine was cancelled at its n-th suspension; False when it ended before."""
    cancelling = Cancelling(coro, at)
    with contextlib.suppress(asyncio.CancelledError):
        await cancelling
    return cancelling.struck


def cancelled_everywhere(body: Callable[[int], Coroutine[Any, Any, bool]], check: Callable[[], object] = bool) -> int:
    """Run a body with 0, 1 and so on, until it is not cancelled any more; returns how often it was."""
    for at in itertools.count():
        if not asyncio.run(body(at)):
            return at
        check()
    raise AssertionError("unreachable")


async def try_for(lock, seconds: float) -> bool:
    return await lock.aacquire(wait_time=seconds)


def free_again(redis_client) -> bool:
    return eventually(lambda: not redis_client.exists(KEY, f"rlock_queue:{{{KEY}}}"))


@pytest.mark.parametrize("warm", [False, True], ids=["first", "later"])
def test_cancelled_acquire_leaves_nothing(kind, redis_client, warm):
    """At each suspension in turn, with connections to be made and with those of a pool."""
    lock = kind("stock:42")

    async def body(at: int) -> bool:
        if warm:
            async with lock:
                pass
        if await cancelled_at(lock.aacquire(), at):
            assert HOLDS.snapshot() == []
            return True
        await lock.arelease()
        return False

    assert cancelled_everywhere(body, partial(free_again, redis_client)) >= 1
    free_again(redis_client)


@pytest.mark.parametrize("method", ["acquire", "release"])
def test_cancelled_change_of_several_keeps_the_outer_hold(redis_client, method):
    """It also works while the others are released, one of which was taken."""
    outer, both = RLock("stock:42"), MultiLock(RLock("stock:42"), FencedLock("stock:43"))

    async def body(at: int) -> bool:
        async with outer:
            if method == "acquire":
                redis_client.hset("rlock:stock:43", "another", 1)
                struck = await cancelled_at(both.aacquire(blocking=False), at)
            else:
                await both.aacquire()
                struck = await cancelled_at(both.arelease(), at)
            assert [(hold.lock.name, hold.count) for hold in HOLDS.snapshot()] == [("stock:42", 1)]
            outer.check()
        return struck

    assert cancelled_everywhere(body) >= 2


def test_timeout_around_a_wait(kind, redis_client):
    lock = kind("stock:42")
    redis_client.hset(KEY, "another", 1)

    async def body() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lock.aacquire()
        redis_client.delete(KEY)
        assert await lock.aacquire()
        await lock.arelease()

    asyncio.run(body())
    free_again(redis_client)


@pytest.mark.parametrize("owner", [None, "order-7"])
@pytest.mark.parametrize(
    "method",
    ["acquire", "release", "__enter__", "locked", "owned", "hold_count", "remaining_lease", "force_release", "extend"],
)
def test_blocking_call_in_a_loop_is_refused(kind, method, owner):
    async def body() -> None:
        lock = kind("stock:42", owner=owner)
        with pytest.raises(SynchronousOnlyOperation):
            getattr(lock, method)(*([5] if method == "extend" else []))

    asyncio.run(body())


def test_async_call_outside_of_a_task_says_what_it_needs():
    with pytest.raises(RuntimeError):
        RLock("stock:42").aacquire().send(None)


def test_connections_are_closed_with_their_loop(kind, redis_client):
    """One loop after the other, as asyncio.run() and async_to_sync make them."""

    async def body() -> None:
        async with kind("stock:42"):
            pass

    async def waiting() -> None:
        async with kind("stock:42"):
            assert not await asyncio.create_task(try_for(kind("stock:42"), 0.01))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = len(redis_client.client_list())
        for _ in range(5):
            asyncio.run(body())
            async_to_sync(body)()
            asyncio.run(waiting())
        gc.collect()
    # the callers', the listener's, the background thread's and the reporter's stay
    eventually(lambda: len(redis_client.client_list()) <= before + 4)
    assert len(_loops.value) <= 1


def test_loop_that_was_closed_under_its_tasks_does_not_fail_the_next_one(kind, own_server):
    """Both tasks waited for a reply, and nobody can tell them of the end."""
    server = own_server()

    async def begin() -> None:
        async with kind("stock:42"):
            pass
        server.pause()
        asyncio.get_running_loop().abandoned = [  # type: ignore[attr-defined]
            asyncio.create_task(try_for(kind(f"stock:{number}"), 1)) for number in range(2)
        ]
        await asyncio.sleep(0)

    async def body() -> None:
        async with kind("stock:42"):
            pass

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    loop.run_until_complete(begin())
    loop.close()
    server.resume()
    asyncio.run(body())
    assert not _loops.value
    del loop
    gc.collect()


def test_abandoned_wait_that_is_collected_at_the_listener_does_not_block_it(server):
    """Its loop was closed under it, and the garbage collector ends it wherever it happens to run."""
    listener = Listener(lambda *_: mock.Mock())

    class CollectsNow(dict[Any, Any]):
        def setdefault(self, *args):
            gc.collect()
            return super().setdefault(*args)

    async def wait(waiter: TaskWaiter) -> None:
        try:
            await waiter.wait(None)
        finally:
            waiter.close()

    async def begin() -> None:
        waiter = TaskWaiter(listener, "channel", "abandoned")
        listener._join(waiter)
        asyncio.get_running_loop().abandoned = asyncio.ensure_future(wait(waiter))  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    loop.run_until_complete(begin())
    loop.close()
    del loop
    listener.channels = CollectsNow(listener.channels)
    following = ThreadWaiter(listener, "channel", "next")
    in_another_thread(listener._join, following)
