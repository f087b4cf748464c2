"""Every kind of lock against the Redisson lock that it equals: each side in turn holds, waits, loses."""

from __future__ import annotations

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LockLostError,
    LockNotOwnedError,
    LockUnavailableError,
    MultiLock,
    RLock,
    SpinLock,
)
from django_rlock.locks import BaseLock
from tests.eventually import UNTIL_SERVED
from tests.interop.pairs import ALIKE, PAIRS, Pair, helper
from tests.interop.redisson import JavaError, Target, fair_lock, lock
from tests.interop.sites import Scene

LONG = 600
"""A lease in seconds: neither side's waiters poll within a test's patience then, so only a message can wake them."""
SHORT = 0.1
LISTENING = [name for name, pair in PAIRS.items() if pair.listens]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return PAIRS[request.param]


@pytest.fixture
def ours(pair: Pair, name: str) -> BaseLock:
    return pair.ours(name)


@pytest.fixture
def theirs(pair: Pair, name: str) -> Target:
    return pair.theirs(name)


def left_by(pair: Pair, name: str) -> list[str]:
    return [helper(prefix, name) for prefix in pair.kept]


async def visit(binding, lock) -> None:
    await binding.acquire(lock, lease_time=LONG)
    await binding.release(lock)


@pytest.mark.parametrize("pair", LISTENING, indirect=True)
async def test_release_by_java_wakes_python(binding, pair, name, site, ours, theirs, alice):
    alice.do(theirs, "lock", LONG, "SECONDS")
    assert await binding.acquire(ours, blocking=False) is False
    site.start_counting()
    with site.overheard(helper(pair.channel, name)) as payloads:
        waiting = binding.start(visit, binding, ours)
        await binding.until(lambda: site.tries() >= 2)
        alice.do(theirs, "unlock")
        await binding.result(waiting)
    assert len(payloads) == 2, "one for each release"
    await binding.until(lambda: site.names() == left_by(pair, name))


async def test_release_by_python_wakes_java(binding, pair, name, site, ours, theirs, alice):
    assert await binding.acquire(ours, lease_time=LONG)
    assert alice.do(theirs, "tryLock") is False
    site.start_counting()
    with site.overheard(helper(pair.channel, name)) as payloads:
        waiting = alice.begin(theirs, "lock", LONG, "SECONDS")
        await binding.until(lambda: site.tries() >= 2 and alice.sleeps())
        await binding.release(ours)
        waiting.result(UNTIL_SERVED)
        alice.do(theirs, "unlock")
    assert len(payloads) == 1 + pair.tells, "one for each release"
    await binding.until(lambda: site.names() == left_by(pair, name))


async def test_fair_waiters_hear_javas_release(binding, name, site, alice):
    """No heartbeat helps: the first one comes much later. Two waiters, of whom the one that came first is first."""
    pair, served = PAIRS["fair"], []

    async def visit_in_turn(number: int) -> None:
        lock = pair.ours(name, using="patient")
        await binding.acquire(lock)
        served.append(number)
        await binding.release(lock)

    alice.do(pair.theirs(name), "lock", LONG, "SECONDS")
    waiting = []
    for number in range(2):
        waiting.append(binding.start(visit_in_turn, number))
        await binding.until(lambda: site.client.zcard(helper("rlock_queue", name)) == len(waiting))
    alice.do(pair.theirs(name), "unlock")
    await binding.results(waiting)
    assert served == [0, 1]


def two_at_once(name):
    """Taken and freed by one script for both."""
    return MultiLock(FairLock(name), RLock(f"{name}:other"))


@pytest.mark.parametrize("ours", [FairLock, RLock, SpinLock, FencedLock, two_at_once])
@pytest.mark.parametrize("method", ["release", "force_release"])
async def test_release_by_python_wakes_redissons_fair_waiter(binding, ours, method, name, site, alice):
    lock, theirs = ours(name), fair_lock(name)
    assert await binding.acquire(lock, lease_time=LONG)
    site.start_counting()
    waiting = alice.begin(theirs, "lock", LONG, "SECONDS")
    await binding.until(lambda: site.tries() >= 2 and alice.sleeps())
    await binding.call(lock, method)
    waiting.result(UNTIL_SERVED)
    alice.do(theirs, "unlock")


async def test_re_entry_of_java_is_seen_by_python(binding, site, ours, theirs, alice):
    for count in 1, 2:
        alice.do(theirs, "lock", LONG, "SECONDS")
        assert alice.do(theirs, "getHoldCount") == count
        assert await binding.acquire(ours, blocking=False) is False
    alice.do(theirs, "unlock")
    assert await binding.acquire(ours, blocking=False) is False
    alice.do(theirs, "unlock")
    assert await binding.acquire(ours, blocking=False) is True
    await binding.release(ours)


async def test_re_entry_of_python_is_seen_by_java(binding, site, ours, theirs, alice):
    for count in 1, 2:
        assert await binding.acquire(ours, lease_time=LONG)
        assert await binding.call(ours, "hold_count") == count
        assert alice.do(theirs, "tryLock") is False
    await binding.release(ours)
    assert alice.do(theirs, "tryLock") is False
    await binding.release(ours)
    assert alice.do(theirs, "tryLock") is True
    alice.do(theirs, "unlock")


@pytest.mark.parametrize("pair", ALIKE, indirect=True)
async def test_each_side_knows_of_the_others_hold(binding, site, ours, theirs, alice):
    alice.do(theirs, "lock", LONG, "SECONDS")
    assert await binding.call(ours, "locked") is True
    assert await binding.call(ours, "hold_count") == 0
    assert LONG - 60 < await binding.call(ours, "remaining_lease") <= LONG
    alice.do(theirs, "unlock")
    assert await binding.call(ours, "locked") is False
    assert await binding.acquire(ours, lease_time=LONG)
    assert alice.do(theirs, "isLocked") is True
    assert alice.do(theirs, "getHoldCount") == 0
    assert LONG - 60 < alice.do(theirs, "remainTimeToLive") / 1000 <= LONG
    await binding.release(ours)
    assert alice.do(theirs, "isLocked") is False


async def test_end_of_javas_lease_lets_python_in(binding, site, ours, theirs, alice):
    alice.do(theirs, "lock", int(SHORT * 1000), "MILLISECONDS")
    assert await binding.acquire(ours) is True
    with pytest.raises(JavaError, match=r"^IllegalMonitorStateException"):
        alice.do(theirs, "unlock")
    await binding.release(ours)


async def test_end_of_pythons_lease_lets_java_in(binding, site, ours, theirs, alice):
    assert await binding.acquire(ours, lease_time=SHORT)
    alice.do(theirs, "lock", LONG, "SECONDS")
    with pytest.raises(LockLostError):
        await binding.release(ours)
    assert alice.do(theirs, "isHeldByCurrentThread") is True
    alice.do(theirs, "unlock")


@pytest.mark.parametrize("pair", ALIKE, indirect=True)
async def test_python_forces_javas_lock(binding, site, ours, theirs, alice):
    alice.do(theirs, "lock")
    assert await binding.call(ours, "force_release") is True
    assert await binding.call(ours, "force_release") is False
    with pytest.raises(JavaError, match=r"^IllegalMonitorStateException"):
        alice.do(theirs, "unlock")


@pytest.mark.parametrize("pair", ALIKE, indirect=True)
async def test_java_forces_pythons_lock(binding, site, ours, theirs, alice):
    assert await binding.acquire(ours)
    assert alice.do(theirs, "forceUnlock") is True
    assert alice.do(theirs, "forceUnlock") is False
    with pytest.raises(LockLostError):
        await binding.release(ours)


@pytest.mark.parametrize("pair", ALIKE, indirect=True)
async def test_forcing_wakes_the_other_sides_waiter(binding, site, ours, theirs, alice, bob):
    alice.do(theirs, "lock", LONG, "SECONDS")
    site.start_counting()
    waiting = bob.begin(theirs, "lock", LONG, "SECONDS")
    await binding.until(lambda: site.tries() >= 2 and bob.sleeps())
    await binding.call(ours, "force_release")
    waiting.result(UNTIL_SERVED)
    bob.do(theirs, "unlock")


async def test_neither_side_releases_what_the_other_holds(binding, site, ours, theirs, alice):
    assert await binding.acquire(ours, lease_time=LONG)
    with pytest.raises(JavaError, match=r"^IllegalMonitorStateException"):
        alice.do(theirs, "unlock")
    assert await binding.call(ours, "owned") is True
    await binding.release(ours)
    alice.do(theirs, "lock", LONG, "SECONDS")
    with pytest.raises(LockNotOwnedError):
        await binding.release(ours)
    assert alice.do(theirs, "isHeldByCurrentThread") is True
    alice.do(theirs, "unlock")


@pytest.mark.parametrize("scene", [Scene("sync", "cluster", "bare")], ids=str)
@pytest.mark.parametrize("name", ["{a", "a}", "a{b", "{}a", "}a"])
async def test_names_with_a_lone_brace_are_refused_by_both(binding, name, site, alice):
    """Redisson's helper keys are in other slots than the lock, which it cannot unlock."""
    alice.do(lock(name), "lock", 1, "SECONDS")
    with pytest.raises(JavaError, match="CROSSSLOT"):
        alice.do(lock(name), "unlock")
    with pytest.raises(LockUnavailableError, match="braces"):
        await binding.acquire(RLock(name), blocking=False)
