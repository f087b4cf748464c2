"""What docs/topologies.md says is exact: the settings, which the other tests here run, and the least rights."""

import re
from importlib.resources import files

import pytest

from django_rlock import FairLock, RLock
from django_rlock._redis import scripts
from django_rlock._transport.listener import CONFIRM_WITHIN
from django_rlock.checks import check_settings
from django_rlock.locks.holds import WAITS
from django_rlock.settings import get_settings
from tests.bindings import visit
from tests.topologies.documented import entry, least_rights
from tests.topologies.servers import Topology, log_in

SENT = {"eval", "evalsha", "subscribe", "unsubscribe", "publish"}
REPORTS = {"hscan", "llen", "lrange", "unlink", "zrevrange"}
TRIED = {"client|setinfo", "client|maint_notifications", "client|setname"}
"""Commands that redis-py sends on each connection, and can do without."""


@pytest.mark.parametrize(
    "which",
    [
        "single",
        "tls",
        "django",
        "django-tls",
        "sentinel",
        "sentinel-tls",
        "cluster",
        "cluster-tls",
        "cluster-nat",
        "nodes",
    ],
)
def test_settings_are_accepted(settings, which):
    found = entry(which)
    settings.RLOCK = {"default": found.pop("RLOCK")}
    settings.CACHES = {"default": found or settings.CACHES["default"]}
    assert check_settings() == []
    assert get_settings().alias == "default"


def test_rights_are_those_that_are_used():
    sources = {each.name: each.read_text() for each in files(scripts).iterdir() if each.name.endswith(".lua")}
    clusters = {sources.pop(name) for name in ("publish_both.lua", "publish_always.lua")}
    called, called_there = (
        set(re.findall(r"redis\.p?call\(\s*'(\w+)'", " ".join(each))) for each in (sources.values(), clusters)
    )
    assert called_there == {"publish", "spublish", "pubsub"}
    assert {"+spublish", "+pubsub|numsub", "+pubsub|shardnumsub"} <= set(least_rights("single", "cluster"))
    allowed = {right[1:].partition("|")[0] for right in least_rights("single") if right.startswith("+")}
    assert allowed == (called - {"info"}) | SENT | REPORTS  # INFO is asked by RedLock


@pytest.mark.parametrize("name", ["acl", "cluster"])
async def test_nothing_else_is_tried(binding, kind, started, use, name):
    topology = started(name)
    use(topology)
    for node in topology.servers:
        with node.client() as client:
            client.acl_log_reset()
    lock = kind("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit, binding, kind("stock:42"))
    await binding.until(WAITS.snapshot)
    assert await binding.call(lock, "info")
    await binding.release(lock)
    await binding.result(waiting)
    for node in topology.servers:
        with node.client() as client:
            assert {line["object"] for line in client.acl_log()} <= TRIED


@pytest.mark.parametrize("missing", [{"+publish"}, {"+subscribe"}, {"&rlock_wake:*", "&redisson_*"}])
async def test_locks_without_the_rights_for_messages(binding, own_server, use, missing):
    server = own_server(None, port=0)
    options = log_in(server, [right for right in least_rights("single") if right not in missing])
    topology = Topology("acl", server.url, None, [server], options)
    use(topology, WAITER_ALIVE_TIME=1, CLAIM_TIME=0.9)
    lock = FairLock("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit, binding, FairLock("stock:42"))
    await binding.until(WAITS.snapshot)
    await binding.release(lock)
    await binding.result(waiting)  # its heartbeat finds the lock
    async with binding.inside(RLock("stock:43", wait_time=CONFIRM_WITHIN)):
        pass
