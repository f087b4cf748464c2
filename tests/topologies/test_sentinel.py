"""A primary that dies, or is demoted, in the middle of holding, waiting and giving back."""

import re
import socket
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import LockLostError, LockUnavailableError, RLock
from django_rlock.checks import check_settings
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import renew_now, until_renewed
from tests.eventually import PATIENCE
from tests.topologies.servers import Topology, begin_failover, command, follow, primary_port, watched

KEY = "rlock:stock:42"


@pytest.fixture
def topology(use):
    with watched() as chosen:
        use(chosen)
        yield chosen


async def fail_over(binding, topology: Topology) -> None:
    """Make the sentinel promote the replica, whether the primary is dead or not."""
    replica = topology.servers[1]
    await binding.until(lambda: begin_failover(topology))
    await binding.until(lambda: primary_port(topology) == replica.port)
    await binding.until(lambda: command(replica, "ROLE")[0] == "master")


async def visit(binding, lock, inside):
    async with binding.inside(lock):
        inside.append(lock)


async def test_a_replicated_lock_survives_a_failover(binding, kind, topology):
    """The holder goes on, and is renewed; its waiter goes on waiting, and is woken by the new primary."""
    primary, replica = topology.servers
    lock = kind("stock:42")
    await binding.acquire(lock)
    await binding.until(lambda: command(replica, "EXISTS", KEY))
    inside: list[object] = []
    waiting = binding.start(visit, binding, kind("stock:42"), inside)
    await binding.until(WAITS.snapshot)
    primary.kill()
    await fail_over(binding, topology)
    until_renewed(*HOLDS.snapshot())
    await binding.until(lambda: command(replica, "PUBSUB CHANNELS", "*lock*"))
    assert inside == []
    assert not lock.lost
    await binding.release(lock)
    await binding.result(waiting)
    assert not command(replica, "EXISTS", KEY)


@pytest.mark.lengthy
async def test_holder_learns_that_it_was_not_replicated(binding, topology):
    primary, replica = topology.servers
    lock = RLock("stock:42")
    command(replica, "REPLICAOF", "127.0.0.1", 1)  # it has fallen behind
    await binding.acquire(lock)
    primary.kill()
    await fail_over(binding, topology)
    renew_now()
    await binding.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        await binding.release(lock)
    async with binding.inside(lock):
        assert command(replica, "EXISTS", KEY)


@pytest.mark.lengthy
async def test_acquire_and_release_in_the_middle_of_it(binding, topology, use):
    """A release reports whether it worked; if not, it is done in the background."""
    use(topology, REFUSED_WAIT_TIME=None)
    primary, replica = topology.servers
    lock = RLock("stock:42")
    await binding.acquire(lock, lease_time=60)
    await binding.until(lambda: command(replica, "EXISTS", KEY))
    primary.kill()
    with pytest.raises(LockUnavailableError):
        await binding.acquire(RLock("stock:43"), blocking=False)
    with pytest.raises(LockUnavailableError, match="it frees itself"):
        await binding.release(lock)
    failing_over = binding.start(fail_over, binding, topology)
    assert await binding.acquire(RLock("stock:43"), wait_time=20)
    assert command(replica, "EXISTS", "rlock:stock:43")
    await binding.release(RLock("stock:43"))
    await binding.until(lambda: not command(replica, "EXISTS", KEY))
    await binding.result(failing_over)


@pytest.mark.parametrize("acks", [0, 1])
async def test_demoted_primary_is_left(binding, topology, use, acks):
    """Its connections stay open, so only its refusal to write shows it."""
    use(topology, REPLICA_ACKS=acks)
    primary, replica = topology.servers
    async with binding.inside(RLock("warm")):
        pass
    await fail_over(binding, topology)
    follow(primary, replica)  # as the sentinel will in some seconds
    async with binding.inside(RLock("stock:42")):
        assert command(replica, "EXISTS", KEY)


async def test_sentinel_that_is_down_holds_nobody_up(binding, started, use):
    """redis-py would try it ten times, for minutes, before the next one."""
    topology = started("sentinel")
    sentinels = [("127.0.0.1", 1), *topology.options["SENTINELS"]]
    use(replace(topology, options={**topology.options, "SENTINELS": sentinels}))
    began = time.monotonic()
    async with binding.inside(RLock("stock:42")):
        assert time.monotonic() - began < PATIENCE


async def test_sentinels_that_are_silent_take_no_time_from_the_others(binding, started, use):
    """Each of them is waited for half a second: together longer than a call without a wait waits for a reply."""
    topology = started("sentinel")
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname() for _ in range(3)]
        use(replace(topology, options={**topology.options, "SENTINELS": [*silent, *topology.options["SENTINELS"]]}))
        assert await binding.acquire(RLock("stock:42"), wait_time=0)
        await binding.release(RLock("stock:42"))


async def test_sentinels_that_are_all_silent_are_asked_once_without_a_wait(binding, started, use):
    topology = started("sentinel")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        use(replace(topology, options={**topology.options, "SENTINELS": [silent.getsockname()]}))
        with pytest.raises(LockUnavailableError, match="No sentinel names the primary"):
            await binding.acquire(RLock("stock:42"), wait_time=0)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("login", ["", ":hidden@"])
async def test_scheme_that_asks_no_sentinel_is_refused(binding, started, use, login):
    """redis-py would make connections that know of no sentinel; the text has the entry that works."""
    topology = started("sentinel")
    use(replace(topology, location=f"rediss://{login}{topology.service}/0"))
    with pytest.raises(ImproperlyConfigured) as refused:
        await binding.acquire(RLock("stock:42"))
    text = str(refused.value)
    assert re.search(rf"\bredis://(\*+@)?{topology.service}/0\b", text)
    assert re.search(r"""["']ssl["']: True""", text)
    assert "hidden" not in text
    assert [problem.msg for problem in check_settings()] == [text]
