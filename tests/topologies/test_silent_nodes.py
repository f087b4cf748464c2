"""A node of a cluster that hangs: the process's locks on the other nodes are kept."""

import itertools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from django_rlock import RLock
from django_rlock._core.redis_py import slot_of
from django_rlock._transport.calls import run_sync
from django_rlock._transport.identity import current_owner
from django_rlock._transport.registry import background_driver
from django_rlock._transport.servers import slot_map
from django_rlock.locks import forced
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import RENEW
from tests.background import renew_now, until_renewed
from tests.beside import beside
from tests.eventually import eventually
from tests.topologies.servers import command, is_ready

ENDLESS = 600
"""A lease, in seconds, of which a sixth is longer than a test waits: so long a thread waits for a silent node, unless
the cache's own limit is shorter.
"""
MANY = 30
"""Locks on a node; those of all nodes take several rounds."""


@pytest.fixture
def topology(started, use):
    chosen = started("cluster")
    use(replace(chosen, options={**chosen.options, "SOCKET_TIMEOUT": ENDLESS}), WATCHDOG_TIMEOUT=ENDLESS)
    require_all_nodes(chosen, "no")
    yield chosen
    require_all_nodes(chosen, "yes")
    eventually(lambda: all(map(is_ready, chosen.servers)))
    chosen.redis.flushall()


def require_all_nodes(topology, whether) -> None:
    for node in topology.servers:
        command(node, "CONFIG SET", "cluster-require-full-coverage", whether)


def locks_on(node, number) -> list[RLock]:
    slots = slot_map("default")
    slots.refresh()
    names = (f"stock:{number}" for number in itertools.count())
    found = (name for name in names if slots.owner(slot_of(f"rlock:{name}"))[1] == node.port)
    return [RLock(name) for name in islice(found, number)]


@contextmanager
def paused(node) -> Iterator[None]:
    node.pause()
    try:
        yield
    finally:
        node.resume()


def hold_of(lock):
    return next(hold for hold in HOLDS.snapshot() if hold.lock is lock)


def spared_node(lock) -> Any:
    """The node of a lock, as the background thread asks it."""
    topology: Any = background_driver("default")
    return topology._node(slot_map("default").owner(slot_of(lock.key)))


def test_a_round_asks_all_nodes_at_once(topology):
    (silent,), (other,) = (locks_on(node, 1) for node in topology.servers[:2])
    driver = background_driver("default")
    with silent, other:
        calls = [lock._kind.lease(lock, current_owner().owner_id, 1000, RENEW) for lock in (silent, other)]
        with ExitStack() as asking, paused(topology.servers[0]):
            asked = asking.enter_context(beside(run_sync, driver.run_all(calls)))
            eventually(lambda: (other.remaining_lease() or 0) > 900)
            assert not asked.done()


def test_a_silent_node_is_waited_for_once(topology, monkeypatch):
    """The locks on the others are renewed, in many rounds; its own as soon as it replies again."""
    monkeypatch.setattr(forced, "LISTEN_AFTER", math.inf)  # the background thread asks nothing by itself
    silent, others = (locks_on(node, MANY) for node in topology.servers[:2])
    for pair in zip(silent, others, strict=True):
        for lock in pair:
            lock.acquire()
    first = hold_of(silent[0])
    until_renewed(first)
    reached = spared_node(silent[0]).server
    reached.give_back(reached.open())  # the map of slots may be asked for over the callers' connection
    # Only this time; to connect takes what it takes.
    monkeypatch.setattr(reached, "reply_limit", 0.3)
    with paused(topology.servers[0]):
        until_all_renewed(others)
        assert first.suspect
    until_all_renewed(silent)
    for lock in (*silent, *others):
        lock.release()


def until_all_renewed(locks) -> None:
    before = [(hold, hold.deadline) for hold in map(hold_of, locks)]
    renew_now()
    eventually(lambda: all(hold.deadline > deadline for hold, deadline in before))
