"""Calls for a RedLock do not wait for nodes that refuse connections."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import Settings

from django_rlock import distributed_lock, rlock
from django_rlock._transport.quorum.nodes import node_set
from django_rlock.exceptions import QuorumNotReachedError
from example_project.embedded import EmbeddedServer
from tests.eventually import eventually
from tests.redlock.conftest import NODE_TIMEOUT

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def servers(settings: Settings) -> Iterator[list[EmbeddedServer]]:
    """Three servers of this test alone, behind the alias "quorum"."""
    with ExitStack() as stack:
        started = [stack.enter_context(EmbeddedServer(port=port)) for port in (None, 0, 0)]
        nodes = [server.url for server in started]
        settings.RLOCK = {"quorum": {"NODES": nodes, "QUARANTINE": 0, "NODE_TIMEOUT": NODE_TIMEOUT}}
        yield started


def sync_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


async def async_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@pytest.fixture(params=[["x"], ["x", "y"]], ids=len)
def names(request: pytest.FixtureRequest) -> list[str]:
    return request.param


@pytest.fixture(params=[sync_view, async_view])
def view(request: pytest.FixtureRequest, names: list[str]) -> Any:
    """A view that would wait for ten minutes."""
    return distributed_lock(*names, using="quorum", wait_time=600)(request.param)


def status(view: Any) -> int:
    call = async_to_sync(view) if view.__name__ == "async_view" else view
    answered: int = call(RequestFactory().post("/")).status_code
    return answered


@pytest.mark.lengthy
@pytest.mark.parametrize("connected", [False, True], ids=["first", "connected"])
def test_a_majority_that_refuses_connections_is_not_waited_for(
    servers: list[EmbeddedServer], view: Any, connected: bool
) -> None:
    """Neither by the first request, nor by one whose connections break, nor by those that know it."""
    if connected:
        assert status(view) == 200
    for server in servers[1:]:
        server.kill()
    assert [status(view) for _ in range(2)] == [503, 503]


def test_a_minority_that_refuses_changes_nothing(servers: list[EmbeddedServer], view: Any) -> None:
    servers[0].kill()
    assert status(view) == 200


@pytest.mark.lengthy
def test_nodes_that_are_back_are_used(servers: list[EmbeddedServer], view: Any) -> None:
    for server in servers:
        server.kill()
    assert status(view) == 503
    for server in servers:
        server.restart()
    eventually(lambda: all(map(node_set("quorum").is_up, range(3))))
    assert status(view) == 200


@pytest.mark.lengthy
def test_nodes_that_were_silent_and_then_refuse(servers: list[EmbeddedServer], settings: Settings, view: Any) -> None:
    """A node that is down is known by its last reply."""
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODE_TIMEOUT": 0.15}}
    lock, known = rlock("x", using="quorum"), node_set("quorum")
    with lock:
        pass
    for server in servers[1:]:
        server.pause()
    while known.is_up(1) or known.is_up(2):
        with pytest.raises(QuorumNotReachedError):
            lock.acquire(wait_time=0)
    for server in servers[1:]:
        server.kill()
    assert status(view) == 503
