"""Channels that a server refuses, to this Redis user or to all: their waiters look by themselves, and others hear."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from django_rlock import FairLock, RLock
from django_rlock._transport import subscriber
from django_rlock.locks.holds import WAITS
from example_project.embedded import EmbeddedServer
from tests.bindings import visit
from tests.eventually import eventually
from tests.topologies.documented import entry
from tests.topologies.servers import command, is_ready
from tests.topologies.ways import Plain


@pytest.fixture(params=["acl", "cluster"])
def topology(request, started, use):
    chosen = started(request.param)
    use(chosen)
    _allow(chosen, "&rlock_wake:*")
    yield chosen
    _allow(chosen, "&rlock_wake:*", "&redisson_*")
    for node in chosen.servers:
        command(node, "ACL SETUSER", "locks", "+ping")
    chosen.redis.flushall()


def _allow(topology, *channels):
    for node in topology.servers:
        command(node, "ACL SETUSER", "locks", "resetchannels", *channels)


def _one_server(stack):
    server = stack.enter_context(EmbeddedServer(port=0, args=("--rename-command", "SUBSCRIBE", "")))
    return {"BACKEND": entry("single")["BACKEND"], "LOCATION": server.url}


def _one_node(stack):
    node = Plain(stack).start_node("--rename-command", "SSUBSCRIBE", "")
    command(node, "CLUSTER ADDSLOTSRANGE", 0, 16383)
    eventually(lambda: is_ready(node))
    cache = entry("cluster")
    return {**cache, "LOCATION": node.url, "OPTIONS": {**cache["OPTIONS"], "STARTUP_NODES": []}}


async def test_other_channels_stay_subscribed(binding, topology, caplog):
    caplog.set_level("INFO", "django_rlock.listening")
    locks = [FairLock("stock:42"), RLock("stock:43", lease_time=2)]
    for lock in locks:
        await binding.acquire(lock)
    waiting = [
        binding.start(visit, binding, kind(lock.name)) for kind, lock in zip([FairLock, RLock], locks, strict=True)
    ]
    await binding.until(lambda: sum(wait.expected for wait in WAITS.snapshot()) == 2)
    assert "Listening connection lost" not in caplog.text
    assert "refuses to subscribe to 'redisson_lock__channel:{rlock:stock:43}'" in caplog.text
    for lock in locks:
        await binding.release(lock)
    await binding.results(waiting)
    assert "Listening connection lost" not in caplog.text


@pytest.mark.parametrize("start", [_one_server, _one_node], ids=["single", "cluster"])
async def test_a_server_without_the_command_is_asked_over_one_connection(binding, settings, caplog, start):
    caplog.set_level("INFO", "django_rlock.listening")
    with ExitStack() as stack:
        settings.CACHES = {"default": start(stack)}
        lock = RLock("stock:42")
        await binding.acquire(lock)
        waiting = binding.start(visit, binding, RLock("stock:42"))
        await binding.until(lambda: sum(wait.expected for wait in WAITS.snapshot()) == 1)
        assert "refuses to subscribe to 'redisson_lock__channel:{rlock:stock:42}'" in caplog.text
        await binding.release(lock)
        await binding.result(waiting)
        assert "Listening connection lost" not in caplog.text


def _refused_pings(topology):
    found = 0
    for node in topology.servers:
        with node.client() as client:
            found += client.info("commandstats").get("cmdstat_ping", {}).get("rejected_calls", 0)
    return found


async def test_a_ping_that_is_refused_is_a_sign_of_life(binding, topology, monkeypatch, caplog):
    """The rights lack it, as they did in earlier releases."""
    for node in topology.servers:
        command(node, "ACL SETUSER", "locks", "-ping")
    caplog.set_level("INFO", "django_rlock.listening")
    monkeypatch.setattr(subscriber, "PING_AFTER", 0.02)
    lock = FairLock("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit, binding, FairLock("stock:42"))
    before = _refused_pings(topology)
    await binding.until(lambda: _refused_pings(topology) >= before + 3)
    await binding.release(lock)
    await binding.result(waiting)
    assert "Listening connection lost" not in caplog.text
