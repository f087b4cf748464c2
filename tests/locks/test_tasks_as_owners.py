"""Which task owns what an async method takes: the one that awaits it, and none that ends with the call."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_rlock import (
    CountDownLatch,
    FairLock,
    LockNotOwnedError,
    ReadLock,
    RLock,
    Semaphore,
    WriteLock,
)
from django_rlock.locks.holds import HOLDS
from tests.locks.conftest import several

Wrapped = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]

OWNERS = ["aacquire", "arelease", "__aenter__", "aowned", "ahold_count"]


@pytest.fixture(params=[FairLock, RLock, ReadLock, WriteLock, several], ids=lambda each: each.__name__)
def any_kind(request: pytest.FixtureRequest) -> Any:
    return request.param


async def in_a_group(coro: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        return await group.create_task(coro)


WRAPPERS: dict[str, Wrapped] = {
    "create_task": asyncio.create_task,
    "gather": asyncio.gather,
    "shield": asyncio.shield,
    "TaskGroup": in_a_group,
}
if sys.version_info < (3, 12):
    WRAPPERS["wait_for"] = lambda coro: asyncio.wait_for(coro, 5)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("method", OWNERS)
async def test_a_call_that_is_a_task_of_its_own_is_refused(kind, redis_client, wrap, method):
    with pytest.raises((RuntimeError, ExceptionGroup)) as caught:
        await wrap(getattr(kind("stock:42"), method)())
    told = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert type(told) is RuntimeError
    assert [word for word in (method, "gather()", "wait_time=") if word not in str(told)] == []
    assert not redis_client.keys("rlock:*")


def by_async_to_sync(call: Callable[[], Awaitable[Any]]) -> Any:
    return async_to_sync(call)()


def by_async_to_sync_in_a_loop(call: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(sync_to_async(async_to_sync(call))())


def by_portal(call: Callable[[], Awaitable[Any]]) -> Any:
    from_thread = pytest.importorskip("anyio.from_thread", reason="anyio is in the dependency group test")
    with from_thread.start_blocking_portal() as portal:
        return portal.call(call)


def by_from_thread(call: Callable[[], Awaitable[Any]]) -> Any:
    from_thread = pytest.importorskip("anyio.from_thread", reason="anyio is in the dependency group test")
    to_thread = pytest.importorskip("anyio.to_thread")
    return asyncio.run(to_thread.run_sync(from_thread.run, call))


@pytest.mark.parametrize("bridge", [by_async_to_sync, by_async_to_sync_in_a_loop, by_portal, by_from_thread])
@pytest.mark.parametrize("method", OWNERS)
def test_a_call_that_a_bridge_makes_a_task_is_refused(kind, redis_client, bridge, method):
    """Nothing could release the lock, since the task has ended when the bridge returns."""
    with pytest.raises(RuntimeError, match=rf"{method}\(\) of a lock was made a separate task.*blocking methods"):
        bridge(getattr(kind("stock:42"), method))
    assert not redis_client.keys("rlock:*")


def test_a_function_with_the_whole_block_may_be_called_by_a_bridge(kind):
    async def visit() -> bool:
        lock = kind("stock:42")
        async with lock:
            return bool(await lock.aowned())

    for bridge in (by_async_to_sync, by_async_to_sync_in_a_loop, by_portal, by_from_thread):
        assert bridge(visit)
        assert bridge(kind("stock:42", owner="order-7").aacquire)
        assert bridge(kind("stock:42", owner="order-7").arelease) is None


async def test_two_at_once_are_refused_both(any_kind, redis_client):
    lock = any_kind("stock:42")
    told = await asyncio.gather(lock.aacquire(), lock.aacquire(), return_exceptions=True)
    assert [type(each) for each in told] == [RuntimeError, RuntimeError]
    assert HOLDS.snapshot() == []
    assert not redis_client.keys("rlock:*")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="wait_for() makes a task of it")
async def test_wait_for_keeps_the_owner(any_kind):
    lock = any_kind("stock:42")
    assert await asyncio.wait_for(lock.aacquire(), 5)
    assert await lock.aowned()
    await asyncio.wait_for(lock.arelease(), 5)


async def test_the_owner_is_the_task_that_awaits_a_call(any_kind):
    """Not the one that made it, whose hold it would enter again."""

    async def work(call: Coroutine[Any, Any, bool]) -> None:
        assert not await call
        assert not await lock.aowned()

    async def take(call: Coroutine[Any, Any, bool]) -> None:
        assert await call
        assert await lock.aowned()
        await lock.arelease()

    lock = any_kind("stock:42")
    exclusive = WriteLock("stock:42") if any_kind is ReadLock else lock
    await lock.aacquire()
    await asyncio.create_task(work(exclusive.aacquire(blocking=False)))
    await lock.arelease()
    await asyncio.create_task(take(lock.aacquire()))
    assert HOLDS.snapshot() == []


async def test_release_names_the_task_that_has_ended(any_kind):
    async def take() -> None:
        await lock.aacquire()

    lock = any_kind("stock:42")
    await asyncio.create_task(take(), name="the taker")
    for method in (lock.arelease, lambda: lock.aextend(5)):
        with pytest.raises(LockNotOwnedError, match=r"acquired in 'the taker'.*ended.*asyncio.timeout") as caught:
            await method()
        assert caught.value.left_by == "the taker"
    HOLDS.clear()


async def test_release_does_not_name_a_task_that_goes_on(kind):
    async def hold(held: asyncio.Event, leave: asyncio.Event) -> None:
        async with kind("stock:42"):
            held.set()
            await leave.wait()

    held, leave = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(hold(held, leave))
    await held.wait()
    with pytest.raises(LockNotOwnedError, match="is not held by this owner") as caught:
        await kind("stock:42").arelease()
    assert caught.value.left_by is None
    leave.set()
    await holding


async def test_questions_and_force_may_be_tasks_of_their_own(any_kind):
    """They query and free the lock, whoever owns it."""
    other = RLock("stock:43")
    lock = any_kind("stock:42")
    async with lock:
        assert list(await asyncio.gather(lock.alocked(), other.alocked())) == [True, False]
        left, _ = await asyncio.gather(lock.aremaining_lease(), lock.ainfo())
        assert left > 0
    assert list(await asyncio.gather(lock.aforce_release(), other.aforce_release())) == [False, False]


async def test_an_owner_with_a_name_may_be_taken_in_any_task(kind):
    first, second = kind("stock:42", owner="order-7"), kind("stock:43", owner="order-7")
    assert list(await asyncio.gather(first.aacquire(), second.aacquire())) == [True, True]
    assert list(await asyncio.gather(first.aowned(), second.aowned())) == [True, True]
    await asyncio.gather(first.arelease(), second.arelease())
    assert HOLDS.snapshot() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: RLock("stock:42").aacquire(),
        lambda: RLock("stock:42", owner="them").__aenter__(),
        lambda: Semaphore("printers").aacquire(),
        lambda: CountDownLatch("ready").await_(),
    ],
    ids=["lock", "block of a named owner", "semaphore", "latch"],
)
def test_other_loops_than_asyncios_are_refused_in_words(redis_client, call):
    """As trio's, which runs a coroutine without a loop of asyncio."""
    with pytest.raises(RuntimeError, match=r"need a running asyncio event loop.*trio"):
        call().send(None)
