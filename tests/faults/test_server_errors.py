"""Error replies that end a connection: a login that is gone, a new replica; and one that does not: a missing script."""

import asyncio
from typing import Any, cast

import pytest

from django_rlock import RLock
from django_rlock._redis import scripts
from django_rlock._transport.async_pool import connections_of
from django_rlock._transport.calls import ScriptCall, Template, pack_command, run_sync
from django_rlock._transport.registry import background_driver, listener
from django_rlock._transport.servers import server
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import renew_now, until_renewed
from tests.bindings import visit
from tests.faults.test_lost_replies import ACQUIRE, KEY, RELEASE

NO_LOGIN = "NOAUTH Authentication required."
WRAPPED = "ERR Error running script (call to f_caeeee01384f6b04384c56d69c27aa65287fb306): @user_script:1: "
"""How an error inside a script of Redis 6.2 begins."""
REPLICA = "READONLY You can't write against a read only replica. script: caee, on @user_script:1."
REPLICA_62 = f"{WRAPPED}@user_script: 1: -READONLY You can't write against a read only replica."
ENDS = pytest.mark.parametrize("error", [NO_LOGIN, REPLICA, REPLICA_62], ids=["login", "replica", "replica, 6.2"])


@ENDS
async def test_a_call_goes_on_over_a_new_connection(binding, kind, proxy, redis_client, error):
    async with binding.inside(kind("warm")):
        pass
    refused = [proxy.refuse(ACQUIRE[kind.kind], error), proxy.refuse(RELEASE[kind.kind], error)]
    lock = kind("stock:42")
    assert await binding.acquire(lock, blocking=False)
    await binding.release(lock)
    assert all(rule.served.is_set() for rule in refused)
    assert not redis_client.exists(KEY)


@ENDS
def test_renewal_goes_on_over_a_new_connection(proxy, error):
    with RLock("stock:42") as lock:
        (hold,) = HOLDS.snapshot()
        until_renewed(hold)
        refused = proxy.refuse(scripts.LOCK_RENEW, error)
        until_renewed(hold)
        assert refused.served.is_set()
        lock.check()


@ENDS
async def test_confirmed_call_goes_on_over_a_new_connection(binding, proxy, settings, error):
    """Though without a replica it is not confirmed."""
    settings.RLOCK = {"default": {**settings.RLOCK["default"], "REPLICA_ACKS": 1, "REPLICA_ACK_TIMEOUT": 0.01}}
    for _ in range(2):
        refused = proxy.refuse(scripts.RLOCK_ACQUIRE, error)
        with pytest.raises(ConnectionError, match="0 of the 1 replicas"):
            await binding.acquire(RLock("stock:42"), blocking=False)
        assert refused.served.is_set()


@pytest.mark.parametrize("error", [REPLICA, REPLICA_62], ids=["replica", "replica, 6.2"])
async def test_no_connection_to_a_server_that_became_a_replica_is_kept(binding, kind, proxy, error):
    lock = kind("stock:42")
    await binding.acquire(lock)
    until_renewed(*HOLDS.snapshot())
    waiting = binding.start(visit, binding, kind("stock:42"))
    await binding.until(WAITS.snapshot)
    (subscriber,) = cast("Any", listener("default")).subscribers.values()
    await binding.until(lambda: subscriber.connection and next(iter(listener("default").channels.values())).confirmed)
    before = {subscriber.connection, *server("default", purpose="background").idle}
    before |= {shared.connection for shared in shared_links(binding)}
    proxy.refuse(ACQUIRE[kind.kind], error)
    async with binding.inside(kind("stock:43")):
        await binding.until(lambda: subscriber.connection not in before)
        assert all(link and link.sock.fileno() == -1 for link in before)
    await binding.release(lock)
    await binding.result(waiting)


async def test_a_server_that_has_lost_its_scripts_gets_them_over_the_same_connection(binding, kind, redis_client):
    """One is sent at once, after the call that the server refused: to acquire, renew and release."""
    lock = kind("stock:42")
    async with binding.inside(lock):
        until_renewed(*HOLDS.snapshot())
    redis_client.script_flush()
    redis_client.config_resetstat()
    async with binding.inside(lock):
        until_renewed(*HOLDS.snapshot())
    assert redis_client.info("stats")["total_connections_received"] == 0
    stats = redis_client.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == stats["cmdstat_evalsha"]["failed_calls"] >= 3


def test_many_calls_of_a_script_that_the_server_does_not_have_send_it_once(redis_client):
    asking = Template(scripts.LOCK_STATE)
    calls = [ScriptCall(name, asking, f"rlock:{name}", "owner") for name in "abcde"]
    assert len(run_sync(background_driver("default").run_all(calls))) == 5
    redis_client.script_flush()
    redis_client.config_resetstat()
    replies = run_sync(background_driver("default").run_all(calls))
    assert not any(isinstance(reply, Exception) for reply in replies)
    stats = redis_client.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == 1
    assert stats["cmdstat_evalsha"]["failed_calls"] == len(calls)  # none was sent alone, to be refused once more


async def test_another_commands_error_about_a_script_is_told_from_ones_own(binding, kind, redis_client):
    async with binding.inside(kind("warm")):
        pass
    link = next(iter(shared_links(binding))).connection if binding.name == "async" else server("default").idle[-1]
    link.sock.send(pack_command("EVALSHA", "0" * 40, 0))
    lock = kind("stock:42")
    assert await binding.acquire(lock, blocking=False)
    assert link.sock.fileno() == -1
    assert redis_client.hvals(KEY) == ["1"]
    await binding.release(lock)
    assert not redis_client.exists(KEY)


def shared_links(binding):
    return connections_of(asyncio.get_running_loop()).shared.values() if binding.name == "async" else []


def test_loops_leave_a_server_that_became_a_replica(proxy):
    """Their connections bring no error until they are used."""

    async def body():
        async with RLock("warm"):
            pass
        (shared,) = connections_of(asyncio.get_running_loop()).shared.values()
        async with RLock("stock:42"):
            until_renewed(*HOLDS.snapshot())
            proxy.refuse(scripts.LOCK_RENEW, REPLICA)
            renew_now()
            while shared.is_open:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.005)

    asyncio.run(body())
