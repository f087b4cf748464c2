"""Commands that nodes obey when their senders have gone on: they change nothing."""

import time

import pytest

from django_rlock._redis import keys, scripts
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks.redlock import RedLock
from tests.eventually import UNTIL_SERVED
from tests.redlock.conftest import holders

TOMBSTONES = keys.tombstone_key("rlock:x", "*")


def is_remembered(server):
    """Whether a node refuses for long what comes late."""
    with server.client() as client:
        return any(client.pttl(each) > 60_000 for each in client.scan_iter(TOMBSTONES))


async def arrive(binding, late):
    await binding.until(late.served.is_set)  # a majority of other nodes may have been faster
    late.let_go.set()
    await binding.until(late.obeyed.is_set)


async def test_acquire_that_failed_takes_no_node(binding, nodes, proxies):
    late = [each.copy_late(scripts.REDLOCK_ACQUIRE) for each in proxies for _ in range(2)]  # each node is asked again
    with pytest.raises(QuorumNotReachedError):
        await binding.acquire(RedLock("x", using="quorum"), wait_time=0)
    await binding.until(lambda: all(map(is_remembered, nodes[:2])))
    for each in late:
        await arrive(binding, each)
    assert not any(holders(nodes))


async def test_acquire_takes_no_node_after_the_release(binding, nodes, proxies):
    late = proxies[0].copy_late(scripts.REDLOCK_ACQUIRE)
    lock = RedLock("x", using="quorum")
    assert await binding.acquire(lock)
    await binding.until(late.served.is_set)
    await binding.release(lock)
    await binding.until(lambda: is_remembered(nodes[0]))
    await arrive(binding, late)
    assert not any(holders(nodes))


async def test_tombstones_are_short_where_nothing_may_come_late(binding, nodes, proxies, settings):
    # A stalled machine must not make a node late.
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODE_TIMEOUT": 4.0, "WATCHDOG_TIMEOUT": 100}}
    lock = RedLock("x", using="quorum")
    assert await binding.acquire(lock)
    await binding.release(lock)
    assert not any(map(is_remembered, nodes[:3]))


async def test_an_attempt_is_refused_for_longer_than_a_server_stalls(binding, nodes):
    """A node's release and its late acquire may come over two connections; NODE_TIMEOUT is 50 ms by default."""
    lock = RedLock("x", using="quorum")
    assert await binding.acquire(lock)
    await binding.release(lock)
    await binding.until(lambda: all(map(is_refused, nodes[:3])))


def is_refused(server):
    """Whether a node refuses all owners that have released for some seconds more."""
    with server.client() as client:
        left = [client.pttl(each) for each in client.scan_iter(TOMBSTONES)]
    return left and min(left) > 5_000


@pytest.mark.parametrize("what", ["enter", "inner release", "extend"])
async def test_lease_that_was_prolonged_since_stays(binding, nodes, proxies, what):
    """A copy that comes late shortens it on no node; an extension's, once that is settled."""
    lock = RedLock("x", using="quorum", lease_time=30)
    assert await binding.acquire(lock)
    if what == "enter":
        late = proxies[0].copy_late(scripts.REDLOCK_ACQUIRE)
    assert await binding.acquire(lock)
    if what == "inner release":
        late = proxies[0].copy_late(scripts.REDLOCK_RELEASE)
    await binding.release(lock)
    if what == "extend":
        for each in proxies:
            late = each.copy_late(scripts.REDLOCK_RENEW)
    await binding.call(lock, "extend", 20)
    await binding.call(lock, "extend", 60)
    with nodes[1 if what == "extend" else 0].client() as client:

        def is_long() -> bool:
            left = client.pttl("rlock:x")
            return left == -2 or left > 50_000

        give_up_at = time.monotonic() + UNTIL_SERVED
        while not is_long():  # a majority of other nodes may have been faster, while its connection was made anew
            assert time.monotonic() < give_up_at
            await binding.call(lock, "extend", 60)
        await arrive(binding, late)
        assert is_long()
    await binding.release(lock)
