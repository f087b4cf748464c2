"""A process that waits for many locks, and seldom heartbeats for each: it looks whether they are still held."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_rlock import FairLock
from django_rlock._core.clock import monotonic
from django_rlock._transport.registry import commands_to
from django_rlock._transport.worker import worker
from django_rlock.locks import heartbeats
from tests.eventually import UNTIL_SERVED, eventually
from tests.topologies.servers import is_ready
from tests.topologies.slots import owner_of

HELD_FOR = 600_000
"""The other owner's lease, in ms."""


@pytest.fixture(params=["single", "cluster"])
def topology(request, started, use):
    chosen = started(request.param)
    use(chosen, WAITER_ALIVE_TIME=1.0, CLAIM_TIME=1.0)
    yield chosen
    chosen.redis.flushall()


@pytest.fixture(autouse=True)
def seldom(monkeypatch):
    """Two waits are many."""
    monkeypatch.setattr(heartbeats, "MOST_PER_SECOND", 1 / heartbeats.LONGEST_PAUSE)


def test_freed_lock_is_found_long_before_its_next_beat(topology):
    first, second = FairLock("stock:1"), FairLock("stock:2")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(wait_for, lock, topology) for lock in (first, second)]
        eventually(lambda: is_seldom_beaten_for(first) and is_seldom_beaten_for(second))
        for lock, each in zip((first, second), waiting, strict=True):
            topology.redis.delete(lock.key)
            assert each.result(UNTIL_SERVED)


@pytest.mark.parametrize("topology", ["cluster"], indirect=True)
def test_freed_lock_is_found_while_another_node_is_silent(topology, monkeypatch):
    first = FairLock("stock:1")
    other = next(lock for lock in map(FairLock, "abcdefgh") if node_of(lock, topology) != node_of(first, topology))
    with ThreadPoolExecutor() as pool:
        waiting = {lock: pool.submit(wait_for, lock, topology) for lock in (first, other)}
        eventually(lambda: is_seldom_beaten_for(first) and is_seldom_beaten_for(other))
        looking: Any = commands_to("default", "background")
        eventually(lambda: len(looking._nodes) == 2)
        for node in looking._nodes.values():
            monkeypatch.setattr(node._node.server, "reply_limit", 0.3)
        silent = node_of(first, topology)
        silent.pause()
        try:
            topology.redis.delete(other.key)
            assert waiting[other].result(UNTIL_SERVED)
        finally:
            silent.resume()
        eventually(lambda: all(map(is_ready, topology.servers)))
        topology.redis.delete(first.key)
        assert waiting[first].result(UNTIL_SERVED)


def wait_for(lock, topology):
    """Wait for a lock that another owner holds for long."""
    topology.redis.hset(lock.key, "00000000-0000-4000-8000-000000000000:1", 1)
    topology.redis.pexpire(lock.key, HELD_FOR)
    taken = lock.acquire(wait_time=3 * UNTIL_SERVED)
    lock.release()
    return taken


def is_seldom_beaten_for(lock):
    groups = worker("default").jobs[heartbeats.Heartbeats]._groups
    group = groups.get(heartbeats.LockKey(lock.key, "fair"))
    return group is not None and monotonic() + heartbeats.LONGEST_PAUSE / 2 < group.heartbeat_at < math.inf


def node_of(lock, topology):
    return owner_of(topology, topology.redis.keyslot(lock.key))
