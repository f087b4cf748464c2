"""The promises of acquire, release, with and the questions, through both bindings."""

import threading
import time

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    ReadLock,
    RLock,
    SpinLock,
    WriteLock,
    rlock,
)
from django_rlock._core.clock import monotonic
from django_rlock._redis.keys import token_key
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.signals import lock_acquired, lock_force_released, lock_released, lock_timed_out
from tests.beside import in_another_thread
from tests.bindings import elsewhere, visit_alone
from tests.eventually import UNTIL_SERVED, eventually
from tests.heard import heard

KEY = "rlock:stock:42"
QUEUE = f"rlock_queue:{{{KEY}}}"
JOBS = {"rlock-worker-default", "rlock-listener", "rlock-reporter", "rlock-callbacks"}
"""The threads that a process has in the background."""
each_kind = pytest.mark.parametrize(
    "kind", [FairLock, RLock, SpinLock, FencedLock, ReadLock, WriteLock], ids=lambda each: each.kind
)


async def test_taken_and_given_back(binding, kind, redis_client):
    lock = kind("stock:42")
    assert await binding.acquire(lock) is True
    assert list(redis_client.hgetall(KEY).values()) == ["1"]
    assert 20_000 < redis_client.pttl(KEY) <= 30_000
    await binding.release(lock)
    assert {*redis_client.keys()} <= {token_key(KEY)}  # which outlives its lock


async def test_one_round_trip_each(binding, kind, redis_client):
    """Nothing but the script is sent for an uncontended acquire and release."""
    lock = kind("stock:42")
    async with binding.inside(lock):
        pass
    # The background may still clean up after an earlier test, for a second or two: what counts is the smallest round.
    sent = []
    for _ in range(20):
        redis_client.config_resetstat()
        for _ in range(5):
            async with binding.inside(lock):
                pass
        calls = {name: stat["calls"] for name, stat in redis_client.info("commandstats").items()}
        sent.append([calls.get(f"cmdstat_{name}", 0) for name in ("evalsha", "eval", "subscribe")])
    assert min(sent) == [10, 0, 0]


async def test_held_is_known_without_asking_the_server(binding, kind, redis_client):
    lock = kind("stock:42")
    assert not lock.held
    async with binding.inside(lock):
        redis_client.config_resetstat()
        assert lock.held
        assert kind("stock:42").held
        assert "cmdstat_evalsha" not in redis_client.info("commandstats")
        assert not rlock("stock:42", owner="another").held
    assert not lock.held


async def test_a_lost_lock_is_not_held(binding, kind):
    lock = kind("stock:42", lease_time=0.05)
    await binding.acquire(lock)
    await binding.until(lambda: lock.lost)
    assert not lock.held
    with pytest.raises(LockLostError):
        await binding.release(lock)


@each_kind
async def test_re_entry_counts(binding, kind, redis_client):
    lock = kind("stock:42")
    for count in (1, 2, 3):
        assert await binding.acquire(kind("stock:42"), blocking=False)
        assert await binding.call(lock, "hold_count") == count
    assert await binding.call(lock, "remaining_lease") <= 30, "leases do not add up"
    for count in (2, 1, 0):
        await binding.release(lock)
        assert await binding.call(lock, "hold_count") == count
    with pytest.raises(LockNotOwnedError):
        await binding.release(lock)
    assert {*redis_client.keys()} <= {token_key(KEY)}  # which outlives its lock


@each_kind
async def test_inner_hold_does_not_shorten_the_lease(binding, kind):
    lock = kind("stock:42")
    await binding.acquire(lock, lease_time=50)
    await binding.acquire(lock, lease_time=5)
    (hold,) = HOLDS.snapshot()
    assert hold.deadline - monotonic() > 40, "the process counts the lock as lost after the inner lease"
    assert await binding.call(lock, "remaining_lease") > 40
    await binding.release(lock)
    assert await binding.call(lock, "remaining_lease") > 40
    await binding.release(lock)


async def test_try_once(binding, kind, redis_client):
    redis_client.hset(KEY, "another", 1)
    lock = kind("stock:42")
    assert await binding.acquire(lock, blocking=False) is False
    assert await binding.acquire(lock, wait_time=0) is False
    assert await binding.acquire(kind("stock:42", wait_time=0)) is False
    assert redis_client.keys() == [KEY]


async def test_wait_ends(binding, kind, redis_client):
    redis_client.hset(KEY, "another", 1)
    began = time.monotonic()
    assert await binding.acquire(kind("stock:42"), wait_time=0.2) is False
    assert 0.2 <= time.monotonic() - began < 20  # not the lease of 30
    assert not redis_client.exists(QUEUE)
    assert WAITS.snapshot() == []


async def test_block_raises_when_the_wait_ends(binding, kind, redis_client):
    redis_client.hset(KEY, "another", 1)
    redis_client.pexpire(KEY, 20_000)
    with pytest.raises(LockTimeoutError) as caught:
        async with binding.inside(kind("stock:42", wait_time=0.1)):
            pytest.fail("it was not free")
    error = caught.value
    assert error.lock_name == "stock:42"
    assert 0.1 <= error.waited < 20
    assert error.retry_after is not None
    assert 15 < error.retry_after <= 20
    assert not redis_client.exists(QUEUE)


async def test_waiter_is_woken_by_the_release(binding, kind, redis_client):
    lock = kind("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit_alone, binding, kind("stock:42"), [])
    await binding.until(WAITS.snapshot)
    await binding.release(lock)
    await binding.result(waiting)
    assert not redis_client.exists(KEY)


async def test_nobody_inside_with_another(binding, kind):
    inside: list[object] = []
    visits = [binding.start(visit_alone, binding, kind("stock:42"), inside) for _ in range(20)]
    await binding.results(visits)


@each_kind
async def test_questions(binding, kind):
    lock, other = kind("stock:42", lease_time=20), kind("stock:42", owner="another")
    questions = "locked", "owned", "hold_count", "remaining_lease"
    assert [await binding.call(lock, name) for name in questions] == [False, False, 0, 0.0]
    async with binding.inside(lock):
        assert [await binding.call(lock, name) for name in questions[:3]] == [True, True, 1]
        assert 10 < await binding.call(lock, "remaining_lease") <= 20
        lock.check()
        assert not lock.lost
        assert [await binding.call(other, name) for name in questions[:3]] == [True, False, 0]
        with pytest.raises(LockNotOwnedError):
            other.check()
        for method, *args in (["extend", 5], ["release"]):
            with pytest.raises(LockNotOwnedError):
                await binding.call(other, method, *args)
        await binding.call(lock, "extend", 5)
        assert 0 < await binding.call(lock, "remaining_lease") <= 5


async def test_a_lock_without_end_has_no_remaining_lease(binding, kind, redis_client):
    redis_client.hset(KEY, "another", 1)
    assert await binding.call(kind("stock:42"), "remaining_lease") is None


async def test_force_release_lets_the_next_one_in(binding, kind, redis_client):
    redis_client.hset(KEY, "another", 3)
    waiting = binding.start(visit_alone, binding, kind("stock:42"), [])
    await binding.until(WAITS.snapshot)
    lock = kind("stock:42")
    assert await binding.call(lock, "force_release", "another owner") is False
    assert await binding.call(lock, "force_release", reason="it hangs") is True
    await binding.result(waiting)
    assert await binding.call(lock, "force_release") is False


async def test_nobody_writes_log_lines_of_his_own(binding, kind, caplog):
    lock = kind("a\n\x1b[31mb")
    await binding.acquire(lock)
    assert await elsewhere(binding, lock, "force_release", reason="so\nthere")
    with pytest.raises(LockLostError):
        await binding.call(lock, "release")
    assert [text for text in caplog.messages if not text.isprintable()] == []
    assert [words for words in ("freed by force", "was lost") if words not in caplog.text] == []


async def test_explicit_owner(binding, kind, redis_client):
    lock = kind("stock:42", owner="order-7")
    await binding.acquire(lock)
    assert redis_client.hgetall(KEY) == {"order-7": "1"}
    assert await binding.call(lock, "owned")
    assert not await binding.call(kind("stock:42", owner="order-8"), "owned")
    assert await binding.acquire(kind("stock:42"), blocking=False) is False
    assert await binding.result(binding.start(binding.acquire, kind("stock:42", owner="order-7"))) is True
    for _ in range(2):
        await binding.release(lock)
    assert not redis_client.exists(KEY)


async def test_signals(binding, kind, redis_client):
    def noted(signal, sender, lock, template, kind, alias, outcome, **given):
        return signal, sender, lock.name, (template, kind, alias), outcome, sorted(given)

    lock = kind("stock:42")
    with heard(lock_acquired, lock_released, lock_timed_out, lock_force_released, note=noted) as told:
        async with binding.inside(lock), binding.inside(lock):
            pass
        redis_client.hset(KEY, "another", 1)
        await binding.acquire(lock, blocking=False)
        await binding.call(lock, "force_release")
    assert [(each[0], *each[4:]) for each in told] == [
        (lock_acquired, "acquired", ["count", "owner", "waited"]),
        (lock_acquired, "reentered", ["count", "owner", "waited"]),
        (lock_released, "released", ["held", "owner"]),
        (lock_timed_out, "timed_out", ["owner", "waited"]),
        (lock_force_released, "force_released", ["owner", "reason"]),
    ]
    assert {each[1:4] for each in told} == {(kind, "stock:42", ("", kind.kind, "default"))}


async def test_tickets_are_served_in_order(binding, redis_client):
    lock = FairLock("stock:42")
    await binding.acquire(lock)
    served: list[int] = []

    async def wait(number: int) -> None:
        async with binding.inside(FairLock("stock:42")):
            served.append(number)

    waiting = []
    for number in range(8):
        waiting.append(binding.start(wait, number))
        await binding.until(lambda number=number: redis_client.zcard(QUEUE) == number + 1)
    await binding.release(lock)
    await binding.results(waiting)
    assert served == list(range(8))


def test_lock_objects_are_handles(kind, redis_client):
    """One object serves all threads; two objects of one name are one lock."""
    lock = kind("stock:42")
    with lock:
        assert kind("stock:42").owned()
        assert in_another_thread(lambda: (lock.owned(), lock.acquire(blocking=False))) == (False, False)
    assert repr(lock) == f"{kind.__name__}('stock:42', using='default')"


@pytest.mark.parametrize("kind", [FairLock, RLock, FencedLock], ids=lambda each: each.kind)  # a spin lock polls
@pytest.mark.parametrize("waiters", [100])
def test_many_waiters_cost_little(kind, redis_client, waiters):
    """One listening connection and no thread of its own for each waiter; few commands for each hand-over."""
    lock = kind("stock:42")
    with lock:
        pass
    lock.acquire()
    before = {*threading.enumerate()}
    inside: list[int] = []
    served: list[int] = []

    def work() -> None:
        with kind("stock:42"):
            inside.append(1)
            assert len(inside) == 1
            inside.clear()
            served.append(1)

    threads = [threading.Thread(target=work) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(WAITS.snapshot()) == waiters)
    eventually(lambda: all(redis_client.pubsub_numsub(name)[0][1] for name in redis_client.pubsub_channels()))

    def others() -> list[str]:
        return [thread.name for thread in {*threading.enumerate()} - before - {*threads}]

    # Threads that open connections end at once. At most one thread stays for each job of the process.
    eventually(lambda: {*others()} <= JOBS)
    assert len(others()) == len({*others()})
    listening = [each for each in redis_client.client_list() if int(each["sub"])]
    assert len(listening) == 1, listening
    if kind is FairLock:
        eventually(lambda: redis_client.zcard(QUEUE) == waiters)
    redis_client.config_resetstat()
    lock.release()
    for thread in threads:
        thread.join(UNTIL_SERVED)
    assert len(served) == waiters
    stats = redis_client.info("commandstats")
    assert sum(stats[name]["calls"] for name in stats if "evalsha" in name) < waiters * (3 if kind is FairLock else 6)
    assert not redis_client.exists(KEY, QUEUE)


@pytest.mark.parametrize("names", [["stock:42"], ["stock:42", "stock:43"]])
def test_what_was_taken_inside_of_a_block_may_outlive_it(names):
    """It needs a release of its own, whatever became of the block."""
    lock = rlock(*names)
    with lock:
        lock.acquire()
    lock.check()
    assert lock.hold_count() == 1
    lock.release()
    assert not lock.locked()
