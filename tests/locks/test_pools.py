"""The thread of a pool goes on with other jobs, so what a job takes must not stay with it."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async

from django_rlock import FairLock, RLock
from django_rlock.locks.holds import HOLDS
from tests.eventually import PATIENCE, UNTIL_SERVED, eventually
from tests.locks.leaving import given_back, lock, take, visit

__all__ = ["lock"]
ROOT = Path(__file__).parents[2]


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


def by_lambda(lock):
    return lambda: lock.acquire(wait_time=3)


def by_function(lock):
    def take(*, wait_time=3) -> bool:
        """It is the last thing that it does."""
        mine = lock
        return mine.acquire(wait_time=wait_time)

    return take


def by_nested_functions(lock):
    return lambda: by_function(lock)(wait_time=1)


def by_partial(lock):
    return partial(by_lambda(lock))


def by_block(lock):
    def enter() -> object:
        return lock.__enter__()

    return enter


SPELLINGS = [by_lambda, by_function, by_nested_functions, by_partial, by_block]


@pytest.mark.parametrize("way", [*WAYS, "anyio"], ids=lambda way: getattr(way, "__name__", way))
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_job_that_returns_what_it_takes_is_refused(redis_client, way, spelling):
    """``run_in_executor()`` takes no keywords, so everybody writes a lambda."""
    with pytest.raises(RuntimeError, match=REFUSED):
        asyncio.run((by_anyio if way == "anyio" else way)(spelling(FairLock("stock:42"))))
    assert not redis_client.keys("*stock:42*")


@pytest.mark.parametrize("make", [ThreadPool, ThreadPoolExecutor])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_job_of_a_pool_that_returns_what_it_takes_is_refused(redis_client, make, spelling):
    with make(1) as pool, pytest.raises(RuntimeError, match=REFUSED):
        list(pool.map(lambda each: spelling(each)(), [FairLock("stock:42")]))
    assert not redis_client.keys("*stock:42*")


def test_a_job_that_works_on_after_a_helper_has_taken_the_lock_is_not_refused(redis_client, pool):
    def work() -> bool:
        assert by_nested_functions(stock)()
        try:
            return by_lambda(stock)() and bool(redis_client.exists("rlock:stock:42"))
        finally:
            stock.release()
            stock.release()

    stock = FairLock("stock:42")
    assert pool.submit(work).result()
    assert asyncio.run(asyncio.to_thread(work))
    assert not redis_client.exists("rlock:stock:42")


def test_a_job_of_an_executor_that_only_takes_a_lock_is_refused(redis_client, pool, lock):
    with pytest.raises(RuntimeError, match=REFUSED):
        pool.submit(lock.acquire).result()
    with pytest.raises(RuntimeError, match=REFUSED):
        list(pool.map(lock.acquire, [True]))
    assert not redis_client.keys("*stock:42*")


async def test_a_job_that_was_cancelled_takes_nothing_later(redis_client, pool):
    """The pool runs it all the same."""
    taken = asyncio.create_task(asyncio.to_thread(FairLock("stock:42").acquire))
    await asyncio.sleep(0)
    taken.cancel()
    with pytest.raises((asyncio.CancelledError, RuntimeError)):
        await taken
    assert not redis_client.exists("rlock:stock:42")


def test_a_name_may_own_what_a_job_takes(redis_client, pool):
    lock = FairLock("stock:42", owner="order 7")
    assert pool.submit(lock.acquire).result()
    lock.release()


@pytest.fixture
def threads():
    """A pool that tells nobody when a job has ended."""
    with ThreadPool(1) as running:
        yield running


def test_what_a_job_left_held_is_given_back_while_its_thread_works_on(redis_client, threads, settings):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 1}}
    done = threading.Event()

    def work() -> None:
        done.wait()

    threads.apply(take, [FairLock("stock:42")])
    working = threads.apply_async(work)
    try:
        eventually(lambda: given_back(redis_client))
    finally:
        done.set()
        working.get()


def test_a_long_job_keeps_what_it_holds(redis_client, threads, lock, settings):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 1}}
    done = threading.Event()

    def work() -> bool:
        take(lock)
        done.wait()
        lock.release()
        return not lock.lost

    with contextlib.closing(threads):
        working = threads.apply_async(work)
        eventually(lambda: HOLDS.snapshot() and HOLDS.snapshot()[0].confirmed_at() > HOLDS.snapshot()[0].since + 1)
        done.set()
        assert working.get()


async def by_anyio(call):
    to_thread = pytest.importorskip("anyio.to_thread", reason="anyio is in the dependency group test")
    return await to_thread.run_sync(call)


def test_what_a_job_of_anyio_left_held_is_not_the_next_ones(redis_client, lock):
    async def main() -> int:
        assert await by_anyio(partial(take, lock))
        return await by_anyio(partial(visit, lock))

    assert asyncio.run(main()) == 1


def test_jobs_of_one_map_are_one_job(redis_client, threads):
    lock = FairLock("stock:42")

    def take_more(number: int) -> int:
        lock.acquire()
        return HOLDS.snapshot()[0].count

    assert threads.map(take_more, range(3), chunksize=3) == [1, 2, 3]
    assert threads.apply(visit, [lock]) == 1


@pytest.mark.parametrize("make", [ThreadPool, ThreadPoolExecutor])
def test_what_a_threads_initializer_left_held_is_not_a_jobs(redis_client, make):
    lock = FairLock("stock:42")
    with make(1, initializer=take, initargs=[lock]) as running:
        assert list(running.map(visit, [lock])) == [1]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_a_job_of_a_process_left_held_is_not_the_next_ones(method, server):
    """The main thread of a pool's process runs one job after another, too."""
    program = [sys.executable, "-m", "tests.locks.process_jobs", method, server.url]
    subprocess.run(program, cwd=ROOT, check=True, timeout=PATIENCE)


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
    eventually(lambda: given_back(redis_client))


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


@pytest.mark.parametrize("way", WAYS)
def test_a_chosen_lease_runs_on_for_nobody(redis_client, way, caplog):
    """As a view says "once a minute"."""
    taken = []

    def say() -> None:
        taken.append(take(RLock("stock:42", lease_time=60, wait_time=0)))

    for _ in range(2):
        asyncio.run(way(say))
    assert taken == [True, False]
    assert redis_client.exists("rlock:stock:42")
    assert not HOLDS
    assert "still held" not in caplog.text


def test_a_block_of_a_suspended_generator_keeps_its_lock(redis_client, lock):
    """As those of a streaming response, each of whose pieces is another job."""

    def pieces():
        with lock:
            yield take(lock)
            yield bool(redis_client.exists("rlock:stock:42"))

    each = pieces()
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        assert pool.submit(next, each).result()
        eventually(lambda: [hold.count for hold in HOLDS.snapshot()] == [1] * len(lock.parts))  # the block's
        assert other.submit(next, each).result()
        assert other.submit(next, each, None).result() is None
        eventually(lambda: given_back(redis_client))


class Thing:
    """What a job's function has a name for."""


def test_what_the_code_around_a_lock_drops_is_dropped_at_once():
    """Up to Python 3.12, a look at a frame's names keeps what they stand for."""

    def job():
        thing = Thing()
        with RLock("stock:42"):
            dropped = weakref.ref(thing)
        del thing
        return dropped() is None

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(job).result(UNTIL_SERVED)
