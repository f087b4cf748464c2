"""Owners of both sides who want the same lock again and again: one at a time, and none is forgotten.

Not of a read-write lock: Redisson's waiters for one miss a message that comes between their try and their sleep.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_rlock import FairLock, FencedLock, RLock
from django_rlock.locks.holds import WAITS
from tests.eventually import UNTIL_SERVED, eventually
from tests.forms import long
from tests.interop.pairs import ALIKE, helper
from tests.interop.redisson import fair_lock, lock, spin_lock
from tests.interop.sites import FIELD, PLACES, PLAIN, waiting_here

VISITS = 15
LEASE = 60
"""In seconds: a waiter who misses a message sleeps for as long, and fails then. Also on a slow machine, all visits
together take less."""


@pytest.mark.parametrize("scene", PLACES, indirect=True, ids=str)
@pytest.mark.parametrize("kind", ["plain", "fair", "fenced"])
def test_one_at_a_time(kind, name, site, java):
    pair = ALIKE[kind]
    inside, visits = [], []

    def visit(who: str) -> None:
        inside.append(who)
        assert inside == [who]
        visits.append(who)
        assert inside.pop() == who

    def in_python(who: str) -> None:
        lock = pair.ours(name, using="hasty")
        for _ in range(VISITS):
            assert lock.acquire(wait_time=LEASE, lease_time=LEASE)
            visit(who)
            lock.release()

    def in_java(who: str) -> None:
        thread, lock = java(who), pair.theirs(name)
        for _ in range(VISITS):
            assert thread.begin(lock, "tryLock", LEASE, LEASE, "SECONDS").result(2 * LEASE)
            visit(who)
            thread.do(lock, "unlock")

    with ThreadPoolExecutor(6) as threads:
        here = [threads.submit(in_python, f"python-{number}") for number in range(3)]
        there = [threads.submit(in_java, f"java-{number}") for number in range(3)]
        for each in here + there:
            each.result()
    assert len(visits) == 6 * VISITS


GUESTS = {"plain": lock, "fair": fair_lock}


@pytest.mark.parametrize("scene", [*PLACES, *long(PLAIN)], indirect=True, ids=str)
@pytest.mark.parametrize("kind", ["plain", *long("fair")])
def test_fair_lock_that_is_always_waited_for_lets_java_in(kind, name, site, alice):
    """Redisson's clients are not in its queue."""
    done = threading.Event()

    def visit_until_done() -> None:
        ours = FairLock(name, using="hasty")
        while not done.is_set():
            with ours:
                time.sleep(0.001)

    theirs = GUESTS[kind](name)
    with ThreadPoolExecutor(3) as threads:
        here = [threads.submit(visit_until_done) for _ in range(3)]
        eventually(lambda: waiting_here() == 2)
        try:
            for _ in range(3):
                alice.begin(theirs, "lock", LEASE, "SECONDS").result(UNTIL_SERVED)
                alice.do(theirs, "unlock")
        finally:
            done.set()
        for each in here:
            each.result()


@pytest.mark.parametrize("scene", [*PLACES, *long(*FIELD)], indirect=True, ids=str)
@pytest.mark.parametrize("kind", [RLock, FairLock, *long(FencedLock)])
async def test_fair_lock_of_java_that_is_always_waited_for_lets_us_in(kind, name, site, java, binding):
    """Its release notifies only the first waiter in its queue."""
    ours, theirs, queue = kind(name, lease_time=LEASE), fair_lock(name), helper("redisson_lock_queue", name)

    async def visit() -> None:
        assert await binding.acquire(ours, wait_time=LEASE)
        await binding.release(ours)

    holder, others = java("holder"), [java("alice"), java("bob")]
    holder.do(theirs, "lock", LEASE, "SECONDS")
    waiting = deque((thread, thread.begin(theirs, "lock", LEASE, "SECONDS")) for thread in others[:1])
    for thread in [*others[1:], holder]:
        await binding.until(lambda: site.client.llen(queue) == 1)
        visiting = binding.start(visit)
        await binding.until(lambda: site.client.lrange(queue, 0, 0) == ["rlock_waiters"])
        holder.do(theirs, "unlock")
        await binding.result(visiting)
        holder, taken = waiting.popleft()
        taken.result(UNTIL_SERVED)
        waiting.append((thread, thread.begin(theirs, "lock", LEASE, "SECONDS")))
    holder.do(theirs, "unlock")
    waiting[0][1].result(UNTIL_SERVED)
    waiting[0][0].do(theirs, "unlock")
    assert not set(site.names()) & {queue, helper("redisson_lock_timeout", name)}


@pytest.mark.parametrize("scene", [*PLACES, *long(*FIELD)], indirect=True, ids=str)
@pytest.mark.parametrize("kind", [RLock, *long(FairLock, FencedLock)])
async def test_spin_lock_of_java_is_taken_soon_after_its_release(kind, name, site, binding, alice):
    """Its release notifies nobody."""
    ours, theirs = kind(name, lease_time=LEASE), spin_lock(name)
    alice.do(theirs, "lock", LEASE, "SECONDS")

    async def visit() -> None:
        assert await binding.acquire(ours, wait_time=LEASE)
        await binding.release(ours)

    visiting = binding.start(visit)
    await binding.until(lambda: any(wait.expected for wait in WAITS.snapshot()))  # it has tried, and sleeps
    alice.do(theirs, "unlock")
    await binding.result(visiting)


@pytest.mark.parametrize("scene", [*PLACES, *long(*FIELD)], indirect=True, ids=str)
@pytest.mark.parametrize("kind", [RLock, *long(FairLock, FencedLock)])
async def test_waiter_that_gives_up_leaves_javas_queue(kind, name, site, binding, alice, bob):
    theirs, queue = fair_lock(name), helper("redisson_lock_queue", name)
    alice.do(theirs, "lock", LEASE, "SECONDS")
    waiting = bob.begin(theirs, "lock", LEASE, "SECONDS")
    eventually(lambda: site.client.llen(queue) == 1)

    async def give_up() -> None:
        assert not await binding.acquire(kind(name), wait_time=0.5)

    giving_up = binding.start(give_up)
    await binding.until(lambda: site.client.llen(queue) == 2)
    await binding.result(giving_up)
    await binding.until(lambda: site.client.llen(queue) == 1)
    alice.do(theirs, "unlock")
    waiting.result(UNTIL_SERVED)
    bob.do(theirs, "unlock")
