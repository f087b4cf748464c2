"""RedLock over five real servers, some of which are paused, killed, emptied or restarted."""

import asyncio
import pickle
import select
import threading
import time
from typing import Any

import pytest

from django_rlock import LockLostError, LockNotOwnedError, LockUnavailableError
from django_rlock._transport import subscriber
from django_rlock._transport.calls import REMEMBERED, pack_command
from django_rlock._transport.quorum.nodes import node_set
from django_rlock._transport.quorum.tasks import TaskSession
from django_rlock._transport.quorum.threads import ThreadSession
from django_rlock._transport.registry import async_driver, sync_driver
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks import redlock
from django_rlock.locks.holds import WAITS
from django_rlock.locks.kinds import EXTEND, SETTLE
from django_rlock.locks.redlock import RedLock
from tests.background import renew_now, until_clean, until_heard, until_renewed
from tests.bindings import BlockingBinding, TaskBinding, elsewhere
from tests.eventually import PATIENCE
from tests.proxy import load_scripts
from tests.redlock.conftest import hold_of, holders, owner_of, paused

pytestmark = pytest.mark.lengthy

NAME = "rlock:x"


@pytest.fixture
def lock(nodes):
    return RedLock("x", using="quorum")


def driver_of(binding):
    """What the binding's calls go through; it notes since when too few nodes can be asked."""
    return sync_driver("quorum") if binding.name == "sync" else async_driver("quorum")


def take_away(servers, owner="another"):
    """Give another owner the lock on some nodes."""
    for server in servers:
        with server.client() as client:
            client.delete(NAME)
            client.hset(NAME, owner, 1)
            client.pexpire(NAME, 60_000)


def free(servers):
    for server in servers:
        with server.client() as client:
            client.delete(NAME)


async def all_have_it(binding, nodes):
    await binding.until(lambda: all(holders(nodes)))


async def none_has_it(binding, nodes):
    """A majority settles a release; slower nodes execute it later."""
    await others_have(binding, nodes, 0)


async def others_have(binding, nodes, number):
    """Another owner has it on the first few nodes, and the rest are free."""
    wanted = [["another"]] * number + [[]] * (len(nodes) - number)
    await binding.until(lambda: [list(each) for each in holders(nodes)] == wanted)


# --- as on one server -------------------------------------------------------------------------------------------------


async def test_state_on_each_node_is_redissons(binding, nodes, lock):
    async with binding.inside(lock):
        await all_have_it(binding, nodes)
        assert holders(nodes) == [{owner_of(lock): "1"}] * 5
        counters = []
        for server in nodes:
            with server.client() as client:
                counters.append(int(client.get("redisson_lock_token:{rlock:x}")))
                assert 20_000 < client.pttl(NAME) <= 30_000
        assert sum(counter >= lock.token for counter in counters) >= 3


async def test_excludes_another(binding, nodes, lock):
    async def other() -> bool:
        return await binding.acquire(lock, wait_time=0)

    async with binding.inside(lock):
        assert not await binding.result(binding.start(other))
        assert len({owner for each in holders(nodes) for owner in each}) <= 1
    assert await binding.acquire(lock, wait_time=0)
    await binding.release(lock)


async def test_waits_for_another(binding, nodes, lock):
    async def other() -> int:
        async with binding.inside(lock):
            return lock.token

    async with binding.inside(lock):
        first = lock.token
        waiting = binding.start(other)
        await binding.until(WAITS.snapshot)
    assert await binding.result(waiting) > first


async def test_without_fencing(binding, nodes):
    lock = RedLock("x", using="quorum", fencing=False)
    async with binding.inside(lock):
        with pytest.raises(RuntimeError, match="without tokens"):
            lock.token  # noqa: B018


async def test_many_at_once(binding, nodes, lock):
    """Eight owners, five times each: never two holders."""
    inside = []

    async def work() -> None:
        for _ in range(5):
            async with binding.inside(lock):
                inside.append(1)
                assert len(inside) == 1
                await binding.sleep(0.001)
                inside.pop()

    for each in [binding.start(work) for _ in range(8)]:
        await binding.result(each)


# --- nodes that fail --------------------------------------------------------------------------------------------------


async def test_works_while_two_are_down(binding, nodes, lock):
    for server in nodes[3:]:
        server.kill()
    try:
        for _ in range(3):
            async with binding.inside(lock):
                assert await binding.call(lock, "hold_count") == 1
    finally:
        for server in nodes[3:]:
            server.start()
    assert await binding.acquire(lock)
    await binding.release(lock)


@pytest.mark.lengthy
async def test_too_few_nodes(binding, nodes, lock):
    with paused(nodes[:3]), pytest.raises(QuorumNotReachedError, match="only 2 of 5 nodes voted") as failure:
        await binding.acquire(lock, wait_time=0.2)
    assert list(failure.value.errors) == ["locks0", "locks1", "locks2"]
    copy = pickle.loads(pickle.dumps(failure.value))
    assert (str(copy), list(copy.errors)) == (str(failure.value), list(failure.value.errors))
    await none_has_it(binding, nodes)


@pytest.mark.lengthy
async def test_goes_on_waiting_until_enough_nodes_are_back(binding, nodes, hasty_nodes, lock):
    async def acquire() -> bool:
        async with binding.inside(lock):
            return True

    with paused(nodes[:3]):
        waiting = binding.start(acquire)
        await binding.until(lambda: driver_of(binding)._cut_off_since)
    assert await binding.result(waiting)


async def test_a_question_outlasts_a_pause_of_most_nodes(binding, nodes, hasty_nodes, lock, monkeypatch):
    """As long as one server would have to reply; here that is longer than any stall of the machine."""
    monkeypatch.setattr(redlock.Question, "grace", PATIENCE)
    async with binding.inside(lock):
        with paused(nodes[:3]):
            asking = binding.start(binding.call, lock, "locked")
            await binding.until(lambda: driver_of(binding)._cut_off_since)
        assert await binding.result(asking) is True


@pytest.mark.thorough
async def test_a_wait_without_end_outlasts_the_quarantine(binding, nodes, lock, settings, monkeypatch):
    monkeypatch.setattr("django_rlock._transport.quorum.PATIENCE", 0.1)
    times = {"QUARANTINE": 6.0, "WATCHDOG_TIMEOUT": 6.0, "NODE_TIMEOUT": 0.3}
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], **times}}
    for server in nodes[:3]:
        server.restart()
    async with binding.inside(lock):
        assert lock.token


async def test_undo_is_kept_for_as_long_as_a_copy_may_come(binding, nodes, hasty_nodes, lock):
    """The nodes may be unreachable for longer than the lease, and get the command after that."""
    async with binding.inside(lock):  # connects to the nodes, so that they get the next command
        pass
    with paused(nodes[:3]):
        with pytest.raises(QuorumNotReachedError):
            await binding.acquire(lock, wait_time=0, lease_time=5)
        assert min(node_set("quorum").untold.values()) > time.monotonic() + REMEMBERED / 2
    await none_has_it(binding, nodes)


async def test_votes_that_arrive_while_the_process_stalls_count(binding, nodes, hasty_nodes, monkeypatch):
    """All threads stood still until NODE_TIMEOUT had passed: the nodes were in time."""
    session = ThreadSession if binding.name == "sync" else TaskSession
    listen = session.listen
    stalled: list[int] = []

    async def stall_and_listen(self, count, until) -> None:
        if not stalled:
            links = self._connections.values() if binding.name == "sync" else self._connections
            stalled.extend(link.connection.fileno() for link in links)
            for fileno in stalled:
                assert select.select([fileno], [], [], PATIENCE)[0]
            time.sleep(max(until - time.monotonic(), 0.0) + 0.01)  # noqa: ASYNC251 - nothing else runs either
        await listen(self, count, until)

    for server in nodes:
        load_scripts(server)  # one reply for each
    lock = RedLock("x", using="quorum", fencing=False)
    with monkeypatch.context() as patch:
        patch.setattr(session, "listen", stall_and_listen)
        assert await binding.acquire(lock, wait_time=0)
    assert len(stalled) == 5
    await binding.release(lock)


async def test_split_votes_end(binding, nodes, settings, lock):
    """Two and two of four: there is no quorum, and the attempt ends at once and releases what it has."""
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODES": settings.RLOCK["quorum"]["NODES"][:4]}}
    take_away(nodes[:2])
    assert not await binding.acquire(lock, wait_time=0)
    await others_have(binding, nodes, 2)
    free(nodes)
    assert await binding.acquire(lock, wait_time=0)
    await binding.release(lock)


async def test_a_minority_that_others_have_is_not_needed(binding, nodes, lock):
    take_away(nodes[:2])
    async with binding.inside(lock):
        assert await binding.call(lock, "owned")
    await others_have(binding, nodes, 2)


async def test_a_node_that_restarts_is_met_anew(binding, nodes, lock):
    """Its old connections, which say who it was, ended with it."""
    async with binding.inside(lock):
        await all_have_it(binding, nodes)
    seen = node_set("quorum").restarts._seen
    before = seen[0].run_id
    nodes[0].kill()
    nodes[0].start()
    while seen[0].run_id == before:
        async with binding.inside(lock):
            await binding.sleep(0.01)


def test_stale_replies_are_not_counted(nodes, lock):
    """Pooled connections on which another command was interrupted still hold its reply: here, a grant."""
    with lock:
        pass
    driver: Any = sync_driver("quorum")
    for links in driver.transport._kept:
        for link in links:
            link.connection.sock.sendall(pack_command("EVAL", "return {'1', 'OK', 1}", 0))
    take_away(nodes)
    assert not lock.acquire(wait_time=0)


async def test_scripts_that_the_servers_forgot(binding, nodes, lock):
    for server in nodes:
        with server.client() as client:
            client.script_flush()
    async with binding.inside(lock):
        assert await binding.call(lock, "owned")


def test_a_cancelled_task_leaves_nothing(nodes, lock):
    async def cancelled() -> None:
        task = TaskBinding().start(TaskBinding().acquire, lock)
        await asyncio.sleep(0.02)  # into its first round, which lasts for NODE_TIMEOUT
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with paused(nodes[:3]):
        asyncio.run(cancelled())
    BlockingBinding().run(none_has_it(BlockingBinding(), nodes))


def test_a_signal_while_connections_are_taken(nodes, lock, monkeypatch):
    """Whatever it interrupts, no connection is lost to the pool."""

    def interrupted(self, link):
        if len(self._connections) == 2 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return add(self, link)

    add = ThreadSession._add
    with monkeypatch.context() as patch:
        patch.setattr(ThreadSession, "_add", interrupted)
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
    with lock:
        assert lock.owned()
    until_clean()
    for node in range(5):
        assert node_set("quorum").server(node, "calls").size < 10  # some may still owe a reply


# --- renewed, suspect, lost -------------------------------------------------------------------------------------------


@pytest.mark.lengthy
async def test_suspect_while_it_cannot_be_renewed_and_lost_in_the_end(binding, nodes, lock):
    await binding.acquire(lock)
    with paused(nodes[:3]):
        renew_now()
        await binding.until(lambda: lock.suspect)
        assert not lock.lost
        hold_of(lock).deadline -= 1000
        assert lock.lost
        with pytest.raises(LockLostError):
            lock.check()
    with pytest.raises(LockLostError):
        await binding.release(lock)


@pytest.mark.lengthy
async def test_no_longer_suspect_when_a_renewal_succeeds(binding, nodes, lock):
    async with binding.inside(lock):
        with paused(nodes[:3]):
            renew_now()
            await binding.until(lambda: lock.suspect)
        await binding.until(lambda: not lock.suspect)
        assert not lock.lost


async def test_a_node_that_lost_it_gets_it_again(binding, nodes, lock):
    async with binding.inside(lock):
        await all_have_it(binding, nodes)
        free(nodes[:2])
        for _ in range(2):  # the first one finds out
            until_renewed(hold_of(lock))
        await all_have_it(binding, nodes)
        assert not lock.lost


async def test_lost_when_most_nodes_lost_it(binding, nodes, lock):
    await binding.acquire(lock)
    await all_have_it(binding, nodes)
    free(nodes[:3])
    renew_now()
    await binding.until(lambda: lock.lost)
    await none_has_it(binding, nodes)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_the_holder_hears_of_its_forced_release(binding, nodes, monkeypatch):
    # Neither a renewal nor a subscription that was checked tells it.
    monkeypatch.setattr(subscriber, "PING_AFTER", PATIENCE)
    lock = RedLock("x", using="quorum", lease_time=3 * PATIENCE)
    await binding.acquire(lock)
    until_heard()
    assert await elsewhere(binding, RedLock("x", using="quorum"), "force_release")
    await binding.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_force_release_by_the_holder(binding, nodes, lock):
    await binding.acquire(lock)
    assert await binding.call(RedLock("x", using="quorum"), "force_release")
    await none_has_it(binding, nodes)
    assert await binding.acquire(lock)
    await binding.release(lock)
    with pytest.raises(LockNotOwnedError):
        await binding.release(lock)


async def test_a_release_that_most_nodes_do_not_confirm(binding, nodes, lock):
    await binding.acquire(lock)
    with paused(nodes[:3]), pytest.raises(LockUnavailableError, match="could not be released"):
        await binding.release(lock)
    await none_has_it(binding, nodes)


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("mode", "adds"), [(EXTEND, True), (SETTLE, False)])
async def test_only_a_new_lease_adds_a_node_that_lost_the_lock(binding, nodes, lock, mode, adds):
    """A command that settles extensions may come after a forced release, and must not take the lock again."""
    assert await binding.acquire(lock)
    await binding.until(lambda: all(holders(nodes)))
    with nodes[4].client() as client:
        client.delete(NAME)
    driver = async_driver("quorum") if binding.name == "async" else sync_driver("quorum")
    owner_id = owner_of(lock)
    reply = await driver.run(lock._kind.lease(lock, owner_id, 100.0, mode))
    assert reply[1] == 1
    await driver.run(lock._kind.state(lock, owner_id))  # by then the nodes have obeyed what was sent before
    if adds:
        await binding.until(lambda: holders(nodes)[4])
    assert bool(holders(nodes)[4]) == adds
    await binding.release(lock)
