"""The thread of a pool goes on with other jobs, so what a job takes must not stay with it."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async

from django_rlock import FairLock, MultiLock, ReadWriteLock, RLock
from django_rlock.locks.holds import HOLDS
from tests.eventually import eventually

LOCKS = {
    "fair": lambda: FairLock("stock:42"),
    "plain": lambda: RLock("stock:42"),
    "read": lambda: ReadWriteLock("stock:42").read_lock,
    "multi": lambda: MultiLock(FairLock("stock:42"), RLock("stock:43")),
}


@pytest.fixture(params=LOCKS)
def lock(request):
    return LOCKS[request.param]()


def take(lock) -> bool:
    return lock.acquire()


def given_back(redis_client) -> None:
    """Wait until that has been done."""
    eventually(lambda: not redis_client.exists("rlock:stock:42", "rlock:stock:43"))
    assert HOLDS.snapshot() == []


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1, "worker") as running:
        yield running


REFUSED = "does nothing else"


async def by_sync_to_async(call):
    await sync_to_async(call)()


async def by_another_thread(call):
    await sync_to_async(call, thread_sensitive=False)()


async def by_context(call):
    async with ThreadSensitiveContext():
        await sync_to_async(call)()


async def by_to_thread(call):
    await asyncio.to_thread(call)


async def by_executor(call):
    await asyncio.get_running_loop().run_in_executor(None, call)


WAYS = [by_sync_to_async, by_another_thread, by_context, by_to_thread, by_executor]


@pytest.mark.parametrize("run", [asyncio.run, lambda coro: async_to_sync(lambda: coro)()], ids=["run", "async_to_sync"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["acquire", "__enter__"])
@pytest.mark.filterwarnings("ignore:async_to_sync was passed")
def test_a_job_that_only_takes_a_lock_is_refused(redis_client, run, way, method):
    call = getattr(FairLock("stock:42"), method)
    with pytest.raises(RuntimeError, match=REFUSED):
        run(way(call))
    assert not redis_client.keys("*stock:42*")


def test_a_job_of_an_executor_that_only_takes_a_lock_is_refused(redis_client, pool, lock):
    with pytest.raises(RuntimeError, match=REFUSED):
        pool.submit(lock.acquire).result()
    with pytest.raises(RuntimeError, match=REFUSED):
        list(pool.map(lock.acquire, [True]))
    assert not redis_client.keys("*stock:42*")


def test_a_job_that_was_cancelled_takes_nothing_later(redis_client, pool):
    """The pool runs it all the same."""

    async def main() -> None:
        taken = asyncio.create_task(asyncio.to_thread(FairLock("stock:42").acquire))
        await asyncio.sleep(0)
        taken.cancel()
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await taken

    asyncio.run(main())
    assert not redis_client.exists("rlock:stock:42")


def test_a_name_may_own_what_a_job_takes(redis_client, pool):
    lock = FairLock("stock:42", owner="order 7")
    assert pool.submit(lock.acquire).result()
    lock.release()


def test_what_a_job_left_held_is_given_back_and_reported(redis_client, pool, lock, caplog):
    assert pool.submit(take, lock).result()
    given_back(redis_client)
    assert "Lock 'stock:42' was still held when a job of the pool's thread 'worker_0' ended" in caplog.text


def test_all_that_a_job_left_held_is_given_back(redis_client, pool, lock):
    def take_more() -> None:
        lock.acquire()
        lock.acquire()
        contextlib.ExitStack().enter_context(lock)

    pool.submit(take_more).result()
    given_back(redis_client)


def test_two_requests_that_share_a_thread_exclude_each_other(redis_client):
    """Both leave the lock held, which is wrong; but the second must not get in because the first is."""
    lock = FairLock("stock:42")
    inside = []

    def visit() -> None:
        assert lock.acquire()
        inside.append(HOLDS.snapshot()[0].count)

    async def main() -> None:
        await asyncio.gather(sync_to_async(visit)(), sync_to_async(visit)())

    asyncio.run(main())
    async_to_sync(main)()
    assert inside == [1, 1, 1, 1]
    given_back(redis_client)


def test_an_outer_hold_of_the_same_thread_stays(redis_client):
    """Under async_to_sync(), sync code runs in the thread that waits for it."""
    lock = FairLock("stock:42")

    async def inner() -> None:
        await sync_to_async(take)(lock)

    with lock:
        async_to_sync(inner)()
        assert redis_client.exists("rlock:stock:42")
        assert lock.hold_count() == 1
    assert not redis_client.exists("rlock:stock:42")


def test_a_block_inside_a_job_is_left_alone(redis_client, pool, lock, caplog):
    def work() -> bool:
        with lock, lock:
            return bool(redis_client.exists("rlock:stock:42"))

    assert pool.submit(work).result()
    assert asyncio.run(asyncio.to_thread(work))
    assert not redis_client.exists("rlock:stock:42")
    assert "still held" not in caplog.text


def test_what_another_thread_holds_is_left_alone(redis_client, pool):
    with FairLock("stock:42"):
        assert pool.submit(lambda: take(FairLock("stock:42", wait_time=0))).result() is False
        assert redis_client.exists("rlock:stock:42")
