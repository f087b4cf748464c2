"""Fencing tokens over owners on both sides: they rise, whoever draws the next one."""

from __future__ import annotations

from django_rlock import FencedLock
from tests.eventually import UNTIL_SERVED
from tests.interop.pairs import helper
from tests.interop.redisson import fenced_lock, lock

LONG = 600


async def visit(binding, ours: FencedLock) -> int:
    async with binding.inside(ours):
        return ours.token


async def test_tokens_rise_from_owner_to_owner(binding, name, site, alice, bob):
    ours = FencedLock(name)
    tokens = []
    for owner in alice, bob, alice:
        tokens.append(await visit(binding, ours))
        tokens.append(owner.do(fenced_lock(name), "lockAndGetToken"))
        assert owner.do(fenced_lock(name), "getToken") == tokens[-1]
        owner.do(fenced_lock(name), "unlock")
    assert tokens == sorted(set(tokens))


async def test_python_continues_javas_tokens(binding, name, site, alice):
    """Also where that is above its own clock."""
    ahead = 2**52
    site.client.set(helper("redisson_lock_token", name), ahead)
    assert alice.do(fenced_lock(name), "lockAndGetToken") == ahead + 1
    alice.do(fenced_lock(name), "unlock")
    assert await visit(binding, FencedLock(name)) == ahead + 2


async def test_re_entry(binding, name, site, alice):
    """Redisson draws another token then, ours keeps its own; the next owner's is above in both cases."""
    ours, theirs = FencedLock(name), fenced_lock(name)
    async with binding.inside(ours):
        outer = ours.token
        async with binding.inside(ours):
            assert ours.token == outer
            assert alice.do(theirs, "getToken") == outer
    tokens = [alice.do(theirs, "lockAndGetToken") for _ in range(2)]
    assert tokens == [outer + 1, outer + 2]
    for _ in tokens:
        alice.do(theirs, "unlock")
    assert await visit(binding, ours) > tokens[-1]


async def test_java_waits_for_its_token(binding, name, site, alice):
    ours = FencedLock(name)
    assert await binding.acquire(ours, lease_time=LONG)
    site.start_counting()
    waiting = alice.begin(fenced_lock(name), "tryLockAndGetToken", LONG, LONG, "SECONDS")
    await binding.until(lambda: site.tries() >= 2)
    token = ours.token
    await binding.release(ours)
    assert waiting.result(UNTIL_SERVED) == token + 1
    alice.do(fenced_lock(name), "unlock")


async def test_plain_lock_of_java_draws_no_token(binding, name, site, alice):
    ours = FencedLock(name)
    before = await visit(binding, ours)
    alice.do(lock(name), "lock", LONG, "SECONDS")
    assert await binding.acquire(ours, blocking=False) is False
    assert alice.do(fenced_lock(name), "getToken") == before
    alice.do(lock(name), "unlock")
