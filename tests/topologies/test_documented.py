"""The pages are exact: the settings, which the other tests here run, and the least rights."""

import ast
import re
import shutil
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest

import django_rlock
from django_rlock import FairLock, RLock
from django_rlock._monitoring import reporter
from django_rlock._redis import scripts
from django_rlock._transport import listener, subscriber
from django_rlock._transport.listener import CONFIRM_WITHIN
from django_rlock.checks import check_settings
from django_rlock.locks import forced
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.settings import get_settings
from example_project.embedded import EmbeddedServer, find_binary
from tests.background import until_heard, until_renewed
from tests.bindings import visit
from tests.topologies.documented import entry, least_rights
from tests.topologies.servers import Topology, log_in

SENT = {"eval", "evalsha", "subscribe", "unsubscribe", "publish", "ping"}
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


OPTIONAL = {"scan", "info", "wait", "select"}
"""The page grants them for features that are not used by default."""
WORDS = {"READONLY", "TYPE"}
"""The code of an error, and an option of SCAN."""


def test_every_command_in_the_package_is_granted(server):
    """However rarely it is sent: the names of all commands that stand in its code."""
    with server.client() as client:
        commands = {name.upper() for name in client.execute_command("COMMAND LIST")}
    sent = {word for module in Path(django_rlock.__file__).parent.rglob("*.py") for word in words_in(module)}
    rights = least_rights("single", "cluster")
    granted = {right[1:].partition("|")[0] for right in rights if right.startswith("+")}
    assert {word.lower() for word in (sent & commands) - WORDS} <= granted | OPTIONAL


def words_in(module: Path) -> Iterator[str]:
    """The texts in a module, and the words of commands that are packed there."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Constant(value=bytes(packed)):
                yield from (word.decode() for word in re.findall(rb"\r\n([A-Z]+)\r\n", packed))


def programs() -> Iterator[str]:
    """The server programs of this machine."""
    yield find_binary()
    yield from filter(None, map(shutil.which, ("redis-server", "valkey-server", "keydb-server")))


@pytest.mark.lengthy
@pytest.mark.parametrize("program", list(dict.fromkeys(programs())))
async def test_timers_try_nothing_else(binding, use, monkeypatch, program):
    """A process that holds and waits for long: signs of life, channels that nobody needs, heartbeats, reports."""
    monkeypatch.setattr(subscriber, "PING_AFTER", 0.02)
    monkeypatch.setattr(subscriber, "_PRUNE_EVERY", 0.02)
    monkeypatch.setattr(listener, "KEEP_CHANNEL", 0.0)
    monkeypatch.setattr(forced, "LISTEN_AFTER", 0.0)
    monkeypatch.setattr(reporter, "MIN_AGE", 0.0)
    monkeypatch.setattr(reporter, "HEARTBEAT", 0.02)
    with EmbeddedServer(port=0, binary=program) as server, server.client() as client:
        options = log_in(server, least_rights("single"))
        use(Topology("acl", server.url, client, [server], options), WAITER_ALIVE_TIME=1, CLAIM_TIME=0.9)

        def calls(name: str) -> int:
            return client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0)

        async with binding.inside(FairLock("stock:43")):  # for which the process goes on listening
            async with binding.inside(FairLock("stock:42")):
                waiting = binding.start(visit, binding, FairLock("stock:42"))
                await binding.until(WAITS.snapshot)
                until_renewed(HOLDS.snapshot()[0])
                until_heard()
            await binding.result(waiting)
            for name in ("ping", "unsubscribe", "hset", "unlink"):
                await binding.until(partial(calls, name))
        assert {line["object"] for line in client.acl_log()} <= TRIED


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
