"""``at_least=`` and ``leave()``: a lock that is released, and stays taken for a while."""

import re
from pathlib import Path

import pytest

from django_rlock import (
    BaseLock,
    FairLock,
    FencedLock,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    RLock,
    rlock,
)
from django_rlock.locks.holds import HOLDS
from tests.bindings import elsewhere, visit, waiting
from tests.eventually import eventually

KEY = "rlock:stock:42"


def left_of(lock: BaseLock) -> float:
    left = lock.remaining_lease()
    assert left is not None
    return left


async def test_released_lock_stays_taken_also_for_its_owner(binding, kind):
    lock = kind("stock:42", at_least=50)
    async with binding.inside(lock):
        pass
    assert HOLDS.snapshot() == []
    assert await binding.acquire(lock, blocking=False) is False
    assert await binding.acquire(kind("stock:42"), blocking=False) is False
    assert await elsewhere(binding, kind("stock:42"), "acquire", blocking=False) is False
    assert 40 < await binding.call(lock, "remaining_lease") <= 50
    assert not await binding.call(lock, "owned")
    with pytest.raises(LockNotOwnedError):
        await binding.release(lock)


async def test_lock_held_for_longer_than_at_least_is_free_at_once(binding, kind):
    lock = kind("stock:42", at_least=0.01)
    async with binding.inside(lock):
        await binding.sleep(0.02)
    assert await binding.call(lock, "locked") is False


async def test_waiter_is_told_of_an_earlier_end_than_that_of_the_lease(binding, kind, settings):
    """The lease of 30 s, of which it knows, is replaced by 0.1 s. No heartbeat is due meanwhile."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 120, "CLAIM_TIME": 120}}
    lock = kind("stock:42")
    await binding.acquire(lock)
    other = binding.start(visit, binding, kind("stock:42", wait_time=25))
    await waiting(binding)
    await binding.call(lock, "leave", 0.1)
    await binding.result(other)


@pytest.mark.parametrize("inner", [True, False])
async def test_last_release_counts_the_longest_time_of_all_holds(binding, kind, inner):
    first, second = (None, 50) if inner else (50, None)
    async with binding.inside(kind("stock:42", at_least=first)):
        async with binding.inside(kind("stock:42", at_least=second)):
            pass
        assert await binding.call(kind("stock:42"), "owned")
    assert await binding.call(kind("stock:42"), "remaining_lease") > 40


async def test_leave_keeps_the_lock_from_now_on(binding, kind):
    lock = kind("stock:42")
    await binding.acquire(lock)
    await binding.call(lock, "leave", 50)
    assert 40 < await binding.call(lock, "remaining_lease") <= 50
    assert await binding.acquire(lock, blocking=False) is False
    with pytest.raises(LockNotOwnedError):
        await binding.call(lock, "leave", 50)


async def test_leave_by_a_name_that_another_process_took_it_with(binding, kind, redis_client):
    redis_client.hset(KEY, "them", 1)
    lock = kind("stock:42", owner="them")
    await binding.call(lock, "leave", 50)
    assert 40 < await binding.call(lock, "remaining_lease") <= 50
    assert await binding.acquire(lock, blocking=False) is False


async def test_several_locks_stay_taken_together(binding):
    lock = rlock("a", "b", at_least=50)
    async with binding.inside(lock):
        pass
    for name in ("a", "b"):
        assert await binding.call(rlock(name), "remaining_lease") > 40
    assert HOLDS.snapshot() == []


async def test_several_locks_of_which_some_are_taken_are_not_kept(binding, redis_client):
    redis_client.hset("rlock:b", "another", 1)
    assert await binding.acquire(MultiLock(FairLock("a"), FencedLock("b"), at_least=50), wait_time=0.1) is False
    await binding.until(lambda: redis_client.keys() == ["rlock:b"])


@pytest.mark.parametrize("side", ["read", "write"])
def test_read_write_locks_refuse_it(side):
    with pytest.raises(ValueError, match="cannot be kept after its release"):
        rlock("stock:42", kind=side, at_least=5)
    with rlock("stock:42", kind=side) as lock, pytest.raises(ValueError, match="cannot be kept after its release"):
        lock.leave(5)


@pytest.mark.parametrize("value", ["60", True, -1, float("nan")])
def test_wrong_times_are_refused(value):
    with pytest.raises((TypeError, ValueError), match="at_least must be"):
        rlock("stock:42", at_least=value)


def test_dropped_block_keeps_it_too():
    """A generator that is not finished leaves its block when it is dropped."""

    def work():
        with RLock("stock:42", at_least=50):
            yield

    running = work()
    next(running)
    del running
    eventually(lambda: left_of(RLock("stock:42")) > 40)


async def test_error_says_that_nobody_holds_it(binding, kind):
    async with binding.inside(kind("stock:42", at_least=50)):
        pass
    with pytest.raises(LockTimeoutError, match=r"it was released, and stays taken for [45]\d\.\d s") as caught:
        async with binding.inside(kind("stock:42", wait_time=0)):
            pass
    assert caught.value.is_kept
    assert (caught.value.retry_after or 0) > 40


def test_no_process_is_named_as_its_holder():
    """So that nobody frees it with the locks of dead processes."""
    with RLock("stock:42", at_least=50):
        pass
    info = RLock("stock:42").info()
    assert info is not None
    assert (info.holder.client, info.holder.silent) == ("", False)
    assert str(info.holder) == "nobody: kept after its release"


def test_the_pages_way_not_to_do_it_again_within_a_minute():
    page = Path("docs/which-lock.md").read_text()
    [row] = [line for line in page.splitlines() if "to prevent the same work for a minute" in line]
    make, leave = re.findall(r"`((?:rlock|lock\.leave)\(.*?\))`", row)
    with eval(make, {"rlock": rlock, "name": "a"}):
        pass
    lock = rlock("b")
    lock.acquire()
    eval(leave, {"lock": lock})
    for name in ("a", "b"):
        assert not rlock(name).acquire(blocking=False)
        assert 50 < left_of(rlock(name)) <= 60
