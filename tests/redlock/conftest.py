"""Five independent servers, which a test may pause and restart, and the alias "quorum" over them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from pytest_django import Settings

from django_rlock._transport.identity import current_owner
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.locks.redlock import RedLock
from example_project.embedded import EmbeddedServer
from tests.bindings import BlockingBinding, binding, nothing_left, pytest_pyfunc_call  # noqa: F401
from tests.proxy import Proxy, load_scripts

NODE_TIMEOUT = 1.0
"""Seconds: a machine that stalls for less costs no vote."""


@pytest.fixture(scope="session")
def _five_servers() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer()) for _ in range(5)]


@pytest.fixture
def nodes(_five_servers: list[EmbeddedServer], settings: Settings) -> list[EmbeddedServer]:
    """Five servers, empty, behind the alias "quorum"; half of them named by URL."""
    for server in _five_servers:
        with server.client() as client:
            client.flushall()
    backend = settings.CACHES["default"]
    caches = {f"locks{number}": {**backend, "LOCATION": server.url} for number, server in enumerate(_five_servers[:3])}
    settings.CACHES = {**settings.CACHES, **caches}
    urls = [server.url for server in _five_servers[3:]]
    settings.RLOCK = {"quorum": {"NODES": [*caches, *urls], "QUARANTINE": 0, "NODE_TIMEOUT": NODE_TIMEOUT}}
    return _five_servers


@pytest.fixture
def hasty_nodes(nodes: list[EmbeddedServer], settings: Settings) -> None:
    """Short waits for nodes, in tests in which a quorum does not reply anyway."""
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODE_TIMEOUT": 0.15}}


@pytest.fixture
def patient(nodes: list[EmbeddedServer], settings: Settings) -> None:
    """Long waits for nodes, in tests in which each of them counts: a stalled machine makes none late."""
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODE_TIMEOUT": 4.0, "WATCHDOG_TIMEOUT": 100}}


@pytest.fixture
def proxies(
    nodes: list[EmbeddedServer], settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Proxy]]:
    """Before two of three nodes."""
    with ExitStack() as stack:
        for server in nodes[:3]:
            load_scripts(server)
        found = [
            stack.enter_context(Proxy(server.folder / "server.sock", tmp_path_factory.mktemp("p")))
            for server in nodes[:2]
        ]
        urls = [*(each.url for each in found), nodes[2].url]
        settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODES": urls}}
        yield found


async def acquire_and_give_back(by: BlockingBinding, lock: RedLock) -> None:
    """Take a lock and release it, so that the nodes are connected."""
    assert await by.acquire(lock)
    await by.release(lock)


@contextmanager
def paused(servers: Sequence[EmbeddedServer]) -> Iterator[None]:
    """While these servers do not reply."""
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()


def holders(nodes: list[EmbeddedServer], name: str = "x") -> list[dict[str, str]]:
    """What each node has under a lock's key."""
    found = []
    for server in nodes:
        with server.client() as client:
            found.append(client.hgetall(f"rlock:{name}"))
    return found


def hold_of(lock: RedLock) -> Hold:
    """The running thread's or task's."""
    hold = HOLDS.get(lock, current_owner())
    assert hold is not None
    return hold


def owner_of(lock: RedLock) -> str:
    """The owner id under which the running thread or task has it."""
    return hold_of(lock).owner_id
