"""Code that waits for a lock of its own caller, which is blocked until that code has ended."""

import asyncio
import gc
import re
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_rlock import (
    FairLock,
    FencedLock,
    LockLostError,
    LockTimeoutError,
    MultiLock,
    ReadWriteLock,
    RLock,
    SpinLock,
)
from django_rlock._core.clock import monotonic
from django_rlock._transport import bridges
from django_rlock.locks import attempt
from django_rlock.locks.holds import HOLDS, WAITS
from tests.beside import beside, held_beside
from tests.eventually import UNTIL_SERVED, eventually
from tests.locks.test_pools import WAYS, by_another_thread, by_executor

LOCKS = {
    "fair": lambda **times: FairLock("stock:42", **times),
    "plain": lambda **times: RLock("stock:42", **times),
    "spin": lambda **times: SpinLock("stock:42", **times),
    "fenced": lambda **times: FencedLock("stock:42", **times),
    "write": lambda **times: ReadWriteLock("stock:42", **times).write_lock,
    "multi": lambda **times: MultiLock(FairLock("stock:41"), FencedLock("stock:42"), **times),
}
WAITS_FOR_ITSELF = r"Lock 'stock:4.' is held by .*, now at .*test_\w+.py:\d+, which waits until '.*' has ended"


@pytest.fixture(params=LOCKS)
def lock(request):
    return LOCKS[request.param]()


@pytest.fixture(autouse=True)
def nothing_waits():
    yield
    assert WAITS.snapshot() == []
    assert HOLDS.snapshot() == []


async def aenter(lock) -> str:
    async with lock:
        return "inside"


def enter(lock) -> str:
    with lock:
        return "inside"


def refused():
    return pytest.raises(RuntimeError, match=WAITS_FOR_ITSELF)


def by_async_to_sync(lock):
    return async_to_sync(aenter)(lock)


def by_asyncio_run(lock):
    return asyncio.run(aenter(lock))


def by_one_in_the_other(lock):
    async def inner() -> None:
        await sync_to_async(enter, thread_sensitive=False)(lock)

    async_to_sync(inner)()


def by_run_in_executor(lock):
    async_to_sync(by_executor)(partial(enter, lock))


def by_gathered_tasks(lock):
    async def inner() -> None:
        await asyncio.gather(aenter(lock), asyncio.sleep(0))

    async_to_sync(inner)()


def by_submit(lock):
    with ThreadPoolExecutor(1) as executor:
        executor.submit(enter, lock).result()


def by_map(lock):
    with ThreadPoolExecutor(1) as executor:
        list(executor.map(enter, [lock]))


def by_a_loop_of_another_thread(lock):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(aenter(lock), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


BLOCKING = [
    by_async_to_sync, by_asyncio_run, by_one_in_the_other, by_run_in_executor, by_gathered_tasks, by_submit, by_map,
    by_a_loop_of_another_thread,
]  # fmt: skip


@pytest.mark.parametrize("way", BLOCKING)
def test_code_that_a_thread_waits_for_inside_of_its_block(lock, way):
    with lock, refused():
        way(lock)


async def by_both(call):
    await sync_to_async(lambda: async_to_sync(by_another_thread)(call), thread_sensitive=False)()


@pytest.mark.parametrize("way", [*WAYS, by_both])
async def test_code_that_a_task_waits_for_inside_of_its_block(lock, way):
    async with lock:
        with refused():
            await way(partial(enter, lock))


def test_a_lease_that_is_not_renewed_is_waited_for():
    """It ends by itself."""
    lock = RLock("stock:42")
    lock.acquire(lease_time=0.3)
    assert async_to_sync(aenter)(RLock("stock:42")) == "inside"
    with pytest.raises(LockLostError):
        lock.release()


class Eager(ThreadPoolExecutor):
    """``submit`` returns when its job waits until the task that submits it, and still runs, has suspended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1)
        self._looked = threading.Event()
        self._look = bridges._let_it_suspend
        monkeypatch.setattr(bridges, "_let_it_suspend", self._note_look)

    def _note_look(self, task: bridges.Task) -> None:
        self._looked.set()
        self._look(task)

    def submit(self, *args, **kwargs):
        future = super().submit(*args, **kwargs)
        assert self._looked.wait(UNTIL_SERVED)
        return future


def test_by_a_task_that_has_not_suspended_yet(lock, monkeypatch):
    with Eager(monkeypatch) as executor:

        async def inner() -> None:
            await sync_to_async(enter, thread_sensitive=False, executor=executor)(lock)

        with lock, refused():
            async_to_sync(inner)()


async def in_a_task(lock):
    await asyncio.create_task(aenter(lock))


async def in_a_shielded_task(lock):
    await asyncio.shield(asyncio.create_task(aenter(lock)))


async def in_a_group(lock):
    async with asyncio.TaskGroup() as group:
        group.create_task(aenter(lock))


@pytest.mark.parametrize("way", [in_a_task, in_a_shielded_task, in_a_group])
async def test_tasks_that_the_holder_awaits(lock, way):
    async with lock:
        with pytest.raises((RuntimeError, ExceptionGroup)) as caught:
            await way(lock)
        error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
        assert re.match(WAITS_FOR_ITSELF, str(error))


async def fail_soon() -> None:
    await asyncio.to_thread(eventually, WAITS.snapshot)
    raise LookupError


async def test_a_task_beside_one_whose_error_ends_the_wait(lock):
    """gather() does not wait for it then."""
    async with lock:
        waiting = asyncio.create_task(aenter(lock))
        with pytest.raises(LookupError):
            await asyncio.gather(waiting, fail_soon())
    assert await waiting == "inside"


async def test_a_task_that_the_holder_does_not_await(lock):
    async with lock:
        waiting = asyncio.create_task(aenter(lock))
        await asyncio.to_thread(eventually, WAITS.snapshot)
    assert await waiting == "inside"


async def test_a_task_that_waits_for_a_while_says_where_its_holder_is(redis_client):
    async with FairLock("stock:42"):
        with pytest.raises(LockTimeoutError, match=f"in this process: task 'Task-.*', now at {__file__}:"):
            await asyncio.create_task(aenter(FairLock("stock:42", wait_time=0.01)))


LIMIT = 0.1


async def wait_for(awaited):
    await asyncio.wait_for(asyncio.shield(awaited), LIMIT)


async def in_a_timeout(awaited):
    async with asyncio.timeout(LIMIT):
        await asyncio.shield(awaited)


async def in_a_timeout_of_a_helper(awaited):
    async with asyncio.timeout(None):
        await in_a_timeout(awaited)


async def in_a_timeout_with_others(awaited):
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(asyncio.shield(awaited))


async def by_another_task(awaited):
    await asyncio.create_task(in_a_timeout(awaited))


async def fail_after(awaited):
    anyio = pytest.importorskip("anyio", reason="anyio is in the dependency group test")
    with anyio.fail_after(LIMIT):
        await asyncio.shield(awaited)


async def move_on_after(awaited):
    anyio = pytest.importorskip("anyio", reason="anyio is in the dependency group test")
    with anyio.move_on_after(LIMIT) as scope:
        await asyncio.shield(awaited)
    if scope.cancelled_caught:
        raise TimeoutError


LIMITED = [
    wait_for, in_a_timeout, in_a_timeout_of_a_helper, in_a_timeout_with_others, by_another_task, fail_after,
    move_on_after,
]  # fmt: skip


def by_a_task(lock):
    return asyncio.create_task(aenter(lock))


def by_a_job(lock):
    return asyncio.ensure_future(asyncio.to_thread(enter, lock))


@pytest.mark.parametrize("limited", LIMITED)
@pytest.mark.parametrize("helper", [by_a_task, by_a_job])
def test_a_holder_that_waits_with_a_limit_is_waited_for(redis_client, limited, helper):
    async def main() -> str:
        async with FairLock("stock:42"):
            helping = helper(FairLock("stock:42"))
            with pytest.raises(TimeoutError):
                await limited(helping)
        return await helping

    assert asyncio.run(main()) == "inside"


async def wait_for_it(holder):
    await asyncio.wait_for(holder(), LIMIT)


async def await_it_in_a_timeout(holder):
    async with asyncio.timeout(LIMIT):
        await asyncio.create_task(holder())


async def gather_it_in_a_timeout(holder):
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(holder(), asyncio.sleep(0))


async def group_it_in_a_timeout(holder):
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        group.create_task(holder())


async def group_it_in_anyio(holder):
    anyio = pytest.importorskip("anyio", reason="anyio is in the dependency group test")
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as group:
            group.start_soon(holder)


@pytest.mark.parametrize(
    "limited",
    [wait_for_it, await_it_in_a_timeout, gather_it_in_a_timeout, group_it_in_a_timeout, group_it_in_anyio],
)
@pytest.mark.parametrize("helper", [by_a_task, by_a_job])
def test_a_holder_that_others_cancel_at_a_limit_is_waited_for(redis_client, limited, helper):
    helping = []

    async def hold() -> None:
        async with FairLock("stock:42"):
            helping.append(helper(FairLock("stock:42")))
            await asyncio.shield(helping[0])

    async def main() -> str:
        with pytest.raises(TimeoutError):
            await limited(hold)
        return await helping[0]

    assert asyncio.run(main()) == "inside"


async def test_a_holder_that_others_shield_from_their_limit_is_not_waited_for(lock):
    async def hold() -> None:
        async with lock:
            await asyncio.create_task(aenter(lock))

    with pytest.raises(RuntimeError, match=WAITS_FOR_ITSELF):
        async with asyncio.timeout(UNTIL_SERVED):
            await asyncio.shield(hold())


def test_a_thread_whose_coroutine_waits_with_a_limit_is_waited_for(redis_client):
    async def inner(job: Future[str]) -> None:
        with pytest.raises(TimeoutError):
            await in_a_timeout(asyncio.wrap_future(job))

    with ThreadPoolExecutor(1) as executor:
        with FairLock("stock:42"):
            job = executor.submit(enter, FairLock("stock:42"))
            async_to_sync(inner)(job)
        assert job.result(UNTIL_SERVED) == "inside"


async def in_a_timeout_that_is_over(awaited):
    async with asyncio.timeout(0) as limit:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)
        assert limit.expired()
        await awaited


async def in_a_timeout_without_a_limit(awaited):
    async with asyncio.timeout(None):
        await awaited


@pytest.mark.parametrize("unlimited", [in_a_timeout_that_is_over, in_a_timeout_without_a_limit])
async def test_a_holder_that_waits_without_a_limit_is_not_waited_for(lock, unlimited):
    async with lock:
        with pytest.raises((RuntimeError, TimeoutError)) as caught:
            await unlimited(asyncio.create_task(aenter(lock)))
        assert re.match(WAITS_FOR_ITSELF, str(caught.value.__cause__ or caught.value.__context__ or caught.value))


def test_the_same_thread_enters_again(lock):
    """Under async_to_sync(), sync_to_async() runs in the thread that waits."""

    async def inner() -> str:
        return await sync_to_async(enter)(lock)

    with lock:
        assert async_to_sync(inner)() == "inside"


def test_a_name_enters_again(redis_client):
    with FairLock("stock:42", owner="order 7"):
        assert async_to_sync(aenter)(FairLock("stock:42", owner="order 7")) == "inside"


@pytest.mark.parametrize("wait", [enter, by_async_to_sync, by_asyncio_run])
def test_others_wait_as_ever(lock, wait):
    with ExitStack() as waiting:
        with lock:
            outcome = waiting.enter_context(beside(wait, lock))
            eventually(WAITS.snapshot)
        assert outcome.result(UNTIL_SERVED) == "inside"


def test_an_error_after_a_wait_says_where_the_holder_is(redis_client):
    """Where it is of this very process."""
    waiting = beside(enter, FairLock("stock:42", wait_time=0.01))
    with FairLock("stock:42"), pytest.raises(LockTimeoutError) as caught, waiting as outcome:
        outcome.result(UNTIL_SERVED)
    assert f"in this process: thread 'MainThread', now at {__file__}:" in str(caught.value)


def test_a_job_for_whose_result_the_holder_waits_later(lock, monkeypatch):
    monkeypatch.setattr(attempt, "OWNER_LOOK_AFTER", 0.01)
    with ThreadPoolExecutor(1) as executor, lock:
        waiting = executor.submit(enter, lock)
        eventually(WAITS.snapshot)
        with refused():
            waiting.result()


def test_a_job_for_whose_result_the_holder_waits_for_a_while(redis_client, monkeypatch):
    """It goes on then."""
    monkeypatch.setattr(attempt, "OWNER_LOOK_AFTER", 0.01)
    with ThreadPoolExecutor(1) as executor:
        with FairLock("stock:42"):
            waiting = executor.submit(enter, FairLock("stock:42"))
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        assert waiting.result() == "inside"


def test_a_job_for_whose_result_another_thread_waits(redis_client, monkeypatch):
    """The holder waits for another result."""
    monkeypatch.setattr(attempt, "OWNER_LOOK_AFTER", 0.01)
    other: Future[None] = Future()
    with ThreadPoolExecutor(2) as executor:
        with FairLock("stock:42"):
            waiting = executor.submit(enter, FairLock("stock:42"))
            executor.submit(waiting.result)
            eventually(WAITS.snapshot)
            threading.Timer(0.3, other.set_result, [None]).start()
            other.result()
        assert waiting.result() == "inside"


def test_tasks_that_wait_for_a_thread_share_a_look_at_the_tasks_of_their_loop(redis_client, monkeypatch):
    looks, all_tasks = [], asyncio.all_tasks

    def look(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[object]]:
        looks.append(loop)
        return all_tasks(loop)

    monkeypatch.setattr(asyncio, "all_tasks", look)
    began = monotonic()

    async def main() -> None:
        waiting = [asyncio.create_task(aenter(FairLock("stock:42"))) for _ in range(100)]
        await asyncio.to_thread(eventually, lambda: len(WAITS.snapshot()) == len(waiting))
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)

    with held_beside(FairLock("stock:42")):
        for _ in range(2):
            asyncio.run(main())
    assert len(looks) <= 2 + (monotonic() - began) / bridges.LOOK_SHARED_FOR
    assert len({*looks}) == 2


async def test_tasks_that_wait_for_a_thread_find_a_bridge_that_is_younger_than_the_look(redis_client, monkeypatch):
    monkeypatch.setattr(attempt, "OWNER_LOOK_AFTER", 0.01)
    monkeypatch.setattr(bridges, "LOOK_SHARED_FOR", 0.02)

    def enter_in_a_task_of_the_loop() -> None:
        with FairLock("stock:42"), refused():
            async_to_sync(in_a_task)(FairLock("stock:42"))

    with held_beside(FairLock("stock:41")), pytest.raises(LockTimeoutError):
        await aenter(FairLock("stock:41", wait_time=0.001))
    loop = asyncio.get_running_loop()
    look = bridges._looks.get(loop)
    assert look is not None
    bridges._looks.set(loop, look._replace(at=monotonic()))
    await asyncio.to_thread(enter_in_a_task_of_the_loop)


def test_a_look_at_the_tasks_of_a_loop_does_not_keep_the_loop(redis_client):
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        with pytest.raises(LockTimeoutError):
            await aenter(FairLock("stock:42", wait_time=0.5))  # so long that it begins to wait on a busy machine
        loop = asyncio.get_running_loop()
        assert bridges._looks.get(loop)
        return weakref.ref(loop)

    with held_beside(FairLock("stock:42")):
        loop = asyncio.run(main())
    gc.collect()
    assert loop() is None
