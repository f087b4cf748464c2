"""Channels of all nodes in a Redis Cluster: scripts publish there only for clients of others that listen there."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count

import pytest

from django_rlock import RLock
from django_rlock._redis import scripts
from django_rlock._redis.keys import fair_release_keys, plain_mark, redisson_channel, release_keys
from django_rlock._transport.registry import listener
from django_rlock.locks.holds import WAITS
from tests.bindings import visit
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
def foreign_listener(node, channel=CHANNEL, way="subscribe"):
    """A client that listens as Redisson does, usually without sharded channels."""
    with node.client() as client, client.pubsub() as pubsub:
        getattr(pubsub, way)(channel)
        assert pubsub.get_message(timeout=PATIENCE)["type"] == way
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
    waiting = [binding.start(visit, binding, first) for _ in range(number)]
    await binding.until(lambda: len(WAITS.snapshot()) == number)
    await binding.until(lambda: command(owner(topology), "PUBSUB SHARDNUMSUB", plain_mark(CHANNEL))[1] == 1)
    await binding.release(first)
    await binding.results(waiting)


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


WAYS = pytest.mark.parametrize("way", ["subscribe", "ssubscribe"])


@WAYS
async def test_first_living_waiter_of_javas_queue_is_told(binding, topology, way):
    """The dead one before it would have been told else, or would stay before it for ever."""
    waiting, deadlines = release_keys(KEY)[2:]
    topology.redis.rpush(waiting, "long dead", "dead", "living")
    topology.redis.zadd(deadlines, {"long dead": 1, "dead": 4e15, "living": 1})
    with foreign_listener(owner(topology), f"{CHANNEL}:living", way) as theirs:
        await visit(binding, RLock("stock:42"))
        assert int(theirs.get_message(timeout=PATIENCE)["data"]) == 0
    assert topology.redis.lrange(waiting, 0, -1) == ["dead", "living"]


@WAYS
def test_lock_is_left_to_javas_fair_waiter_while_it_listens(topology, way):
    waiting, deadlines = release_keys(KEY)[2:]
    topology.redis.rpush(waiting, "living")
    topology.redis.zadd(deadlines, {"living": 4e15})
    assert not is_left_free(topology.redis)
    with foreign_listener(owner(topology), f"{CHANNEL}:living", way):
        assert is_left_free(topology.redis)


def is_left_free(redis_client, releases=100):
    """Whether one of so many releases leaves it free, although an owner waits for it."""
    all_keys, owner = fair_release_keys(KEY), f"{'a' * 14}8{'a' * 21}:1"
    lock, queue, alive, *_ = all_keys
    for _ in range(releases):
        redis_client.delete(lock, queue)
        redis_client.hset(lock, owner, 1)
        redis_client.zadd(queue, {owner: 1})
        redis_client.zadd(alive, {owner[:36]: 4e15})
        redis_client.eval(scripts.FAIR_RELEASE.sharded().source, len(all_keys), *all_keys, "1", owner, 0, 1, 5000)
        if not redis_client.exists(lock):
            return True
    return False


async def test_option_publishes_always(binding, topology, use):
    use(topology, PUBLISH_TO_ALL=True)
    elsewhere = next(node for node in topology.servers if node is not owner(topology))
    with foreign_listener(elsewhere) as theirs:
        await visit(binding, RLock("stock:42"))
        assert int(theirs.get_message(timeout=PATIENCE)["data"]) == 0
