"""A cluster with several databases, as Valkey has from version 9 on: locks, their lists and the cache use the same."""

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command

from django_rlock import LockUnavailableError, RLock
from django_rlock.console import diagnosis
from django_rlock.inspection import iter_locks, lock_info
from django_rlock.locks.holds import HOLDS
from example_project.embedded import ServerError
from tests.topologies.servers import Naming, Topology, cluster, command

pytestmark = pytest.mark.lengthy

KEY = "rlock:stock:42"


@pytest.fixture(scope="module")
def running() -> Iterator[Topology]:
    """Three nodes with two databases."""
    try:
        with cluster(Naming(["--cluster-databases", "2"])) as started:
            for node in started.servers:
                command(node, "ACL SETUSER", "locks", "+select", "+scan", "+info", "+cluster|nodes", "~*")
            yield started
    except ServerError:
        pytest.skip("This server's clusters have one database.")


def named(topology: Topology, how: str) -> Topology:
    """With the second database."""
    if how == "pool":
        return replace(topology, options={**topology.options, "CONNECTION_POOL_KWARGS": {"db": 1}})
    return replace(topology, location=f"{topology.location}{how}")


@pytest.fixture(params=["/1", "?db=1", "pool"])
def databases(request: pytest.FixtureRequest, running: Topology, use: Any) -> Iterator[Topology]:
    use(named(running, request.param))
    yield running
    for node in running.servers:
        command(node, "FLUSHALL")


def keys_in(topology: Topology, database: int) -> list[str]:
    found = []
    for node in topology.servers:
        with node.client() as client:
            client.execute_command("SELECT", database)
            found += client.execute_command("KEYS", "*")
    return found


async def test_locks_are_in_the_named_database(binding: Any, kind: Any, databases: Topology) -> None:
    async with binding.inside(kind("stock:42")) as lock:
        assert keys_in(databases, 1) == [KEY]
        assert keys_in(databases, 0) == []
        assert await binding.call(lock, "info")


def test_lists_and_releases_find_them_there(databases: Topology) -> None:
    RLock("stock:42").acquire()
    assert lock_info("stock:42")
    assert [each.name for each in iter_locks(scan=True)] == ["stock:42"]
    call_command("rlock_release", "stock:42", "--no-input", stdout=io.StringIO())
    assert KEY not in keys_in(databases, 1)
    HOLDS.clear()


def test_the_cache_and_the_doctor(databases: Topology) -> None:
    cache.set("colour", "green")
    assert cache.get("colour") == "green"
    assert ":1:colour" in keys_in(databases, 1)
    assert [each for each in diagnosis.diagnose("default") if each.level == "error"] == []


async def test_a_cluster_without_them_is_told_apart_from_one_that_is_down(binding: Any, started: Any, use: Any) -> None:
    use(named(started("cluster"), "/1"))
    for node in started("cluster").servers:
        command(node, "ACL SETUSER", "locks", "+select")
    with pytest.raises(LockUnavailableError, match="name a database in CACHES that the server has"):
        await binding.acquire(RLock("stock:42"), wait_time=0)
    found = [each for each in diagnosis.diagnose("default") if each.level == "error"]
    assert {each.check for each in found} == {"database"}
