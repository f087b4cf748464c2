"""How many connections a process has: one for commands, which all of its threads use, and one for notifications."""

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from django_rlock import RLock
from django_rlock._core.clock import monotonic
from django_rlock._monitoring import reporter
from django_rlock._redis.keys import report_key
from django_rlock._transport.identity import client_id
from django_rlock._transport.pool import KEEP_IDLE
from django_rlock._transport.servers import server, servers_of
from django_rlock.locks.holds import HOLDS
from tests.background import until_heard, until_renewed
from tests.eventually import eventually
from tests.topologies.servers import Topology

NODES = {"single": 1, "cluster": 3}


@pytest.fixture(params=NODES)
def topology(request: pytest.FixtureRequest, started: Callable[[str], Topology], use: Callable[..., None]) -> Topology:
    chosen = started(request.param)
    use(chosen)
    return chosen


def clients(topology: Topology) -> set[tuple[int | None, str]]:
    """The open connections, by the node's port and their own numbers."""
    found: set[tuple[int | None, str]] = set()
    for node in topology.servers:
        with node.client() as client:
            found |= {(node.port, each["id"]) for each in client.client_list() if each["id"] != str(client.client_id())}
    return found


@pytest.mark.lengthy
async def test_two_for_each_server_of_a_process_that_holds_locks(binding, topology, monkeypatch):
    """They are renewed, reported, and listened for; connections of rare need are closed after a while."""
    monkeypatch.setattr(reporter, "MIN_AGE", 0.0)
    report = report_key(client_id())
    topology.redis.exists(report)  # over a connection of the test
    before = clients(topology)
    async with AsyncExitStack() as stack:
        for number in range(12):  # on all nodes
            await stack.enter_async_context(binding.inside(RLock(f"stock:{number}")))
        until_heard()
        until_renewed(HOLDS.snapshot()[0])
        eventually(lambda: topology.redis.exists(report))

        def is_sparing() -> bool:
            for each in servers_of("default"):
                each.prune(monotonic() + 2 * KEEP_IDLE)
            return len(clients(topology) - before) == 2 * NODES[topology.name]

        eventually(is_sparing)


def test_renewal_does_not_wait_for_callers_that_use_all_connections(started, use):
    use(started("single"), MAX_CONNECTIONS=1)
    with RLock("stock:42"):
        used = server("default").take(0)
        until_renewed(*HOLDS.snapshot())
        assert server("default").size == 1
        server("default").give_back(used)
        until_renewed(*HOLDS.snapshot())
        assert server("default").take(0) is used, "the background has given it back"
        server("default").give_back(used)
