"""The thread of trio's loop runs many tasks, so none of them may take a lock in its name."""

import asyncio

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_rlock import CountDownLatch, FairLock, MultiLock, PermitExpirableSemaphore, ReadWriteLock, RLock, Semaphore
from django_rlock.locks.holds import HOLDS
from tests.eventually import eventually

trio = pytest.importorskip("trio", reason="trio is in the dependency group test")

CALLS = {
    "acquire": lambda: FairLock("stock:42").acquire(),
    "try": lambda: RLock("stock:42").acquire(blocking=False),
    "with": lambda: enter_and_leave(FairLock("stock:42")),
    "read": lambda: enter_and_leave(ReadWriteLock("stock:42").read_lock),
    "multi": lambda: enter_and_leave(MultiLock(FairLock("stock:42"), RLock("stock:43"))),
    "name": lambda: enter_and_leave(FairLock("stock:42", owner="order 7")),
    "semaphore": lambda: Semaphore("stock:42").acquire(),
    "permit": lambda: PermitExpirableSemaphore("stock:42").acquire(),
    "latch": lambda: CountDownLatch("stock:42").wait(0),
}


def enter_and_leave(lock) -> None:
    with lock:
        pass


async def in_a_task(function):
    return function()


def run_by_trio(function):
    return trio.run(in_a_task, function)


def run_by_anyio(function):
    anyio = pytest.importorskip("anyio", reason="anyio is in the dependency group test")
    return anyio.run(in_a_task, function, backend="trio")


@pytest.mark.parametrize("run", [run_by_trio, run_by_anyio])
@pytest.mark.parametrize("call", CALLS)
def test_a_task_takes_nothing_in_the_name_of_its_thread(redis_client, run, call):
    for error in SynchronousOnlyOperation, RuntimeError:
        with pytest.raises(error, match=r"task of trio.*trio\.to_thread\.run_sync"):
            run(CALLS[call])
    assert not redis_client.keys("*stock:42*")


def test_tasks_that_give_their_work_to_threads_exclude_each_other(redis_client):
    def visit() -> None:
        with FairLock("stock:42"):
            inside.append(HOLDS.snapshot()[0].count)
            assert len(HOLDS.snapshot()) == 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.to_thread.run_sync, visit)

    inside: list[int] = []
    trio.run(main)
    assert inside == [1, 1, 1]


def test_code_outside_of_a_run_is_not_refused(redis_client):
    def visit() -> None:
        with RLock("stock:42"):
            pass

    trio.run(trio.sleep, 0)
    visit()

    async def main() -> None:
        async with RLock("stock:42"):
            pass

    asyncio.run(main())


def test_a_block_that_ends_inside_a_task_is_left(redis_client):
    """As that of a generator which other code has entered."""

    def generate():
        with FairLock("stock:42"):
            yield

    generator = generate()
    next(generator)
    run_by_trio(generator.close)
    assert HOLDS.snapshot() == []
    eventually(lambda: not redis_client.exists("rlock:stock:42"))


def test_a_project_may_allow_it(redis_client, monkeypatch):
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    run_by_trio(CALLS["with"])
