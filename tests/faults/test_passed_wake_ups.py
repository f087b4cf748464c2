"""A waiter that was woken and is broken off before it asked leaves what fell free to the next one, at once.

No heartbeat and no poll helps here: they come later than a test has patience. ``tests/flows`` has every order of steps
for each kind, and ``test_every_opcode`` interrupts a thread that waits before another one.
"""

import asyncio
import gc
import itertools
import sys
import threading
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_rlock import RLock
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
from tests.faults.interrupting import Interruption, at_call
from tests.faults.test_cancellation import cancelled_at

CHANNEL = redisson_channel("rlock:stock:42")


@pytest.fixture(autouse=True)
def no_repair(settings: Settings) -> None:
    """No heartbeat repairs what is lost."""
    settings.RLOCK = {"default": {"CACHE": "default", "WAITER_ALIVE_TIME": 600, "CLAIM_TIME": 500}}


def take(client: redis.Redis) -> None:
    """As another owner, by a client of which nobody hears when it leaves."""
    client.flushdb()
    client.hset("rlock:stock:42", "another", 1)


def visit(kind: type[BaseLock]) -> None:
    with kind("stock:42"):
        pass


async def avisit(kind: type[BaseLock]) -> None:
    async with kind("stock:42"):
        pass


# --- tasks -----------------------------------------------------------------------------------------------------------


async def until_waiting(number: int) -> None:
    async with asyncio.timeout(UNTIL_SERVED):
        while len(WAITS.snapshot()) != number:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


def bell_of(wait: Wait) -> LoopEvent:
    waiter: Any = wait._waiter()
    return waiter._event


def test_task_that_is_cancelled_when_it_was_just_woken(kind, redis_client, monkeypatch):
    """Before it runs again, and so before it asks."""
    set_event = LoopEvent.set

    async def body() -> None:
        first = asyncio.create_task(avisit(kind))
        await until_waiting(1)
        [wait] = WAITS.snapshot()
        bell_of_first = bell_of(wait)
        following = asyncio.create_task(avisit(kind))
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
        await asyncio.to_thread(kind("stock:42").force_release)
        async with asyncio.timeout(UNTIL_SERVED):
            with pytest.raises(asyncio.CancelledError):
                await first
            await following

    take(redis_client)
    asyncio.run(body())


def test_task_that_is_cancelled_anywhere(kind, redis_client):
    """At each suspension: also at that of the command that it sends when it was woken."""

    async def first_asks(at: int) -> bool:
        lock = kind("stock:42")
        if not (struck := await cancelled_at(lock.aacquire(), at)):
            await lock.arelease()
        return struck

    async def body(at: int) -> bool:
        first = asyncio.create_task(first_asks(at))
        following = asyncio.create_task(avisit(kind))
        async with asyncio.timeout(UNTIL_SERVED):
            while len(WAITS.snapshot()) < 2 - first.done():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            await asyncio.to_thread(kind("stock:42").force_release)
            await following
            return await first

    for at in itertools.count():
        take(redis_client)
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

    def __init__(self, client: redis.Redis) -> None:
        take(client)
        self._over = threading.Event()
        self._next = threading.Thread(target=visit, args=(RLock,), daemon=True)
        self._freeing = threading.Thread(target=self._free)

    def _free(self) -> None:
        eventually(lambda: WAITS.snapshot() or self._over.is_set())
        self._next.start()
        eventually(lambda: len(WAITS.snapshot()) == 2 or self._over.is_set())
        RLock("stock:42").force_release()

    def __enter__(self) -> None:
        self._freeing.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._freeing.join(UNTIL_SERVED)
        self._next.join(UNTIL_SERVED)
        assert not self._next.is_alive(), "the next one was not woken"


def test_thread_that_is_interrupted_twice(redis_client, monkeypatch):
    """When it was just woken, and again at each call that follows.

    Then it cannot leave by itself: the wait is over because nothing refers to its waiter any more, not even the error
    of a server that did not have the script, whose traceback refers to all frames.
    """
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

        with monkeypatch.context() as patch, Pair(redis_client):
            patch.setattr(ThreadWaiter, "wait", wait_once)
            try:
                visit(RLock)
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
