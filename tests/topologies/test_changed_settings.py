"""Connections of settings that are no longer there, as after each test that overrides some."""

import gc

import pytest

from django_rlock import RLock, rlock
from tests.background import settle
from tests.topologies.servers import Topology, command


def connected(topology: Topology) -> int:
    """How many clients all its servers have, besides the sentinel."""
    servers = [*topology.servers, *([topology.sentinel] if topology.sentinel else [])]
    clients = [line for server in servers for line in command(server, "CLIENT LIST").splitlines()]
    return sum("name=sentinel-" not in line for line in clients)


@pytest.fixture
def uncollected():
    """What is in cycles stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("topology", ["single", "sentinel", "cluster"], indirect=True)
def test_they_are_closed(topology, use, uncollected):
    found = []
    for _ in range(3):
        with RLock("stock:42"), rlock("stock:43"):
            settle()
        use(topology)
        found.append(connected(topology))
    assert found == found[:1] * 3
