"""Permits that both sides take and release."""

from __future__ import annotations

import pytest

from django_rlock import Semaphore
from tests.eventually import UNTIL_SERVED
from tests.interop.pairs import helper
from tests.interop.redisson import Target, semaphore
from tests.interop.sites import waiting_here


@pytest.fixture
def ours(name) -> Semaphore:
    return Semaphore(name)


@pytest.fixture
def theirs(name) -> Target:
    return semaphore(name)


async def take(binding, ours: Semaphore, permits: int) -> None:
    assert await binding.call(ours, "acquire", permits)


async def test_numbers(binding, ours, site, theirs, alice):
    assert alice.do(theirs, "trySetPermits", 5) is True
    assert await binding.call(ours, "try_set_permits", 7) is False
    assert await binding.call(ours, "acquire", 2, blocking=False) is True
    assert alice.do(theirs, "availablePermits") == 3
    assert alice.do(theirs, "tryAcquire", 4) is False
    assert alice.do(theirs, "tryAcquire", 2) is True
    assert await binding.call(ours, "acquire", 2, blocking=False) is False
    await binding.call(ours, "add_permits", 4)
    alice.do(theirs, "addPermits", -2)
    assert await binding.call(ours, "available_permits") == alice.do(theirs, "availablePermits") == 3
    assert alice.do(theirs, "drainPermits") == 3
    assert await binding.call(ours, "drain_permits") == 0
    assert await binding.call(ours, "release_if_exists") is True
    assert alice.do(theirs, "drainPermits") == 1
    assert await binding.call(ours, "delete") is True
    assert alice.do(theirs, "releaseIfExists", 1) is False
    assert await binding.call(ours, "try_set_permits", 7) is True
    assert alice.do(theirs, "trySetPermits", 5) is False
    assert alice.do(theirs, "availablePermits") == 7


async def test_release_by_java_wakes_python(binding, ours, name, site, theirs, alice):
    alice.do(theirs, "trySetPermits", 2)
    alice.do(theirs, "acquire", 2)
    site.start_counting()
    with site.overheard(helper("redisson_sc", name)) as payloads:
        waiting = binding.start(take, binding, ours, 2)
        await binding.until(lambda: site.tries() >= 2)
        alice.do(theirs, "release", 1)
        assert await binding.call(ours, "acquire", 2, blocking=False) is False
        alice.do(theirs, "release", 1)
        await binding.result(waiting)
    assert payloads == ["1", "2"]


async def test_release_by_python_wakes_java(binding, ours, name, site, java, theirs, alice):
    assert await binding.call(ours, "try_set_permits", 2)
    assert await binding.call(ours, "acquire", 2)
    site.start_counting()
    with site.overheard(helper("redisson_sc", name)) as payloads:
        waiting = alice.begin(theirs, "acquire", 2)
        await binding.until(lambda: site.tries() >= 2)
        await binding.call(ours, "release")
        assert await binding.call(ours, "available_permits") == 1
        await binding.call(ours, "release")
        waiting.result(UNTIL_SERVED)
    assert payloads == ["1", "2"]


@pytest.mark.parametrize("giver", ["java", "python"])
async def test_one_release_wakes_all_that_it_is_enough_for(binding, ours, name, site, java, giver):
    theirs = semaphore(name)
    site.start_counting()
    here = [binding.start(take, binding, ours, 1) for _ in range(2)]
    await binding.until(lambda: waiting_here() == 2)
    there = [java(who).begin(theirs, "acquire") for who in ("bob", "carol")]
    await binding.until(lambda: site.tries() >= 6)
    if giver == "java":
        java("alice").do(theirs, "release", 4)
    else:
        await binding.call(ours, "release", 4)
    await binding.results(here)
    for each in there:
        each.result(UNTIL_SERVED)
    assert await binding.call(ours, "available_permits") == 0


async def test_waiters_outlast_a_semaphore_that_is_short_of_permits(binding, ours, site, theirs, alice):
    """Redisson publishes the number of free permits even if it is below 0, which its own waiters do not accept."""
    assert alice.do(theirs, "trySetPermits", 0) is True
    site.start_counting()
    waiting = binding.start(take, binding, ours, 1)
    await binding.until(lambda: site.tries() >= 2)
    alice.do(theirs, "addPermits", -3)
    assert await binding.call(ours, "available_permits") == -3
    alice.do(theirs, "addPermits", 4)
    await binding.result(waiting)
    site.start_counting()
    there = alice.begin(theirs, "acquire")
    await binding.until(lambda: site.tries() >= 2)
    await binding.call(ours, "add_permits", -3)
    await binding.call(ours, "add_permits", 4)
    there.result(UNTIL_SERVED)
