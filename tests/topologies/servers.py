"""Redis as projects run it: each topology as real servers of our own, with the CACHES entry that reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import redis
from redis.cluster import ClusterNode, RedisCluster

from example_project.embedded import EmbeddedServer
from tests.eventually import eventually
from tests.topologies.documented import entry, least_rights
from tests.topologies.ways import PASSWORD, Encrypted, Plain, TLSServer, port_of

_SLOTS = [(0, 5460), (5461, 10922), (10923, 16383)]
_SYNC_AT_ONCE = ("--repl-diskless-sync-delay", "0")


@dataclass
class Topology:
    """Running servers, how a cache reaches them, and ``redis``: a client of our own that returns text."""

    name: str
    location: str | list[str]
    redis: Any
    servers: list[EmbeddedServer]
    options: dict[str, Any] = field(default_factory=dict)
    sentinel: EmbeddedServer | None = None
    service: str = ""
    backend: str = "django_redis.cache.RedisCache"

    @property
    def cache(self) -> dict[str, Any]:
        """The entry of CACHES."""
        return {"BACKEND": self.backend, "LOCATION": self.location, "OPTIONS": self.options}


Launch = Callable[[], AbstractContextManager[Topology]]


@dataclass
class Naming:
    """By which arguments each node of a cluster names itself to clients, and by which port if not its own."""

    args: Sequence[str] = ()
    ports: Sequence[int] = ()

    def of(self, number: int) -> list[str]:
        port = ["--cluster-announce-port", str(self.ports[number])] if self.ports else []
        return [*self.args, *port]

    def reached(self, nodes: Sequence[EmbeddedServer]) -> dict[tuple[str, int], tuple[str, int]]:
        """Where the ports are reached that are not the nodes' own."""
        own = [("127.0.0.1", port_of(node)) for node in nodes]
        return {("127.0.0.1", port): address for port, address in zip(self.ports, own, strict=False)}


@contextmanager
def single() -> Iterator[Topology]:
    with EmbeddedServer(port=0) as server, server.client() as client:
        yield Topology("single", server.url, client, [server], entry("single")["OPTIONS"])


@contextmanager
def restricted() -> Iterator[Topology]:
    """A user who has the documented rights and no others."""
    with EmbeddedServer(port=0) as server, server.client() as client:
        yield Topology("acl", server.url, client, [server], log_in(server, least_rights("single")))


def log_in(server: EmbeddedServer, rights: Sequence[str]) -> dict[str, Any]:
    """Add a user with some rights and no others; the OPTIONS of the cache that logs in as that one."""
    command(server, "ACL SETUSER", "locks", "reset", "on", f">{PASSWORD}", *rights)
    return {"USERNAME": "locks", "PASSWORD": PASSWORD}


@contextmanager
def encrypted() -> Iterator[Topology]:
    """TLS and a password."""
    with ExitStack() as stack:
        way = Encrypted(stack)
        server = way.start()
        client = stack.enter_context(server.client())
        login = {"USERNAME": "default", "PASSWORD": PASSWORD, "CONNECTION_POOL_KWARGS": way.tls_options}
        location = f"rediss://127.0.0.1:{port_of(server)}/0"
        yield Topology("tls", location, client, [server], {**entry("tls")["OPTIONS"], **login})


@contextmanager
def djangos() -> Iterator[Topology]:
    """Over Django's own backend, as a user who has the documented rights; the second server is one to read from."""
    with EmbeddedServer(port=0) as server, EmbeddedServer(port=0) as replica, server.client() as client:
        login = {name.lower(): value for name, value in log_in(server, least_rights("single")).items()}
        location, backend = [server.url, replica.url], entry("django")["BACKEND"]
        options = {**entry("django")["OPTIONS"], **login}
        yield Topology("django", location, client, [server, replica], options, backend=backend)


@contextmanager
def djangos_encrypted() -> Iterator[Topology]:
    """The same with TLS."""
    with ExitStack() as stack:
        way = Encrypted(stack)
        server = way.start()
        client = stack.enter_context(server.client())
        login = {"username": "default", "password": PASSWORD, **way.tls_options}
        found = entry("django-tls")
        location = f"rediss://127.0.0.1:{port_of(server)}/0"
        yield Topology(
            "django-tls", location, client, [server], {**found["OPTIONS"], **login}, backend=found["BACKEND"]
        )


@contextmanager
def watched() -> Iterator[Topology]:
    """A primary, a replica, and a sentinel that fails over when a test says so."""
    with ExitStack() as stack:
        yield _watched("sentinel", stack, Plain(stack))


@contextmanager
def watched_encrypted() -> Iterator[Topology]:
    """The same with TLS, and passwords that the sentinel wants as well."""
    with ExitStack() as stack:
        way = Encrypted(stack)
        topology = _watched("sentinel-tls", stack, way)
        topology.options["PASSWORD"] = PASSWORD
        topology.options["CONNECTION_POOL_KWARGS"] |= way.tls_options
        topology.options["SENTINEL_KWARGS"] |= {**way.tls_options, "password": PASSWORD}
        yield topology


def _watched(name: str, stack: ExitStack, way: Plain) -> Topology:
    service = f"locks-{uuid4()}"  # django-redis keeps one pool for each URL, whatever the sentinels
    primary, replica = (way.start(*_SYNC_AT_ONCE) for _ in range(2))
    sentinel = way.start("--sentinel")
    follow(replica, primary)
    _watch(sentinel, primary, service)
    client = stack.enter_context(primary.client())
    options = {**entry(name)["OPTIONS"], "SENTINELS": [("127.0.0.1", port_of(sentinel))]}
    return Topology(name, f"redis://{service}/0", client, [primary, replica], options, sentinel, service)


@contextmanager
def cluster(naming: Naming | None = None) -> Iterator[Topology]:
    """Three primaries, and a user who has the documented rights and no others."""
    with ExitStack() as stack:
        yield _cluster("cluster", stack, Plain(stack), naming or Naming())


@contextmanager
def cluster_encrypted() -> Iterator[Topology]:
    """The same with TLS, and a password for all other users."""
    with ExitStack() as stack:
        way = Encrypted(stack)
        topology = _cluster("cluster-tls", stack, way, Naming())
        topology.options["CONNECTION_POOL_KWARGS"] = way.tls_options
        yield topology


def _cluster(name: str, stack: ExitStack, way: Plain, naming: Naming) -> Topology:
    user = ("--user", "locks", "on", f">{PASSWORD}", *least_rights("single", "cluster"))  # also after a restart
    nodes = [way.start_node(*user, *naming.of(number)) for number in range(len(_SLOTS))]
    for node, slots in zip(nodes, _SLOTS, strict=True):
        command(node, "CLUSTER ADDSLOTSRANGE", *slots)
    join(nodes)
    startup = [ClusterNode("127.0.0.1", port_of(node)) for node in nodes]
    elsewhere = naming.reached(nodes)
    client = RedisCluster(
        startup_nodes=startup,
        address_remap=lambda named: elsewhere.get(named, ("127.0.0.1", named[1])),
        decode_responses=True,
        **way.client_options,
    )
    stack.callback(client.close)
    options = {**entry(name)["OPTIONS"], "STARTUP_NODES": [], "USERNAME": "locks", "PASSWORD": PASSWORD}
    return Topology(name, f"{way.scheme}://127.0.0.1:{startup[0].port}", client, nodes, options)


@contextmanager
def one_address() -> Iterator[Topology]:
    """A cluster behind one address, reached by the entry of one server: each command needs keys of one slot."""
    with ExitStack() as stack:
        node = Plain(stack).start_node()
        command(node, "CLUSTER ADDSLOTSRANGE", _SLOTS[0][0], _SLOTS[-1][1])
        client = stack.enter_context(node.client())
        eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        yield Topology("one address", node.url, client, [node], entry("single")["OPTIONS"])


TOPOLOGIES: dict[str, Launch] = {
    "single": single,
    "tls": encrypted,
    "acl": restricted,
    "django": djangos,
    "sentinel": watched,
    "sentinel-tls": watched_encrypted,
    "one address": one_address,
    "cluster": cluster,
    "cluster-tls": cluster_encrypted,
}


def command(server: EmbeddedServer | None, name: str, *args: Any) -> Any:
    """Send one command to one server."""
    assert server is not None
    with server.client() as client:
        return client.execute_command(*name.split(), *args)


def begin_failover(topology: Topology) -> bool:
    """Ask the sentinel to promote a replica; returns whether it has begun to."""
    try:
        return bool(command(topology.sentinel, "SENTINEL FAILOVER", topology.service))
    except redis.ResponseError as error:
        return "INPROG" in str(error)  # else it knows too little of the replica as yet


def primary_port(topology: Topology) -> int:
    """Where the sentinel says that the primary is."""
    # Not by redis-py's own method, which fails in 6.4.
    return int(command(topology.sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", topology.service)[1])


def follow(replica: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Make a server the replica of another, and wait until it is in step."""
    command(replica, "REPLICAOF", "127.0.0.1", port_of(primary))
    with replica.client() as client:
        eventually(lambda: client.info("replication").get("master_link_status") == "up")


def _watch(sentinel: EmbeddedServer, primary: EmbeddedServer, service: str) -> None:
    # On a busy machine a healthy primary may be silent for seconds: no test leaves it to the sentinel to find a death.
    options = {"down-after-milliseconds": 60_000, "failover-timeout": 20_000}
    password = {"auth-pass": PASSWORD} if isinstance(primary, TLSServer) else {}
    with sentinel.client() as client:
        client.sentinel_monitor(service, "127.0.0.1", port_of(primary), 1)
        for option, value in {**options, **password}.items():
            client.sentinel_set(service, option, value)
        eventually(lambda: client.sentinel_slaves(service))


def join(nodes: Sequence[EmbeddedServer]) -> None:
    """Make one cluster of nodes that have their slots, and wait until all agree."""
    for epoch, node in enumerate(nodes, start=1):
        command(node, "CLUSTER SET-CONFIG-EPOCH", epoch)
    for node in nodes[1:]:
        command(nodes[0], "CLUSTER MEET", "127.0.0.1", port_of(node), _bus_port(node))
    for node in nodes:
        eventually(partial(is_ready, node))


def is_ready(node: EmbeddedServer) -> bool:
    """Whether a node serves its slots."""
    return cluster_info(node)["cluster_state"] == "ok"


def cluster_info(node: EmbeddedServer) -> dict[str, str]:
    """What a node says of its cluster."""
    with node.client() as client:
        return dict(client.execute_command("CLUSTER INFO"))


def _bus_port(node: EmbeddedServer) -> int:
    return int(node.args[node.args.index("--cluster-port") + 1])
