"""Redisson without sharded channels in a cluster: every version before 3.22, and later versions with that setting."""

from __future__ import annotations

import pytest

from django_rlock import CountDownLatch, FairLock, Semaphore
from tests.eventually import UNTIL_SERVED
from tests.forms import long
from tests.interop.pairs import PAIRS
from tests.interop.redisson import fair_lock, latch, semaphore
from tests.interop.sites import OLD, PLAIN, Scene, waiting_here

OLDER = Scene("sync", "cluster", "bare", OLD)
LONG = 600
KINDS = [kind for kind, pair in PAIRS.items() if pair.tells and kind != "fenced"]
"""Those that Redisson 3.17 has."""


@pytest.fixture(params=[PLAIN, *long(OLDER)], ids=str)
def scene(request):
    return request.param


async def test_release_by_python_wakes_java(binding, site, java):
    held = {kind: (PAIRS[kind].ours(kind), PAIRS[kind].theirs(kind)) for kind in KINDS}
    held["queued"] = FairLock("queued"), fair_lock("queued")
    permits, gate = Semaphore("permits"), CountDownLatch("gate")
    await binding.call(permits, "try_set_permits", 0)
    await binding.call(gate, "try_set_count", 1)
    waiting = []
    for kind, (ours, theirs) in held.items():
        assert await binding.acquire(ours, lease_time=LONG)
        waiting.append(await _begin(binding, site, java(kind), theirs, "lock", LONG, "SECONDS"))
    waiting.append(await _begin(binding, site, java("permits"), semaphore("permits"), "acquire"))
    waiting.append(await _begin(binding, site, java("gate"), latch("gate"), "await"))
    for ours, _ in held.values():
        await binding.release(ours)
    await binding.call(permits, "release")
    await binding.call(gate, "count_down")
    for each in waiting:
        each.result(UNTIL_SERVED)


async def _begin(binding, site, thread, theirs, method, *arguments):
    """Redisson tries, subscribes, and tries again."""
    site.start_counting()
    waiting = thread.begin(theirs, method, *arguments)
    await binding.until(lambda: site.tries("eval", "evalsha", "get") >= 2)
    return waiting


async def test_release_by_java_wakes_python(binding, site, java):
    alice = java("alice")
    waiting = []
    for kind in KINDS:
        alice.do(PAIRS[kind].theirs(kind), "lock", LONG, "SECONDS")
        waiting.append(binding.start(_visit, binding, PAIRS[kind].ours(kind, using="patient")))
    alice.do(latch("gate"), "trySetCount", 1)
    waiting.append(binding.start(_take, binding, Semaphore("permits")))
    waiting.append(binding.start(_pass, binding, CountDownLatch("gate")))
    await binding.until(lambda: waiting_here() == len(waiting))
    for kind in KINDS:
        alice.do(PAIRS[kind].theirs(kind), "unlock")
    alice.do(semaphore("permits"), "trySetPermits", 1)
    alice.do(latch("gate"), "countDown")
    await binding.results(waiting)


async def _visit(binding, ours) -> None:
    assert await binding.acquire(ours)
    await binding.release(ours)


async def _take(binding, ours: Semaphore) -> None:
    assert await binding.call(ours, "acquire")


async def _pass(binding, ours: CountDownLatch) -> None:
    assert await ours.await_() if binding.name == "async" else ours.wait()
