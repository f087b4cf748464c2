"""A process that waits for many locks, and seldom heartbeats for each: it looks whether they are still held."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_rlock import FairLock, FencedLock, RLock, WriteLock
from django_rlock._core.clock import monotonic
from django_rlock._redis.keys import JAVA_QUEUE_ENTRY, java_queue_keys, writers_key
from django_rlock._transport.registry import commands_to
from django_rlock._transport.worker import worker
from django_rlock.locks import heartbeats
from tests.eventually import UNTIL_SERVED, eventually
from tests.topologies.servers import is_ready
from tests.topologies.slots import owner_of

HELD_FOR = 600_000
"""The other owner's lease, in ms."""
HOLDER = "00000000-0000-4000-8000-000000000000:1"
"""A Java client."""
ALIVE_TIME = 1000
"""WAITER_ALIVE_TIME, in ms."""


@pytest.fixture(params=["single", "cluster"])
def topology(request, started, use):
    chosen = started(request.param)
    use(chosen, WAITER_ALIVE_TIME=ALIVE_TIME / 1000, CLAIM_TIME=1.0)
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


@pytest.mark.parametrize("kind", [RLock, FencedLock, FairLock])
def test_entry_in_javas_queue_lives_for_two_seconds_and_is_kept_alive(kind, topology):
    """A process that has died keeps a free lock from Java's clients for no longer."""
    lock = kind("stock:1")
    check_marks(lock, java_queue_keys(lock.key)[2], JAVA_QUEUE_ENTRY, 2000, topology)


def test_waiting_writer_keeps_readers_out_for_its_alive_time_and_is_kept_alive(topology):
    """A process that has died keeps readers out for no longer."""
    check_marks(WriteLock("prices", prefer="writer"), writers_key("rlock:prices"), None, ALIVE_TIME, topology)


def check_marks(lock, marks, member, alive_ms, topology):
    """A waiter is marked as alive for this long, again and again."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_for, lock, topology)
        member = member or eventually(lambda: topology.redis.zrange(marks, 0, -1))[0]
        first = eventually(lambda: topology.redis.zscore(marks, member))
        last = eventually(lambda: (score := topology.redis.zscore(marks, member)) > first + 500 and score)
        assert last <= server_ms(topology, marks) + alive_ms
        topology.redis.delete(lock.key)
        assert waiting.result(UNTIL_SERVED)


def server_ms(topology, key):
    """The clock of the server that has a key."""
    seconds, micros = topology.redis.eval("return redis.call('time')", 1, key)
    return int(seconds) * 1000 + int(micros) // 1000


def wait_for(lock, topology):
    """Wait for a lock that another owner holds for long."""
    topology.redis.hset(lock.key, HOLDER, 1)
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
