"""RedissonLockTest, and what is the same in the tests of the fair, the spin and the group lock."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import Any, cast

import pytest

from django_rlock import LockLostError, RLock
from django_rlock._transport.registry import listener
from django_rlock.locks.holds import HOLDS, WAITS
from tests.bindings import held_elsewhere
from tests.eventually import UNTIL_SERVED, eventually, in_threads
from tests.redisson.crowds import LOOPS, PROCESSES, WORK, asks_the_server, in_processes

each_kind = pytest.mark.parametrize(
    "made",
    ["RLock('lock')", "FairLock('lock')", "SpinLock('lock')", "MultiLock(RLock('lock:1'), RLock('lock:2'))"],
    ids=["lock", "fair", "spin", "group"],
)


def test_lock_uninterruptibly(kind):
    """A signal whose handler returns does not end the wait."""
    lock = kind("lock")
    heard = threading.Semaphore(0)
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.release())
    main = threading.get_ident()

    def ring() -> bool:
        # Python overlooks a signal that comes right before a thread goes to sleep, until the next one.
        signal.pthread_kill(main, signal.SIGUSR1)
        return heard.acquire(timeout=0.02)

    def hold_and_ring() -> None:
        with lock:
            held.set()
            eventually(WAITS.snapshot)
            for number in range(5):
                eventually(ring)
                rung.append(number)

    held = threading.Event()
    rung: list[int] = []
    holder = threading.Thread(target=hold_and_ring)
    try:
        holder.start()
        assert held.wait(UNTIL_SERVED)
        assert lock.acquire(wait_time=20)
        assert rung == [0, 1, 2, 3, 4]
        lock.release()
    finally:
        holder.join(UNTIL_SERVED)
        signal.signal(signal.SIGUSR1, before)


async def test_expire(binding, kind):
    """Another owner takes it when the lease has ended, and the first one's release comes to nothing."""
    lock = kind("lock", lease_time=0.2)
    await binding.acquire(lock)
    began = time.monotonic()
    async with held_elsewhere(binding, kind("lock")):
        assert time.monotonic() - began < 20  # without a message, long before the next poll
        with pytest.raises(LockLostError):
            await binding.release(lock)
        assert await binding.call(lock, "locked")


@each_kind
def test_auto_expire(clients, redis_client, made):
    """The watchdog ends with its process, and the lease soon after."""
    (client,) = clients(1, WATCHDOG_TIMEOUT=0.5)
    client.do(WORK)
    client.do(f"{made}.acquire()")
    client.kill()
    eventually(lambda: not redis_client.keys("rlock:*"))


@asks_the_server
def test_subscriptions_per_connection(redis_client, monkeypatch):
    """Many jobs on a few names; none fails, and no subscription is left when its time is over."""
    monkeypatch.setattr("django_rlock._transport.listener.KEEP_CHANNEL", -1.0)
    jobs = iter(range(320))

    def work() -> None:
        for job in jobs:
            with RLock(f"lock:{job % 5}", wait_time=20):
                time.sleep(random.uniform(0, 0.002))
            done.append(job)

    done: list[int] = []
    in_threads(*[work] * 16)
    assert len(done) == 320
    for subscriber in cast("Any", listener("default")).subscribers.values():
        subscriber.prune()
    eventually(lambda: not redis_client.pubsub_channels("redisson_lock__channel:*"))


@pytest.mark.parametrize("loops", [50])
def test_concurrency_try_lock_un_lock(kind, loops):
    """The holder is on the watchdog's list until it releases the lock."""

    def work() -> None:
        for _ in range(loops):
            if kind("lock").acquire(blocking=False):
                here = [hold.renewed for hold in HOLDS.snapshot() if not hold.owner_ended]
                listed.append(here != [] and all(here))
                kind("lock").release()

    listed: list[bool] = []
    in_threads(*[work] * 16)
    assert listed
    assert all(listed)


@pytest.mark.lengthy
@each_kind
@pytest.mark.parametrize(("threads", "loops"), [(4, 2 * LOOPS), (25, 1)], ids=["loop", "once"])
def test_concurrency_multi_instance(clients, redis_client, made, threads, loops):
    """A counter that is read and then written, by threads of four processes."""
    in_processes(clients, [f"count({loops}, lambda: {made})"] * threads)
    assert redis_client.get("counter") == str(PROCESSES * threads * loops)
