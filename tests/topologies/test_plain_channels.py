"""Channels of all nodes in a Redis Cluster: scripts publish there only for clients of others that listen there."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count

import pytest

from django_rlock import RLock
from django_rlock._redis.keys import plain_mark, redisson_channel
from django_rlock._transport.registry import listener
from django_rlock.locks.holds import WAITS
from tests.eventually import PATIENCE
from tests.topologies.servers import command
from tests.topologies.slots import moving, owner_of

KEY = "rlock:stock:42"
CHANNEL = redisson_channel(KEY)


@pytest.fixture
def topology(started, use):
    chosen = started("cluster")
    use(chosen)
    yield chosen
    chosen.redis.flushall()


@contextmanager
def foreign_listener(node):
    """A client that listens as Redisson does without sharded channels."""
    with node.client() as client, client.pubsub() as pubsub:
        pubsub.subscribe(CHANNEL)
        assert pubsub.get_message(timeout=PATIENCE)["type"] == "subscribe"
        yield pubsub


def owner(topology):
    return owner_of(topology, topology.redis.keyslot(KEY))


def neighbour(topology, node):
    """A channel in another slot of the node."""
    names = (redisson_channel(f"other:{number}") for number in count())
    return next(name for name in names if owner_of(topology, topology.redis.keyslot(name)) is node)


def called(node, name):
    with node.client() as client:
        return client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0)


async def visits(binding, topology, number):
    """Owners that visit the lock one after the other: all but the first wait."""
    first = RLock("stock:42")
    await binding.acquire(first)
    waiting = [binding.start(_visit, binding) for _ in range(number)]
    await binding.until(lambda: len(WAITS.snapshot()) == number)
    await binding.until(lambda: command(owner(topology), "PUBSUB SHARDNUMSUB", plain_mark(CHANNEL))[1] == 1)
    await binding.release(first)
    for each in waiting:
        await binding.result(each)


async def _visit(binding):
    lock = RLock("stock:42")
    await binding.acquire(lock)
    await binding.release(lock)


async def test_without_others_no_message_goes_to_all_nodes(binding, topology):
    command(owner(topology), "CONFIG RESETSTAT")
    await visits(binding, topology, 2)
    assert called(owner(topology), "spublish") >= 3
    assert called(owner(topology), "publish") == 0


async def test_others_hear_of_each_release(binding, topology):
    with foreign_listener(owner(topology)) as theirs:
        await visits(binding, topology, 2)
        heard = [int(theirs.get_message(timeout=PATIENCE)["data"]) for _ in range(3)]
    assert heard == [0, 0, 0]


async def test_process_that_hears_both_messages_wakes_one_waiter(binding, topology):
    with foreign_listener(owner(topology)):
        await visits(binding, topology, 1)  # subscribes
        command(owner(topology), "CONFIG RESETSTAT")
        await visits(binding, topology, 2)
    assert called(owner(topology), "evalsha") == 1 + 2 * 2 + 3, "a try before each wait, one after it; three releases"


async def test_plain_subscription_follows_a_moving_slot(binding, topology):
    source = owner(topology)
    subscription = listener("default").call_at(neighbour(topology, source), str)  # keeps the connection open
    await visits(binding, topology, 1)
    with moving(topology, KEY):
        pass
    await visits(binding, topology, 1)
    await binding.until(lambda: command(source, "PUBSUB NUMSUB", CHANNEL)[1] == 0)
    await binding.until(lambda: command(source, "PUBSUB SHARDNUMSUB", subscription.channel)[1] == 1)
    assert command(owner(topology), "PUBSUB NUMSUB", CHANNEL)[1] == 1


async def test_option_publishes_always(binding, topology, use):
    use(topology, PUBLISH_TO_ALL=True)
    elsewhere = next(node for node in topology.servers if node is not owner(topology))
    with foreign_listener(elsewhere) as theirs:
        await _visit(binding)
        assert int(theirs.get_message(timeout=PATIENCE)["data"]) == 0
