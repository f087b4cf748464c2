"""Clusters whose nodes name themselves by no address, by one behind a NAT, or by one of IPv6."""

import ast
import math
import re
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured

from django_rlock import RLock
from django_rlock._transport.servers import slot_map
from django_rlock.checks import check_settings
from django_rlock.locks import forced
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import until_renewed
from tests.bindings import visit
from tests.topologies.documented import entry
from tests.topologies.servers import Naming, Topology, cluster, command
from tests.topologies.slots import errors, moving, owner_of

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"
NAMES = [f"stock:{number}" for number in range(12)]
"""On all three nodes."""
NAMED_BY = "--cluster-preferred-endpoint-type"
NAMINGS = {
    "no host": Naming([NAMED_BY, "unknown-endpoint"]),
    "question mark": Naming([NAMED_BY, "hostname"]),  # and they have none
    "ipv6": Naming(["--bind", "127.0.0.1", "::1", "--cluster-announce-ip", "::1"]),
}


@pytest.fixture(scope="module")
def inside():
    """Where nodes behind a NAT say that they are; no one replies there."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        for each in listening:
            each.setblocking(False)
        yield listening


@pytest.fixture(scope="module", params=[*NAMINGS, "nat"])
def named(request, inside):
    """A cluster for each way in which nodes name themselves, and the settings for it."""
    if request.param == "ipv6" and not has_ipv6():
        pytest.skip("This machine has no address ::1.")
    ports = [each.getsockname()[1] for each in inside]
    behind_nat = Naming([NAMED_BY, "hostname", "--cluster-announce-hostname", "127.0.0.1"], ports)
    naming = NAMINGS.get(request.param, behind_nat)
    with cluster(naming) as topology:
        written = entry("cluster-nat" if request.param == "nat" else "cluster")["OPTIONS"]
        options = {**written, "STARTUP_NODES": [], "NODE_ADDRESSES": naming.reached(topology.servers)}
        host = "[::1]" if request.param == "ipv6" else "127.0.0.1"
        yield replace(topology, location=f"redis://{host}:{topology.servers[0].port}", options=options)


def was_connected_to(listening):
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture
def topology(named, inside, use):
    use(named)
    yield named
    named.redis.flushall()
    assert not [each for each in inside if was_connected_to(each)]


async def test_each_lock_is_where_its_slot_is(binding, kind, topology):
    for name in NAMES:
        async with binding.inside(kind(name)):
            key = f"rlock:{name}"
            assert command(owner_of(topology, topology.redis.keyslot(key)), "EXISTS", key)
    assert len({owner_of(topology, topology.redis.keyslot(f"rlock:{name}")).port for name in NAMES}) == 3


async def test_redirections_are_followed(binding, topology, monkeypatch):
    monkeypatch.setattr(forced, "LISTEN_AFTER", math.inf)  # on a busy machine that subscription is redirected as well
    lock = RLock("stock:42")
    await visit(binding, lock)  # by now the map is known
    with moving(topology, KEY) as move:
        before = errors(move.source, "ASK")
        await binding.acquire(lock)
        assert errors(move.source, "ASK") > before
        assert not move.keys(), "it was taken at the target"
    before = errors(move.source, "MOVED")
    await binding.release(lock)
    await visit(binding, lock)
    assert errors(move.source, "MOVED") == before + 1, "it learns from the first"
    assert not command(move.target, "EXISTS", KEY)


async def test_waiter_is_woken_where_its_slot_went(binding, kind, topology):
    lock = kind("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit, binding, kind("stock:42"))
    await binding.until(WAITS.snapshot)
    with moving(topology, KEY) as move:
        pass
    with move.target.client() as client:
        await binding.until(lambda: client.execute_command("PUBSUB SHARDCHANNELS", f"*{{{KEY}}}*"))
    await binding.release(lock)
    await binding.result(waiting)


async def test_renewed_where_its_slot_went(binding, topology):
    async with binding.inside(RLock("stock:42")):
        with moving(topology, KEY):
            pass
        until_renewed(*HOLDS.snapshot())


def test_the_cache_itself(topology):
    values = {f"key:{number}": number for number in range(12)}
    cache.set_many(values)
    key = cache.make_key("key:5")
    with moving(topology, key):
        cache.delete("key:5")
        cache.set("key:5", 5)
    assert cache.get("key:5") == 5
    assert cache.get_many(values) == values
    cache.clear()
    assert cache.get_many(values) == {}


# --- what the settings say --------------------------------------------------------------------------------------------

ASKED = "192.0.2.1", 7000


def configured(**options: object) -> Topology:
    return Topology("cluster", "redis://127.0.0.1:1", None, [], entry("cluster")["OPTIONS"] | options)


@pytest.mark.parametrize(
    ("addresses", "host", "port", "reached"),
    [
        ({}, "10.0.0.1", 6379, ("10.0.0.1", 6379)),
        ({}, b"10.0.0.1", 6379, ("10.0.0.1", 6379)),
        ({}, "?", 6379, ("192.0.2.1", 6379)),
        ({}, b"?", 6379, ("192.0.2.1", 6379)),
        ({}, "", 6379, ("192.0.2.1", 6379)),
        ({}, None, 6379, ("192.0.2.1", 6379)),
        ({"10.0.0.1:6379": "203.0.113.5:7001"}, "10.0.0.1", 6379, ("203.0.113.5", 7001)),
        ({"10.0.0.1:6379": "203.0.113.5:7001"}, "10.0.0.1", 6380, ("10.0.0.1", 6380)),
        ({("10.0.0.1", 6379): ("203.0.113.5", 7001)}, b"10.0.0.1", 6379, ("203.0.113.5", 7001)),
        ({("10.0.0.1", 6379): ["2001:db8::5", 7001]}, "10.0.0.1", 6379, ("2001:db8::5", 7001)),
        ({"[2001:DB8:0::1]:6379": "[2001:db8::5]:7001"}, "2001:db8::1", 6379, ("2001:db8::5", 7001)),
        ({("2001:db8::1", 6379): "localhost:7001"}, "2001:db8:0:0::1", 6379, ("localhost", 7001)),
        ({"Node1.internal:6379": "203.0.113.5:7001"}, "node1.Internal", 6379, ("203.0.113.5", 7001)),
        ({"192.0.2.1:6379": "203.0.113.5:7001"}, "?", 6379, ("203.0.113.5", 7001)),
    ],
)
def test_where_a_node_is_reached(use, addresses, host, port, reached):
    use(configured(NODE_ADDRESSES=addresses))
    assert slot_map("default").redirected(host, port, ASKED) == reached


@pytest.mark.parametrize(
    "addresses",
    [
        ["10.0.0.1:6379"],
        "10.0.0.1:6379",
        None,
        {"10.0.0.1": "203.0.113.5:7001"},
        {"10.0.0.1:6379": "203.0.113.5"},
        {"10.0.0.1:6379": None},
        {"10.0.0.1:6379": "203.0.113.5:0"},
        {"10.0.0.1:6379": "203.0.113.5:65536"},
        {"10.0.0.1:6379": ("203.0.113.5", "7001", "x")},
        {6379: "203.0.113.5:7001"},
        {"2001:db8::1:6379": "203.0.113.5:7001"},
        {"?:6379": "203.0.113.5:7001"},
        {"10.0.0.1:6379": "redis://:hidden@203.0.113.5:7001"},
        {"10.0.0.1:6379": "locks:hid/den@203.0.113.5:7001"},
        {"10.0.0.1:6379": "redis://203.0.113.5:7001?password=hidden"},
        {"10.0.0.1:6379": {"host": "203.0.113.5", "password": "hidden"}},
    ],
    ids=repr,
)
async def test_other_addresses_are_refused_with_an_example(binding, use, addresses):
    use(configured(NODE_ADDRESSES=addresses))
    with pytest.raises(ImproperlyConfigured, match="NODE_ADDRESSES") as refused:
        await binding.acquire(RLock("stock:42"))
    text = str(refused.value)
    assert [problem.msg for problem in check_settings()] == [text]
    assert "hid" not in text
    example = re.search(r"\{.*?\}", text)
    assert example
    use(configured(NODE_ADDRESSES=ast.literal_eval(example[0])))
    assert check_settings() == []


@pytest.mark.parametrize(
    "nodes",
    [
        "10.0.0.2:6379",
        [6379],
        [("10.0.0.2",)],
        ["10.0.0.2"],
        ["redis://x:hidden@h:1"],
        ["redis://h:1?password=hidden"],
        "redis://h:1?password=hidden",
    ],
)
def test_other_startup_nodes_are_refused_with_an_example(use, nodes):
    use(configured(STARTUP_NODES=nodes))
    (problem,) = check_settings()
    assert "STARTUP_NODES" in problem.msg
    assert "hidden" not in problem.msg
    example = re.search(r"a list like (\[.*?\])", problem.msg)
    assert example
    use(configured(STARTUP_NODES=ast.literal_eval(example[1])))
    assert check_settings() == []
