"""Where a holder hangs, and what happened to its lock, behind sentinels, in a cluster, and on nodes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pytest_django import Settings

from django_rlock import rlock
from django_rlock._monitoring import reporter
from django_rlock.console.inspection import holder_stack
from django_rlock.console.timeline import read_timeline
from example_project.embedded import EmbeddedServer
from tests.conftest import OwnServer
from tests.console.past import Past
from tests.console.reporting import held
from tests.eventually import PATIENCE, eventually
from tests.topologies.servers import Topology


def hang_inside(name: str, held: threading.Event, done: threading.Event) -> None:
    with rlock(name):
        held.set()
        done.wait()


@contextmanager
def hanging(name: str) -> Iterator[None]:
    is_held, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=hang_inside, args=(name, is_held, done))
    thread.start()
    try:
        assert is_held.wait(PATIENCE)
        yield
    finally:
        done.set()
        thread.join()


def asked(name: str) -> list[str] | None:
    lock = held(name)
    return holder_stack(lock, lock.holder)


PLACES = pytest.mark.parametrize("topology", ["sentinel", "cluster"], indirect=True)


@pytest.fixture
def nodes(own_server: OwnServer, settings: Settings) -> list[EmbeddedServer]:
    """Those of the alias "default", which is a RedLock's."""
    names = [f"node{number}" for number in range(3)]
    servers = [own_server(name) for name in names]
    settings.RLOCK = {"default": {"NODES": names, "QUARANTINE": 0}}
    return servers


@PLACES
def test_a_holder_tells_where_it_hangs(topology: Topology) -> None:
    check_stack()


def test_the_holder_of_a_redlock_does_so_while_a_node_is_down(nodes: list[EmbeddedServer]) -> None:
    nodes[0].kill()
    check_stack()


def check_stack() -> None:
    with hanging("stock:1"):
        eventually(lambda: reporter._reporter.value.stacks.channels)  # it listens, and has reported its hold
        lines = eventually(lambda: asked("stock:1"))
    assert any(line.endswith(" in hang_inside") for line in lines)


@PLACES
def test_a_lock_has_a_timeline(topology: Topology, past: Past) -> None:
    for name in ("stock:1", "stock:2"):
        with rlock(name):
            pass
    past.written()
    for name in ("stock:1", "stock:2"):
        assert [hold.name for hold in read_timeline("default", name, None).holds] == [name]
