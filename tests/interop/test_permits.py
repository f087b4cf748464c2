"""Permits with ids and leases, which one side takes and the other one releases, renews and counts."""

from __future__ import annotations

import pytest

from django_rlock import PermitExpirableSemaphore, PermitNotHeldError
from tests.eventually import UNTIL_SERVED
from tests.interop.pairs import helper
from tests.interop.redisson import JavaError, Target, expirable_semaphore

LONG = 600
SHORT = 0.1


@pytest.fixture
def ours(name) -> PermitExpirableSemaphore:
    return PermitExpirableSemaphore(name)


@pytest.fixture
def theirs(name) -> Target:
    return expirable_semaphore(name)


async def take(binding, ours: PermitExpirableSemaphore, **times) -> str:
    permit = await binding.call(ours, "acquire", **times)
    return permit.id


async def test_numbers(binding, ours, site, theirs, alice):
    assert alice.do(theirs, "trySetPermits", 5) is True
    assert await binding.call(ours, "try_set_permits", 7) is False
    await binding.call(ours, "acquire", 2)
    alice.do(theirs, "acquire")
    for change in "", "set", "add":
        if change == "set":
            await binding.call(ours, "set_permits", 9)
        elif change == "add":
            alice.do(theirs, "addPermits", 2)
        total = {"": 5, "set": 9, "add": 11}[change]
        assert await binding.call(ours, "total_permits") == alice.do(theirs, "getPermits") == total
        assert await binding.call(ours, "acquired_permits") == alice.do(theirs, "acquiredPermits") == 3
        assert await binding.call(ours, "available_permits") == alice.do(theirs, "availablePermits") == total - 3


async def test_ids_go_from_side_to_side(binding, ours, site, theirs, alice):
    alice.do(theirs, "trySetPermits", 3)
    permit = await binding.call(ours, "acquire", lease_time=LONG)
    several = await binding.call(ours, "acquire", 2)
    alice.do(theirs, "release", permit.id)
    alice.do(theirs, "release", several.ids)
    with pytest.raises(PermitNotHeldError):
        await binding.call(ours, "release", permit)
    their_id, *their_ids = alice.do(theirs, "acquire", 3)
    await binding.call(ours, "release", their_id)
    await binding.call(ours, "release", their_ids)
    with pytest.raises(JavaError, match="Permit with id"):
        alice.do(theirs, "release", their_id)
    assert await binding.call(ours, "available_permits") == 3


async def test_leases_are_changed_from_the_other_side(binding, ours, site, theirs, alice):
    alice.do(theirs, "trySetPermits", 2)
    permit = await binding.call(ours, "acquire")
    assert alice.do(theirs, "getLeaseTime", permit.id) == -1
    assert alice.do(theirs, "updateLeaseTime", permit.id, LONG, "SECONDS") is True
    assert LONG - 60 < await binding.call(ours, "lease_time", permit) <= LONG
    their_id = alice.do(theirs, "acquire")
    assert await binding.call(ours, "lease_time", their_id) is None
    assert await binding.call(ours, "update_lease_time", their_id, LONG) is True
    assert LONG - 60 < alice.do(theirs, "getLeaseTime", their_id) / 1000 <= LONG


async def test_release_by_java_wakes_python(binding, ours, name, site, theirs, alice):
    alice.do(theirs, "trySetPermits", 1)
    permit = alice.do(theirs, "acquire", LONG, "SECONDS")
    site.start_counting()
    with site.overheard(helper("redisson_sc", name)) as payloads:
        waiting = binding.start(take, binding, ours)
        await binding.until(lambda: site.tries() >= 2)
        alice.do(theirs, "release", permit)
        await binding.result(waiting)
    assert payloads == ["1"]


async def test_release_by_python_wakes_java(binding, ours, name, site, theirs, alice):
    assert await binding.call(ours, "try_set_permits", 1)
    permit = await binding.call(ours, "acquire", lease_time=LONG)
    site.start_counting()
    with site.overheard(helper("redisson_sc", name)) as payloads:
        waiting = alice.begin(theirs, "acquire")
        await binding.until(lambda: site.tries() >= 2)
        await binding.call(ours, "release", permit)
        assert len(waiting.result(UNTIL_SERVED)) == 32
    assert payloads == ["1"]


async def test_end_of_javas_lease_lets_python_in(binding, ours, site, theirs, alice):
    alice.do(theirs, "trySetPermits", 1)
    their_id = alice.do(theirs, "acquire", int(SHORT * 1000), "MILLISECONDS")
    permit = await binding.call(ours, "acquire", lease_time=LONG)
    assert alice.do(theirs, "tryRelease", their_id) is False
    assert await binding.call(ours, "available_permits") == 0
    await binding.call(ours, "release", permit)


async def test_end_of_pythons_lease_lets_java_in(binding, ours, site, theirs, alice):
    assert await binding.call(ours, "try_set_permits", 1)
    permit = await binding.call(ours, "acquire", lease_time=SHORT)
    their_id = alice.do(theirs, "acquire")
    assert permit.lost
    with pytest.raises(PermitNotHeldError):
        await binding.call(ours, "release", permit)
    alice.do(theirs, "release", their_id)
