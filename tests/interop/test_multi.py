"""MultiLocks of both sides, with the same members: each in turn holds, waits, and writes the same state."""

from __future__ import annotations

import re

import pytest

from django_rlock import FencedLock, MultiLock, ReadLock, WriteLock
from tests.eventually import UNTIL_SERVED
from tests.interop.redisson import Target, fenced_lock, multi_lock, read_lock, write_lock

LONG = 600
MEMBERS = {"read": (ReadLock, read_lock), "write": (WriteLock, write_lock), "fenced": (FencedLock, fenced_lock)}


def both(name: str, kinds: list[str]) -> tuple[MultiLock, Target]:
    """Our MultiLock and Redisson's, whose members have these kinds."""
    made = [(kind, f"{name}:{number}") for number, kind in enumerate(kinds)]
    ours = MultiLock(*[MEMBERS[kind][0](member) for kind, member in made])
    return ours, multi_lock(*[MEMBERS[kind][1](member) for kind, member in made])


def state(site) -> dict[str, object]:
    """The locks' hashes and the other keys, with any owner's id. Redisson deletes its latch of a release later."""
    owner = re.compile(r"[0-9a-f-]{36}:\d+")
    kept = [name for name in site.names() if "token" not in name and "unlock_latch" not in name]
    return {
        owner.sub("owner", name): {
            owner.sub("owner", field): value for field, value in site.client.hgetall(name).items()
        }
        if site.client.type(name) == "hash"
        else site.client.get(name)
        for name in kept
    }


@pytest.mark.parametrize("kinds", [["read", "fenced", "write"], ["read", "write"]], ids="-".join)
async def test_members_of_both_sides_are_the_same(binding, kinds, name, site, java):
    (ours, theirs), alice = both(name, kinds), java("alice")
    alice.do(theirs, "lock", LONG, "SECONDS")
    written = state(site)
    assert await binding.acquire(ours, blocking=False) is False
    assert state(site) == written
    alice.do(theirs, "unlock")
    assert await binding.acquire(ours, lease_time=LONG)
    assert state(site) == written
    assert alice.do(theirs, "tryLock") is False
    assert state(site) == written
    await binding.release(ours)
    await binding.until(lambda: state(site) == {})


async def test_release_of_one_side_wakes_the_other(binding, name, site, java):
    (ours, theirs), alice = both(name, ["read", "write"]), java("alice")
    alice.do(theirs, "lock", LONG, "SECONDS")
    waiting = binding.start(visit, binding, ours)
    site.start_counting()
    await binding.until(lambda: site.tries() >= 1)
    alice.do(theirs, "unlock")
    await binding.result(waiting)
    assert await binding.acquire(ours, lease_time=LONG)
    asked = alice.begin(theirs, "lock", LONG, "SECONDS")
    await binding.until(alice.sleeps)
    await binding.release(ours)
    asked.result(UNTIL_SERVED)
    alice.do(theirs, "unlock")


async def visit(binding, lock) -> None:
    await binding.acquire(lock, lease_time=LONG)
    await binding.release(lock)
