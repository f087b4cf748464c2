"""Connections of settings that are no longer there, as after each test that overrides some."""

import gc

import pytest

from django_rlock import RLock, rlock
from django_rlock._transport.servers import get_client
from tests.background import settle
from tests.topologies.servers import Topology, command


def connected(topology: Topology) -> int:
    """How many clients all its servers have, besides the sentinel."""
    servers = [*topology.servers, *([topology.sentinel] if topology.sentinel else [])]
    clients = [line for server in servers for line in command(server, "CLIENT LIST").splitlines()]
    return sum("name=sentinel-" not in line for line in clients)


@pytest.fixture
def uncollected():
    """Objects in cycles stay."""
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


@pytest.mark.parametrize("topology", ["cluster"], indirect=True)
def test_the_client_of_a_cluster_is_closed(topology, use):
    before = connected(topology)
    client = get_client("default")
    client.exists("rlock:stock:42")
    assert connected(topology) > before
    use(topology)
    assert connected(topology) == before
    assert get_client("default") is not client
