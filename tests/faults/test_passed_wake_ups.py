"""A waiter that was woken and is broken off before it asked leaves what fell free to the next one, at once.

No heartbeat and no poll helps here: they come later than a test has patience.
"""

import asyncio
import gc
import itertools
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    PermitExpirableSemaphore,
    ReadWriteLock,
    RLock,
    Semaphore,
)
from django_rlock._core.threads import LoopEvent, Sleep
from django_rlock._redis.keys import redisson_channel
from django_rlock._transport.calls import run_sync
from django_rlock._transport.listener import Listener, ThreadWaiter
from django_rlock._transport.registry import async_driver, listener, sync_driver
from django_rlock.locks import BaseLock
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.holds import WAITS
from django_rlock.locks.records import Wait
from tests.eventually import UNTIL_SERVED, eventually
from tests.faults.interrupting import Interruption, at_call, is_interrupted
from tests.faults.test_cancellation import cancelled_at

CHANNEL = redisson_channel("rlock:stock:42")


class Scene:
    """Something that is taken, that two wait for, and that falls free once.

    ``taken`` is the command by which another owner took it, with arguments behind the key; ``free`` is the call that
    frees it.
    """

    def __init__(self, thing: Any, taken: tuple[Any, ...], free: Callable[[], object]) -> None:
        self.thing = thing
        self._taken = taken
        self.free = free

    def take(self, client: redis.Redis) -> None:
        client.flushdb()
        client.execute_command(self._taken[0], "rlock:stock:42", *self._taken[1:])

    def ask(self, taken: list[Any]) -> None:
        """Wait for it; what was taken by it is noted."""
        taken.append(self.thing.wait() if self.is_latch else self.thing.acquire())

    async def aask(self, taken: list[Any]) -> None:
        taken.append(await (self.thing.await_() if self.is_latch else self.thing.aacquire()))

    def give_back(self, taken: list[Any]) -> None:
        for each in taken:
            if not self.is_latch:
                self.thing.release(*_what(each))

    async def agive_back(self, taken: list[Any]) -> None:
        for each in taken:
            if not self.is_latch:
                await self.thing.arelease(*_what(each))

    def visit(self) -> None:
        taken: list[Any] = []
        self.ask(taken)
        self.give_back(taken)

    async def avisit(self) -> None:
        taken: list[Any] = []
        await self.aask(taken)
        await self.agive_back(taken)

    @property
    def is_latch(self) -> bool:
        return isinstance(self.thing, CountDownLatch)


def _what(taken: Any) -> tuple[Any, ...]:
    return () if taken is True else (taken,)


def locked(lock: BaseLock) -> Scene:
    return Scene(lock, ("HSET", "another", 1), lock.force_release)


def written(side: str, **options: Any) -> Scene:
    lock = ReadWriteLock("stock:42", **options)
    return Scene(getattr(lock, side), ("HSET", "mode", "write", "another:write", 1), lock.write_lock.force_release)


SCENES: dict[str, Callable[[], Scene]] = {
    "rlock": lambda: locked(RLock("stock:42")),
    "fenced": lambda: locked(FencedLock("stock:42")),
    "fair": lambda: locked(FairLock("stock:42")),
    "read": lambda: written("read_lock"),
    "write": lambda: written("write_lock"),
    "writer first": lambda: written("write_lock", prefer="writer"),
    "semaphore": lambda: Scene(Semaphore("stock:42"), ("SET", 0), Semaphore("stock:42").release),
    "permits": lambda: Scene(
        PermitExpirableSemaphore("stock:42"), ("SET", 0), partial(PermitExpirableSemaphore("stock:42").add_permits, 1)
    ),
    "latch": lambda: Scene(CountDownLatch("stock:42"), ("SET", 1), CountDownLatch("stock:42").count_down),
}


SHORT = {"fair", "rlock", "read", "semaphore"}


@pytest.fixture(params=[name if name in SHORT else pytest.param(name, marks=pytest.mark.thorough) for name in SCENES])
def scene(request: pytest.FixtureRequest, settings: Settings) -> Scene:
    # No heartbeat repairs what is lost.
    settings.RLOCK = {"default": {"CACHE": "default", "WAITER_ALIVE_TIME": 600, "CLAIM_TIME": 500}}
    return SCENES[request.param]()


# --- tasks -----------------------------------------------------------------------------------------------------------


async def until_waiting(number: int) -> None:
    async with asyncio.timeout(UNTIL_SERVED):
        while len(WAITS.snapshot()) != number:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


def bell_of(wait: Wait) -> LoopEvent:
    waiter: Any = wait._waiter()
    return waiter._event


def test_task_that_is_cancelled_when_it_was_just_woken(scene, redis_client, monkeypatch):
    """Before it runs again, and so before it asks."""
    set_event = LoopEvent.set

    async def body() -> None:
        first = asyncio.create_task(scene.avisit())
        await until_waiting(1)
        [wait] = WAITS.snapshot()
        bell_of_first = bell_of(wait)
        following = asyncio.create_task(scene.avisit())
        await until_waiting(2)

        def end_and_cancel(sleep: Sleep | None) -> None:
            if sleep is not None:  # else it is about to sleep
                sleep.end()
            first.cancel()

        def set_and_cancel(event: LoopEvent) -> None:
            if event is not bell_of_first:
                set_event(event)
                return
            event.is_set = True
            event._loop.call_soon_threadsafe(end_and_cancel, event._sleep)

        monkeypatch.setattr(LoopEvent, "set", set_and_cancel)
        await asyncio.to_thread(scene.free)
        async with asyncio.timeout(UNTIL_SERVED):
            with pytest.raises(asyncio.CancelledError):
                await first
            await following

    scene.take(redis_client)
    asyncio.run(body())


def test_task_that_is_cancelled_anywhere(scene, redis_client):
    """At each suspension: also at that of the command that it sends when it was woken."""

    async def first_asks(at: int) -> bool:
        taken: list[Any] = []
        struck = await cancelled_at(scene.aask(taken), at)
        await scene.agive_back(taken)
        return struck

    async def body(at: int) -> bool:
        first = asyncio.create_task(first_asks(at))
        following = asyncio.create_task(scene.avisit())
        async with asyncio.timeout(UNTIL_SERVED):
            while len(WAITS.snapshot()) < 2 - first.done():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            await asyncio.to_thread(scene.free)
            await following
            return await first

    for at in itertools.count():
        scene.take(redis_client)
        if not asyncio.run(body(at)):
            assert at >= 2
            return


def test_task_of_a_loop_that_is_closed_under_it(redis_client):
    """It was woken, and had not asked when its loop ended; a thread waits for the same lock."""
    driver: Any = sync_driver("default")
    following = run_sync(driver.listen(CHANNEL, None))

    async def begin() -> None:
        waiting = asyncio.ensure_future(Attempt.wait(_Attempt(woken)))  # type: ignore[arg-type]
        await woken.wait()
        asyncio.get_running_loop().abandoned = waiting  # type: ignore[attr-defined]

    woken = asyncio.Event()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    loop.run_until_complete(begin())
    loop.close()
    loop = woken = None  # type: ignore[assignment]
    gc.collect()
    assert run_sync(following.wait(UNTIL_SERVED)) is True
    following.close()


class _Attempt:
    """One that was woken, and stops before it asks."""

    lock = RLock("stock:42")
    kind = lock._kind
    owner_id = asker = ""
    tries = 0

    def __init__(self, woken: asyncio.Event) -> None:
        self.driver = async_driver("default")
        self.woken = woken

    async def once(self, waiting: bool = False) -> bool:
        return False

    async def _wait_turn(self, waiter: Any, tried: bool) -> bool:
        waiter.wake()
        await waiter.wait(None)
        self.woken.set()
        await asyncio.Event().wait()
        return True


# --- threads ---------------------------------------------------------------------------------------------------------


class Pair:
    """A thread that asks first, which is this one, and another one that asks next; it falls free when both wait."""

    def __init__(self, scene: Scene, client: redis.Redis) -> None:
        scene.take(client)
        self._scene = scene
        self._over = threading.Event()
        self._next = threading.Thread(target=scene.visit, daemon=True)
        self._freeing = threading.Thread(target=self._free)

    def _free(self) -> None:
        eventually(lambda: WAITS.snapshot() or self._over.is_set())
        self._next.start()
        eventually(lambda: len(WAITS.snapshot()) == 2 or self._over.is_set())
        self._scene.free()

    def __enter__(self) -> None:
        self._freeing.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._freeing.join(UNTIL_SERVED)
        self._next.join(UNTIL_SERVED)
        assert not self._next.is_alive(), "the next one was not woken"


@pytest.mark.lengthy
def test_thread_that_is_interrupted_anywhere(scene, redis_client):
    """By a signal, at each call in turn."""
    for number in itertools.count(1):
        taken: list[Any] = []
        with Pair(scene, redis_client):
            interrupted = is_interrupted(partial(scene.ask, taken), number)
            scene.give_back(taken)
        if not interrupted:
            return


def test_thread_that_is_interrupted_twice(redis_client, monkeypatch):
    """When it was just woken, and again at each call that follows.

    Then it cannot leave by itself: the wait is over because nothing refers to its waiter any more, not even the error
    of a server that did not have the script, whose traceback refers to all frames.
    """
    scene = SCENES["rlock"]()
    main, wait = threading.get_ident(), ThreadWaiter.wait

    def interrupted_twice(number: int) -> bool:
        struck = threading.Event()
        redis_client.script_flush()

        def strike() -> None:
            struck.set()
            raise Interruption

        async def wait_once(self: ThreadWaiter, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
            woken = await wait(self, timeout)
            if threading.get_ident() == main and any(each._waiter() is self for each in WAITS.snapshot()):
                at_call(number, strike)
                raise Interruption
            return woken

        with monkeypatch.context() as patch, Pair(scene, redis_client):
            patch.setattr(ThreadWaiter, "wait", wait_once)
            try:
                scene.visit()
            except Interruption:  # and no more calls that could be interrupted
                pass
            finally:
                sys.setprofile(None)
                gc.enable()
        return struck.is_set()

    assert sum(1 for _ in itertools.takewhile(interrupted_twice, itertools.count(1))) > 5


def test_thread_that_is_interrupted_while_it_begins_to_listen(redis_client, monkeypatch):
    """Though its caller still handles the exception, whose frames keep all that was in them."""
    driver: Any = sync_driver("default")
    following = run_sync(driver.listen(CHANNEL, None))
    monkeypatch.setattr(listener("default").channels[CHANNEL], "confirmed", False)
    wait = ThreadWaiter.wait

    async def wait_and_raise(self: ThreadWaiter, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        self.wake()
        assert await wait(self, timeout)
        raise Interruption

    with monkeypatch.context() as patch:
        patch.setattr(Listener, "subscribe", lambda *_: None)
        patch.setattr(ThreadWaiter, "wait", wait_and_raise)
        with pytest.raises(Interruption) as kept:
            run_sync(driver.listen(CHANNEL, None))
    assert run_sync(following.wait(UNTIL_SERVED)) is True
    assert kept.value.__traceback__
    following.close()
