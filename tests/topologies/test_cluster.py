"""Locks in a Redis Cluster: each where its slot is, also while that moves; its messages by the slot's shard."""

import contextlib
import operator
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import AuthenticationError

from django_rlock import FairLock, FencedLock, LockLostError, LockUnavailableError, ReadWriteLock, RLock, Semaphore
from django_rlock._core.redis_py import slot_of
from django_rlock._monitoring.recorder import Recorder
from django_rlock._monitoring.reporter import Publisher
from django_rlock._redis.keys import token_key
from django_rlock._transport.calls import pack_command
from django_rlock._transport.cluster import ClusterClient
from django_rlock._transport.registry import async_driver, sync_driver
from django_rlock._transport.servers import _ask_slots, cluster_client, server, slot_map
from django_rlock._transport.worker import CleanUps, worker
from django_rlock.checks import check_settings
from django_rlock.console.reading import asking
from django_rlock.inspection import iter_locks
from django_rlock.locks import release
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import renew_now, until_renewed
from tests.bindings import visit_alone
from tests.eventually import UNTIL_SERVED, eventually
from tests.topologies.documented import entry
from tests.topologies.servers import Topology, cluster, command, is_ready
from tests.topologies.slots import Move, errors, moving, owner_of

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"
CHANNELS = {FairLock: f"rlock_wake:{{{KEY}}}:*", RLock: f"redisson_lock__channel:{{{KEY}}}"}


@pytest.fixture
def topology(started, use):
    chosen = started("cluster")
    use(chosen)
    yield chosen
    chosen.redis.flushall()


def owner(topology):
    return owner_of(topology, topology.redis.keyslot(KEY))


async def test_try_again_is_tried_again(binding, topology):
    with moving(topology, KEY) as move:
        before = errors(move.target, "TRYAGAIN")
        visiting = binding.start(visit_alone, binding, FairLock("stock:42", wait_time=20), [])
        # The target has none of the three keys, and cannot know whether the source has them.
        await binding.until(lambda: errors(move.target, "TRYAGAIN") > before)
    await binding.result(visiting)


@pytest.mark.parametrize("make", [FairLock, FencedLock, lambda name: ReadWriteLock(name).read_lock, Semaphore])
async def test_a_slot_left_open_is_named_with_its_remedy(binding, topology, make):
    """Some of the keys are missing, as of a lock that was free before the move was interrupted. A script that is
    refused half-way takes nothing."""
    obj = make("stock:42")
    if isinstance(obj, Semaphore):
        assert await binding.call(obj, "try_set_permits", 1)
    else:
        topology.redis.set(token_key(KEY), 1)
    with moving(topology, KEY) as move:
        with pytest.raises(LockUnavailableError, match=f"slot {move.slot} of the cluster is being moved") as caught:
            await binding.call(obj, "acquire", wait_time=0)
        assert "run redis-cli --cluster fix" in caught.value.advice
    assert await binding.call(obj, "acquire", wait_time=20)
    await binding.call(obj, "release")


async def test_nodes_that_disagree_are_given_time(binding, topology):
    """The source names a target that does not know of it yet, and names the source."""
    move = Move(topology, topology.redis.keyslot(KEY))
    move.leave()
    before = errors(move.source, "ASK")
    visiting = binding.start(visit_alone, binding, RLock("stock:42", wait_time=20), [])
    await binding.until(lambda: errors(move.source, "ASK") > before + 6)
    move.begin()
    move.finish()
    await binding.result(visiting)


async def test_slot_moves_under_load(binding, kind, topology, monkeypatch):
    monkeypatch.setattr(release, "RELEASE_PATIENCE", 20.0)  # a slow machine moves a slot for longer than a second
    inside: list[object] = []
    served = [0] * 4
    moved = threading.Event()

    async def client(number):
        while not moved.is_set():
            await visit_alone(binding, kind("stock:42", wait_time=20), inside)
            served[number] += 1

    def are_served(before) -> bool:
        return any(each.done() for each in clients) or all(map(operator.gt, served, before))

    clients = [binding.start(client, number) for number in range(len(served))]
    try:
        for _ in range(3):
            so_far = list(served)
            move = Move(topology, topology.redis.keyslot(KEY))
            move.begin()
            await binding.sleep(0.02)
            move.finish()
            await binding.until(partial(are_served, so_far))
    finally:
        moved.set()
        await binding.results(clients)


@pytest.fixture
def own_cluster(use):
    with cluster() as chosen:
        use(chosen)
        yield chosen


@pytest.mark.lengthy
async def test_node_dies_and_comes_back(binding, topology, use):
    use(topology, REFUSED_WAIT_TIME=None)
    node = owner(topology)
    lock = RLock("stock:42")
    async with binding.inside(lock):
        pass
    node.kill()
    began = time.monotonic()
    with pytest.raises(LockUnavailableError):
        await binding.acquire(lock, wait_time=0.3)
    assert time.monotonic() - began < UNTIL_SERVED
    node.start()
    assert await binding.acquire(lock, wait_time=20)
    await binding.release(lock)
    await binding.until(lambda: all(map(is_ready, topology.servers)))


@pytest.mark.lengthy
async def test_another_node_takes_over(binding, own_cluster, use):
    """The holder's lock is gone with its node; the waiter goes on where its slot is served now."""
    use(own_cluster, REFUSED_WAIT_TIME=None)
    for node in own_cluster.servers:
        command(node, "CONFIG SET", "cluster-require-full-coverage", "no")
    lock = RLock("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit_alone, binding, RLock("stock:42"), [])
    await binding.until(WAITS.snapshot)
    move = Move(own_cluster, own_cluster.redis.keyslot(KEY))
    move.source.kill()
    move.take_over()
    await binding.result(waiting)
    renew_now()
    await binding.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_messages_are_heard_again(binding, topology):
    """After the listening connection was lost."""
    node = owner(topology)
    lock = RLock("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit_alone, binding, RLock("stock:42"), [])
    with node.client() as client:
        await binding.until(lambda: client.execute_command("PUBSUB SHARDCHANNELS", CHANNELS[RLock]))
        subscribed = client.client_list(_type="pubsub")[0]["id"]
        client.client_kill_filter(_id=subscribed)
        await binding.until(lambda: client.execute_command("PUBSUB SHARDCHANNELS", CHANNELS[RLock]))
        assert client.client_list(_type="pubsub")[0]["id"] != subscribed
    await binding.release(lock)
    await binding.result(waiting)


async def test_nobody_queues_up_to_ask_nodes_that_do_not_answer(binding, use):
    """More tasks than an event loop has threads for."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = entry("cluster")["OPTIONS"] | {"STARTUP_NODES": []}
        use(Topology("silent", f"redis://127.0.0.1:{silent.getsockname()[1]}", None, [], options))
        driver: Any = sync_driver("default") if binding.name == "sync" else async_driver("default")
        slots = slot_map("default")
        asking = [binding.start(driver.call, slots.refresh, slots.rounds) for _ in range(40)]
        await binding.results(asking)
        silent.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                asked.append(silent.accept()[0])
    for connection in asked:
        connection.close()
    # One asks and the others share its outcome; on a busy machine a few start when that is there already.
    assert len(asked) < 5


def test_start_node_is_down(topology, use):
    more = [("127.0.0.1", node.port) for node in topology.servers]
    use(replace(topology, location="redis://127.0.0.1:1", options={**topology.options, "STARTUP_NODES": more}))
    with RLock("stock:42"):
        assert slot_map("default").owner(0)[1] == topology.servers[0].port


def test_nothing_is_asked_before_the_first_lock(topology, use):
    """``manage.py check`` makes the client of a cluster that is down."""
    use(replace(topology, location="redis://127.0.0.1:1"))
    assert check_settings() == []
    with pytest.raises(LockUnavailableError):
        RLock("stock:42").acquire(wait_time=0)


def test_refused_name_leaves_nothing_to_clean_up(topology, caplog):
    caplog.set_level("DEBUG", "django_rlock")
    with pytest.raises(LockUnavailableError, match="braces"):
        RLock("a}b").acquire(wait_time=0)
    eventually(lambda: "Nothing to clean up" in caplog.text)
    assert not worker("default").jobs[CleanUps]._due


def test_locks_are_listed_and_found_on_all_nodes(topology, use):
    use(replace(topology, options=entry("cluster")["OPTIONS"] | {"STARTUP_NODES": []}))  # who may SCAN
    owner = f"{uuid4()}:1"
    for number in range(9):
        topology.redis.hset(f"rlock:{number}", owner, 1)
    assert {info.name for info in iter_locks(scan=True)} == set("012345678")
    with RLock("stock:42"):
        eventually(lambda: [info.name for info in iter_locks()] == ["stock:42"])


def test_a_refresh_counts_keys_on_all_nodes(topology):
    for number in range(9):
        topology.redis.hset(f"rlock:{number}", f"{uuid4()}:1", 1)
    topology.redis.zadd("rlock_queue:{rlock:7}", {f"{uuid4()}:1": 1})
    keys = [f"rlock:{number}" for number in range(10)]
    with asking("*", "default") as server:
        states = server.read_states(keys)
        assert server.count_present(keys) == 10
        assert sum(state.present for state in states.values()) == 10


def test_reports_of_a_cluster_that_is_down(own_cluster):
    """Its client was connected before, and finds out in several ways."""
    publisher = Publisher("default", Recorder())
    RLock("stock:42").acquire()
    (hold,) = HOLDS.snapshot()
    publisher.add(hold)
    publisher.publish(hold.since + 1)
    assert [info.name for info in iter_locks()] == ["stock:42"]
    HOLDS.clear()
    for node in own_cluster.servers:
        node.kill()
    for number in range(1, 4):
        with pytest.raises(LockUnavailableError):
            list(iter_locks())
        now = hold.since + 60 * number
        assert publisher.publish(now) > now, "it is tried again"


@pytest.mark.lengthy
async def test_renewed_where_another_node_took_over(binding, own_cluster):
    """No one else asks that node: neither a waiter nor another acquire learns of its death for the watchdog."""
    for node in own_cluster.servers:
        command(node, "CONFIG SET", "cluster-require-full-coverage", "no")
    lock = RLock("stock:42")
    await binding.acquire(lock)
    (hold,) = HOLDS.snapshot()
    move = Move(own_cluster, own_cluster.redis.keyslot(KEY))
    move.source.kill()
    move.take_over()
    command(move.target, "HSET", KEY, hold.owner_id, 1)  # as a replica of its own would have it
    command(move.target, "PEXPIRE", KEY, 60000)
    until_renewed(hold)
    assert hold.lost is None
    await binding.release(lock)


# --- one client for each process --------------------------------------------------------------------------------------


def two_at_once(monkeypatch, call, method):
    """What two threads get of a call that both make before either has ended a method of ClusterClient."""
    together, run = threading.Barrier(2, timeout=UNTIL_SERVED), getattr(ClusterClient, method)

    def meet(*args):
        together.wait()
        return run(*args)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(ClusterClient, method, meet)
        return [each.result(UNTIL_SERVED) for each in [threads.submit(call), threads.submit(call)]]


def known_client():
    known = cluster_client("default")
    assert known is not None
    return known


def test_first_two_threads_get_one_client(topology, monkeypatch):
    url = f"{topology.location}?client_name={uuid4()}"  # which nobody has asked for
    first, second = two_at_once(monkeypatch, partial(known_client()._factory.connect, url), "__init__")
    assert first is second


def test_first_two_threads_share_the_connections(topology, monkeypatch):
    client = ClusterClient(known_client()._factory, known_client()._params)
    first, second = two_at_once(monkeypatch, client._connected, "_connect")
    assert first is second
    assert first is client._connected()


def test_the_map_is_not_asked_for_over_a_connection_that_was_refused(topology):
    """It may have lost its login."""
    node = slot_map("default").owner(0)
    kept = server("default", node)
    link = kept.open()
    kept.give_back(link)
    link.sock.send(pack_command("AUTH", "locks", "wrong"))  # whose error comes first
    with pytest.raises(AuthenticationError):
        _ask_slots("default", node)
    assert link.sock.fileno() == -1
    assert _ask_slots("default", node)


@pytest.mark.parametrize("wait", [{"blocking": False}, {"wait_time": 600}, {}], ids=["once", "long", "for ever"])
async def test_a_node_behind_the_entry_of_one_server_refuses_at_once(binding, kind, topology, settings, wait):
    """Trying again would not help, nor would another server: the entry names no cluster."""
    login = {name: topology.options[name] for name in ("USERNAME", "PASSWORD")}
    settings.CACHES = {"default": {**topology.cache, "OPTIONS": login}}
    node = topology.servers[0]
    elsewhere = next(name for name in map(str, range(100)) if owner_of(topology, slot_of(f"rlock:{name}")) is not node)
    with pytest.raises(LockUnavailableError, match=r"another node of the cluster .*django_rlock\.cluster\.Connection"):
        await binding.acquire(kind(elsewhere), **wait)
