"""An owner with a name: one for all threads, tasks and processes that use it."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    ReadLock,
    RLock,
    SpinLock,
    WriteLock,
)
from django_rlock._redis import scripts
from django_rlock.locks import BaseLock, mutex
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import look_at, settle, until_clean
from tests.bindings import TaskBinding, elsewhere
from tests.eventually import eventually, in_threads
from tests.processes import ClientProcess

KEY, QUEUE = "rlock:stock:42", "rlock_queue:{rlock:stock:42}"
NAME = "order-7"
KINDS = [FairLock, RLock, SpinLock, FencedLock, ReadLock, WriteLock]


@pytest.fixture(params=KINDS, ids=lambda each: each.__name__)
def one_kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def other(server: Any) -> Iterator[ClientProcess]:
    """Another process."""
    with ClientProcess(server.url) as process:
        yield process


# --- threads and tasks of one process --------------------------------------------------------------------------------


async def test_those_who_take_it_at_once_share_one_counted_hold(binding, any_kind, redis_client):
    for _ in range(3):
        taking = [binding.start(binding.acquire, any_kind("stock:42", owner=NAME)) for _ in range(4)]
        assert [await binding.result(each) for each in taking] == [True] * 4
        assert {hold.count for hold in HOLDS.snapshot()} == {4}
        assert await binding.call(any_kind("stock:42", owner=NAME), "hold_count") == 4
        giving_back = [binding.start(binding.release, any_kind("stock:42", owner=NAME)) for _ in range(3)]
        await binding.results(giving_back)
        assert redis_client.exists(KEY)
        await binding.release(any_kind("stock:42", owner=NAME))
        assert not redis_client.keys("rlock:*")


async def test_nobody_else_is_inside_meanwhile(binding, one_kind):
    """While some enter and leave under the name, the last of them leaving as the next one enters."""
    under_name: list[int] = []
    violations: list[str] = []

    async def share() -> None:
        for _ in range(10):
            async with binding.inside(one_kind("stock:42", owner=NAME)):
                under_name.append(1)
                await binding.sleep(0)
                under_name.pop()

    async def exclude() -> None:
        for _ in range(4):
            if await binding.acquire(exclusive, wait_time=0.02):
                violations.extend("inside" for _ in under_name)
                await binding.sleep(0)
                violations.extend("inside" for _ in under_name)
                await binding.release(exclusive)

    exclusive = WriteLock("stock:42") if one_kind is ReadLock else one_kind("stock:42")
    running = [binding.start(work) for work in (share, share, share, exclude)]
    await binding.results(running)
    assert violations == []
    assert HOLDS.snapshot() == []


ACQUIRE = {
    "fair": scripts.FAIR_ACQUIRE,
    "rlock": scripts.RLOCK_ACQUIRE,
    "spin": scripts.RLOCK_ACQUIRE,
    "fenced": scripts.FENCED_ACQUIRE,
    "read": scripts.READ_ACQUIRE,
    "write": scripts.WRITE_ACQUIRE,
}


async def test_nobody_is_inside_what_was_given_back_while_it_was_entered(
    binding, one_kind, proxy, redis_client, monkeypatch
):
    """A release waits for a call under its name, but not for ever: here until the reply to that is overdue."""
    monkeypatch.setattr(mutex, "NAMED_PATIENCE", 0.0)
    lock = one_kind("stock:42", owner=NAME)
    await binding.acquire(lock)
    reply = proxy.hold_reply(ACQUIRE[lock.kind])
    entering = binding.start(binding.acquire, one_kind("stock:42", owner=NAME))
    await binding.until(reply.served.is_set)
    leaving = binding.start(binding.release, lock)
    await binding.until(lambda: HOLDS.snapshot() == [])
    reply.let_go.set()
    with pytest.raises(LockUnavailableError, match="released it during this acquire"):
        await binding.result(entering)
    await binding.result(leaving)
    assert HOLDS.snapshot() == []
    assert not redis_client.exists(KEY)


async def test_taken_in_one_thread_and_released_in_another(binding, any_kind, redis_client):
    lock = any_kind("stock:42", owner=NAME)
    assert await elsewhere(binding, lock, "acquire")
    assert not await binding.acquire(WriteLock("stock:42"), blocking=False)
    await binding.release(lock)
    assert not redis_client.keys("rlock:*")


async def test_a_try_does_not_wait_for_one_that_waits_under_the_name(binding, kind):
    async with binding.inside(kind("stock:42")):
        waiting = binding.start(binding.acquire, kind("stock:42", owner=NAME))
        await binding.until(WAITS.snapshot)
        assert not await binding.acquire(kind("stock:42", owner=NAME), blocking=False)
        assert not await binding.acquire(kind("stock:42", owner=NAME), wait_time=0.02)
        with pytest.raises(LockNotOwnedError):
            await binding.release(kind("stock:42", owner=NAME))
    assert await binding.result(waiting)
    assert await binding.acquire(kind("stock:42", owner=NAME), blocking=False)
    for _ in range(2):
        await binding.release(kind("stock:42", owner=NAME))


async def test_a_call_that_was_interrupted_keeps_nobody_out(kind, redis_client):
    """It has left the queue, also where its frames are kept."""
    async with kind("stock:42"):
        waiting = asyncio.create_task(TaskBinding().acquire(kind("stock:42", owner=NAME)))
        await TaskBinding().until(WAITS.snapshot)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await waiting
    async with asyncio.timeout(20), kind("stock:42", owner=NAME):
        assert kept.tb is not None


async def test_a_wait_includes_the_wait_for_a_call_under_the_name(binding):
    async with binding.inside(RLock("stock:42")):
        before = binding.start(binding.acquire, RLock("stock:42", owner=NAME, wait_time=0.3))
        await binding.until(WAITS.snapshot)
        with pytest.raises(LockTimeoutError) as caught:
            async with binding.inside(RLock("stock:42", owner=NAME, wait_time=0.4)):
                pass
        assert caught.value.waited >= 0.4
        assert not await binding.result(before)


async def test_its_waiter_is_listed_once_under_the_name(binding):
    async with binding.inside(FairLock("stock:42")):
        waiting = binding.start(binding.acquire, FairLock("stock:42", owner=NAME))
        await binding.until(lambda: [wait for wait in WAITS.snapshot() if wait.expected])
        info = await binding.call(FairLock("stock:42"), "info")
        assert [waiter.owner for waiter in info.waiters] == [NAME]
        assert info.waiters[0].pid == os.getpid()
    await binding.result(waiting)
    await binding.release(FairLock("stock:42", owner=NAME))


# --- waits that are cancelled ----------------------------------------------------------------------------------------


async def cancelled_wait(lock: BaseLock) -> None:
    waiting = asyncio.create_task(TaskBinding().acquire(lock))
    await TaskBinding().until(WAITS.snapshot)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancelled_writer_keeps_no_readers_out(redis_client, settings):
    settings.RLOCK = {"default": {"CLAIM_TIME": 100, "WAITER_ALIVE_TIME": 120}}
    async with ReadLock("stock:42"):
        await cancelled_wait(WriteLock("stock:42", owner=NAME, prefer="writer"))
        await TaskBinding().until(lambda: not redis_client.exists("rlock_writers:{rlock:stock:42}"))


async def test_a_wait_that_is_cancelled_when_it_is_granted_gives_the_grant_back(redis_client, settings):
    """Else the lock would be no one's for the claim time."""
    settings.RLOCK = {"default": {"CLAIM_TIME": 100, "WAITER_ALIVE_TIME": 120}}
    await (holder := FairLock("stock:42")).aacquire()
    waiting = asyncio.create_task(TaskBinding().acquire(FairLock("stock:42", owner=NAME)))
    await TaskBinding().until(lambda: redis_client.exists(QUEUE) and WAITS.snapshot())
    in_threads(holder.force_release)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    HOLDS.clear()
    async with FairLock("stock:42", wait_time=20):
        pass


async def test_a_cancelled_wait_leaves_the_ticket_of_the_next_one(redis_client):
    """However late the first one's is taken back."""

    def tickets() -> list[str]:
        return redis_client.zrange(QUEUE, 0, -1)

    async with FairLock("stock:42"):
        waiting = asyncio.create_task(TaskBinding().acquire(FairLock("stock:42", owner=NAME)))
        (first,) = await TaskBinding().until(tickets)
        waiting.cancel()
        again = asyncio.create_task(TaskBinding().acquire(FairLock("stock:42", owner=NAME)))
        (second,) = await TaskBinding().until(lambda: first not in tickets() and tickets())
        await asyncio.to_thread(until_clean)
        assert tickets() == [second]
    assert await again
    await FairLock("stock:42", owner=NAME).arelease()


# --- several processes -----------------------------------------------------------------------------------------------


async def test_a_second_process_shortens_no_lease(binding, one_kind, other, redis_client):
    made = f"lock('stock:42', {one_kind.kind!r}, owner={NAME!r})"
    for _ in range(2):
        other.do(f"{made}.acquire(lease_time=500)")
    lock = one_kind("stock:42", owner=NAME)

    def is_long() -> bool:
        return redis_client.pttl(KEY) > 400_000

    assert await binding.acquire(lock, lease_time=1, blocking=False)
    assert is_long()
    assert await binding.acquire(lock, lease_time=2)
    assert is_long()
    await binding.release(lock)
    assert is_long()
    await binding.call(lock, "extend", 1)
    assert is_long()
    HOLDS.clear()
    await binding.call(lock, "extend", 1)
    assert is_long()
    assert other.do(f"{made}.lost") is False
    for _ in range(2):
        other.do(f"{made}.release()")
    assert not redis_client.exists(KEY)


async def test_a_second_process_shares_the_fencing_token(binding, other, redis_client):
    """It is no new owner."""
    lock = FencedLock("stock:42", owner=NAME)
    async with binding.inside(lock):
        assert other.do(f"lock('stock:42', 'fenced', owner={NAME!r}).acquire(blocking=False)")
        assert other.do(f"lock('stock:42', 'fenced', owner={NAME!r}).token") == lock.token


async def test_handed_over_to_another_process(binding, any_kind, other, redis_client, losses):
    lock = any_kind("stock:42", owner=NAME)
    await binding.acquire(lock)
    holds = HOLDS.snapshot()
    await binding.call(lock, "extend", 100)
    lock.hand_over()
    for part in lock.parts:
        made = f"lock({part.name!r}, {part.kind!r}, owner={NAME!r})"
        assert other.do(f"{made}.acquire(blocking=False)")
        other.do(f"{made}.release()")
    assert not redis_client.keys("rlock:*")
    for hold in holds:
        look_at(hold)
    settle()
    assert losses == []
    assert not lock.lost
    assert await binding.acquire(lock, blocking=False)
    await binding.release(lock)


async def test_what_cannot_be_handed_over(binding, any_kind):
    lock = any_kind("stock:42", owner=NAME)
    with pytest.raises(LockNotOwnedError):
        lock.hand_over()
    async with binding.inside(lock):
        with pytest.raises(RuntimeError, match=r"'with' block.*acquire\(\)"):
            lock.hand_over()
    async with binding.inside(any_kind("stock:42")):
        with pytest.raises(RuntimeError, match="owner="):
            any_kind("stock:42").hand_over()
    eventually(lambda: HOLDS.snapshot() == [])
