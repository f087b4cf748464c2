"""A generator that is dropped ends in another task or thread, and with it the blocks inside it."""

import asyncio
import contextlib
import gc

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    MultiLock,
    PermitExpirableSemaphore,
    ReadWriteLock,
    RLock,
    Semaphore,
    SpinLock,
)
from django_rlock.locks.holds import HOLDS
from tests.eventually import eventually, in_threads

LOCKS = {
    "fair": lambda: FairLock("stock:42"),
    "plain": lambda: RLock("stock:42"),
    "fenced": lambda: FencedLock("stock:42"),
    "spin": lambda: SpinLock("stock:42"),
    "read": lambda: ReadWriteLock("stock:42").read_lock,
    "write": lambda: ReadWriteLock("stock:42").write_lock,
    "multi": lambda: MultiLock(FairLock("stock:42"), FencedLock("stock:43")),
    "name": lambda: FairLock("stock:42", owner="order 7"),
}


@pytest.fixture(params=LOCKS)
def lock(request):
    return LOCKS[request.param]()


def is_free(redis_client) -> bool:
    return not redis_client.exists("rlock:stock:42", "rlock:stock:43") and not HOLDS.snapshot()


async def in_block(lock):
    async with lock:
        yield 1
        yield 2


async def in_stack(lock):
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(lock)
        yield 1
        yield 2


@pytest.mark.parametrize("rows", [in_block, in_stack])
def test_of_a_task_that_goes_on(redis_client, lock, rows):
    """Python closes it in a task of its own."""

    async def main() -> None:
        async for _ in rows(lock):
            break
        await asyncio.to_thread(eventually, lambda: is_free(redis_client))
        async with lock:
            assert not lock.lost

    asyncio.run(asyncio.wait_for(main(), 10))
    assert is_free(redis_client)


def sync_in_block(lock):
    with lock:
        yield 1
        yield 2


def sync_in_stack(lock):
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        yield 1
        yield 2


@pytest.mark.parametrize("rows", [sync_in_block, sync_in_stack])
def test_closed_by_another_thread(redis_client, lock, rows):
    generator = rows(lock)
    next(generator)
    in_threads(generator.close)
    assert is_free(redis_client)
    with lock:
        assert not lock.lost


@pytest.mark.parametrize("rows", [sync_in_block, sync_in_stack])
def test_closed_inside_an_event_loop(redis_client, lock, rows):
    """There it must not wait for the server."""
    generator = rows(lock)
    next(generator)

    async def main() -> None:
        generator.close()

    asyncio.run(main())
    eventually(lambda: is_free(redis_client))


async def drop(generators) -> None:
    """Inside an event loop."""
    generators.clear()
    gc.collect()


def test_collected_inside_an_event_loop(redis_client, lock):
    generators = [sync_in_block(lock)]
    next(generators[0])
    asyncio.run(drop(generators))
    eventually(lambda: is_free(redis_client))


PERMITS = {
    "semaphore": (Semaphore("stock:42"), lambda semaphore: semaphore),
    "permit": (PermitExpirableSemaphore("stock:42"), lambda semaphore: semaphore.permit()),
    "renewed": (PermitExpirableSemaphore("stock:42"), lambda semaphore: semaphore.permit(renewed=True)),
}


@pytest.fixture(params=PERMITS)
def semaphore(request):
    semaphore = PERMITS[request.param][0]
    semaphore.try_set_permits(1)
    return semaphore


@pytest.fixture
def block(request, semaphore):
    return PERMITS[request.node.callspec.params["semaphore"]][1](semaphore)


def all_free(semaphore) -> None:
    """Wait until the permit has been given back, once."""
    eventually(lambda: semaphore.available_permits() == 1)
    assert HOLDS.snapshot() == []


@pytest.mark.parametrize("rows", [sync_in_block, sync_in_stack])
def test_a_permit_closed_inside_an_event_loop(semaphore, block, rows):
    generator = rows(block)
    next(generator)

    async def main() -> None:
        generator.close()

    asyncio.run(main())
    all_free(semaphore)


def test_a_permit_closed_by_another_thread(semaphore, block):
    generator = sync_in_block(block)
    next(generator)
    in_threads(generator.close)
    all_free(semaphore)


def test_a_permit_of_a_task_that_goes_on(semaphore, block):
    async def main() -> None:
        async for _ in in_block(block):
            break
        await asyncio.to_thread(all_free, semaphore)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_an_outer_block_of_the_first_task_stays(redis_client):
    lock = FairLock("stock:42")

    async def main() -> None:
        async with lock:
            async for _ in in_block(lock):
                break
            await asyncio.to_thread(eventually, lambda: HOLDS.snapshot()[0].count == 1)
            assert redis_client.hvals("rlock:stock:42") == ["1"]
            lock.check()

    asyncio.run(asyncio.wait_for(main(), 10))
    assert is_free(redis_client)


def test_another_owner_still_releases_nothing(redis_client):
    lock = FairLock("stock:42")
    errors: list[RuntimeError] = []

    def leave() -> None:
        try:
            lock.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(error)

    with lock:
        in_threads(leave)
        assert "is not held by this owner" in str(errors[0])
        assert redis_client.exists("rlock:stock:42")
