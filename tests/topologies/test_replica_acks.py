"""REPLICA_ACKS: a lock counts as taken when replicas have it, and is released when too few do."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
    RLock,
    Semaphore,
)
from django_rlock._redis.keys import queue_key
from django_rlock.locks.holds import HOLDS
from django_rlock.settings import get_settings
from example_project.embedded import EmbeddedServer
from tests.topologies.servers import Topology, command, follow

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"
NEEDED = {1: 1, 2: 2, "majority": 1, "all": 2}


@pytest.fixture(scope="module")
def group():
    """A primary with two replicas."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        EmbeddedServer(port=0, args=at_once) as primary,
        EmbeddedServer(port=0, args=at_once) as one,
        EmbeddedServer(port=0, args=at_once) as other,
        primary.client() as client,
    ):
        follow(one, primary)
        follow(other, primary)
        yield Topology("replicas", primary.url, client, [primary, one, other])


@pytest.fixture
def behind(group):
    """One of the two is stopped: it stays connected, and confirms nothing."""
    other = group.servers[2]
    other.pause()
    yield
    other.resume()


def waits(group):
    """How often the primary was asked to wait for replicas."""
    return group.redis.info("commandstats").get("cmdstat_wait", {}).get("calls", 0)


@pytest.mark.parametrize("acks", NEEDED)
async def test_confirmed(binding, kind, group, use, acks):
    use(group, REPLICA_ACKS=acks)
    lock = kind("stock:42")
    async with binding.inside(lock):
        pass  # the server learns the scripts
    group.redis.config_resetstat()
    async with binding.inside(lock), binding.inside(lock):
        assert sum(command(replica, "EXISTS", KEY) for replica in group.servers[1:]) >= NEEDED[acks]
    assert waits(group) == 1, "for the first acquire alone"


async def test_not_asked_by_default(binding, kind, group, use):
    use(group)
    group.redis.config_resetstat()
    async with binding.inside(kind("stock:42")):
        pass
    assert waits(group) == 0


@pytest.mark.parametrize("acks", [2, "all"])
async def test_too_few(binding, kind, group, behind, use, acks):
    use(group, REPLICA_ACKS=acks, REPLICA_ACK_TIMEOUT=0.05)
    # The replica that runs may be slow as well.
    with pytest.raises(LockUnavailableError, match=r"[01] of the 2 replicas needed .* 0\.05 s.* released"):
        await binding.acquire(kind("stock:42"), wait_time=0)
    assert not group.redis.exists(KEY)


def together(name):
    return MultiLock(FairLock(name), RLock("b"))


KINDS = [RLock, FairLock, FencedLock, together, Semaphore, PermitExpirableSemaphore]
COUNTERS = Semaphore, PermitExpirableSemaphore


async def made(binding, group, make):
    """An object of a kind, of which there is nothing on the server, or three permits."""
    group.redis.delete("rlock:seats", "{rlock:seats}:timeout")
    obj = make("seats" if make in COUNTERS else "stock:42")
    if make in COUNTERS:
        await binding.call(obj, "try_set_permits", 3)
    group.redis.config_resetstat()
    return obj


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
async def test_a_caller_with_time_left_waits_until_the_replica_is_back(binding, group, behind, use, make):
    use(group, REPLICA_ACKS=2, REPLICA_ACK_TIMEOUT=0.05)
    obj = await made(binding, group, make)
    waiting = binding.start(take, binding, obj)
    await binding.until(lambda: waits(group) > 2)  # it has tried again
    group.servers[2].resume()
    assert await binding.result(waiting)
    if make in COUNTERS:
        assert await binding.call(obj, "available_permits") == 3, "each unconfirmed one was released"
    assert not group.redis.exists(KEY, "rlock:b")


async def take(binding, obj):
    """Take it and give it back, by the same owner."""
    taken = await binding.call(obj, "acquire", wait_time=3600)
    await binding.call(obj, "release", *([taken] if isinstance(obj, PermitExpirableSemaphore) else []))
    return taken


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
async def test_a_wait_that_ends_names_the_replicas(binding, group, behind, use, make):
    use(group, REPLICA_ACKS=2, REPLICA_ACK_TIMEOUT=0.05)
    obj = await made(binding, group, make)
    with pytest.raises(LockUnavailableError, match="of the 2 replicas"):
        await binding.call(obj, "acquire", wait_time=0.2)


async def test_each_try_has_an_owner_id_of_its_own(binding, group, behind, use):
    """A late copy of the undo must not free the next hold."""
    use(group, REPLICA_ACKS=2, REPLICA_ACK_TIMEOUT=0.05)
    owners = set()
    waiting = binding.start(take, binding, RLock("stock:42"))

    def has_seen_two():
        owners.update(group.redis.hkeys(KEY))
        return len(owners) > 1

    await binding.until(has_seen_two)
    group.servers[2].resume()
    assert await binding.result(waiting)


@pytest.mark.parametrize("acks", [1, "majority"])
async def test_enough_of_them(binding, kind, group, behind, use, acks):
    use(group, REPLICA_ACKS=acks)
    async with binding.inside(kind("stock:42")):
        assert group.redis.exists(KEY)


async def test_given_back_by_an_owner_with_a_name(binding, group, behind, use):
    use(group, REPLICA_ACKS=2, REPLICA_ACK_TIMEOUT=0.05)
    with pytest.raises(LockUnavailableError):
        await binding.acquire(RLock("stock:42", owner="me"), wait_time=0)
    assert not group.redis.exists(KEY)


async def test_waiter_tries_again_after_an_unconfirmed_lock_was_released(binding, group, behind, use):
    """A waiter learns that it is free again, and tries for itself."""
    use(group, REPLICA_ACKS=2, REPLICA_ACK_TIMEOUT=0.05)
    group.redis.hset(KEY, "another", 1)
    waiting = binding.start(acquire, binding, RLock("stock:42"))
    await binding.until(lambda: group.redis.pubsub_numsub(f"redisson_lock__channel:{{{KEY}}}")[0][1])
    await binding.call(RLock("stock:42"), "force_release")
    with pytest.raises(LockUnavailableError):
        await binding.result(waiting)
    assert not group.redis.exists(KEY)


async def acquire(binding, lock):
    return await binding.acquire(lock, wait_time=1)


async def test_a_grant_is_asked_about(binding, group, use):
    """Its message does not say which replicas have it."""

    async def take() -> None:
        async with binding.inside(FairLock("stock:42")):
            assert waits(group) > waits_before[0]
            assert not HOLDS.snapshot()[0].is_unconfirmed

    use(group, REPLICA_ACKS=1)
    waits_before: list[int] = []
    async with binding.inside(FairLock("stock:42")):
        waiting = binding.start(take)
        await binding.until(lambda: group.redis.zcard(queue_key(KEY)) == 1)
        waits_before.append(waits(group))
    await binding.result(waiting)


async def test_latch_takes_nothing(binding, group, behind, use):
    use(group, REPLICA_ACKS=2, REPLICA_ACK_TIMEOUT=0.05)
    group.redis.config_resetstat()
    gate = CountDownLatch("gate")
    assert await gate.await_() if binding.name == "async" else gate.wait()
    assert waits(group) == 0


@pytest.mark.parametrize("acks", [1, "majority", "all"])
async def test_server_without_replicas(binding, started, use, acks):
    single = started("single")
    use(single, REPLICA_ACKS=acks, REPLICA_ACK_TIMEOUT=0.05)
    with pytest.raises(LockUnavailableError, match="0 of the 1 replicas"):
        await binding.acquire(RLock("stock:42"), wait_time=0)
    assert not single.redis.exists(KEY)


async def test_in_a_cluster(binding, started, use):
    cluster = started("cluster")
    for node in cluster.servers:
        command(node, "ACL SETUSER", "locks", "+wait")
    use(cluster, REPLICA_ACKS=1, REPLICA_ACK_TIMEOUT=0.05)
    with pytest.raises(LockUnavailableError, match="0 of the 1 replicas"):
        await binding.acquire(RLock("stock:42"), wait_time=0)
    assert not cluster.redis.exists(KEY)


@pytest.mark.parametrize("acks", [-1, 1.5, True, "most", None])
def test_bad_setting(settings, acks):
    settings.RLOCK = {"default": {"REPLICA_ACKS": acks}}
    with pytest.raises(ImproperlyConfigured, match="a number of replicas, 'majority' or 'all'"):
        get_settings()


def test_not_for_independent_nodes(settings):
    settings.RLOCK = {"quorum": {"NODES": ["redis://a", "redis://b", "redis://c"], "REPLICA_ACKS": 1}}
    with pytest.raises(ImproperlyConfigured, match="REPLICA_ACKS"):
        get_settings("quorum")


async def test_server_without_wait_is_named(binding, use):
    with EmbeddedServer(port=0, args=("--rename-command", "WAIT", "")) as server, server.client() as client:
        use(Topology("replicas", server.url, client, [server]), REPLICA_ACKS=1)
        with pytest.raises(LockUnavailableError) as caught:
            await binding.acquire(RLock("stock:42"), wait_time=2)
        assert caught.value.advice == "Nothing was changed; set REPLICA_ACKS to 0, or use a server that has WAIT."
        await binding.until(lambda: not client.exists(KEY))
