"""Which nodes have a vote: those whose data have been known for longer than any lease."""

import pytest
from pytest_django import Settings

from django_rlock._core.clock import monotonic
from django_rlock._redis.keys import NODE_KEY, voter_key
from django_rlock._transport.quorum.nodes import node_set
from django_rlock._transport.quorum.votes import Restarts
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks.redlock import RedLock
from example_project.embedded import EmbeddedServer
from tests.background import look_at
from tests.redlock.conftest import hold_of, holders
from tests.redlock.test_five_nodes import take_away
from tests.topologies.servers import command

QUARANTINE = 6.0
REFUSED = "emptied or has restarted, and gets no votes for another"


@pytest.fixture
def three(nodes: list[EmbeddedServer], settings: Settings) -> list[EmbeddedServer]:
    """Three nodes, each of which has kept its data for long enough."""
    times = {"QUARANTINE": QUARANTINE, "WATCHDOG_TIMEOUT": QUARANTINE, "NODE_TIMEOUT": QUARANTINE / 20}
    options = settings.RLOCK["quorum"]
    settings.RLOCK = {"quorum": {**options, **times, "NODES": options["NODES"][:3]}}
    for server in nodes[:3]:
        mark(server, run_id_of(server))
    return nodes[:3]


@pytest.fixture
def lock(three: list[EmbeddedServer]) -> RedLock:
    return RedLock("x", using="quorum")


def mark(server: EmbeddedServer, known: str, quarantine: float = QUARANTINE) -> None:
    """Let a node have kept its data for a time, as a server with a run id."""
    with server.client() as client:
        replication = client.info("replication")["master_replid"]
        values = {"mark": "?", "replication": replication, "known": known, "kept": int(1000 * quarantine)}
        client.hset(NODE_KEY, mapping=values)


def mark_of(server: EmbeddedServer) -> str | None:
    with server.client() as client:
        return client.hget(NODE_KEY, "known")


def run_id_of(server: EmbeddedServer) -> str:
    with server.client() as client:
        return client.info("server")["run_id"]


def empty(server: EmbeddedServer) -> None:
    with server.client() as client:
        client.flushall()


async def is_refused(binding, lock) -> bool:
    with pytest.raises(QuorumNotReachedError, match=REFUSED):
        await binding.acquire(lock, wait_time=0)
    return True


async def test_nodes_that_have_kept_their_data_vote_at_once(binding, lock):
    async with binding.inside(lock):
        assert lock.token


async def test_a_majority_that_was_emptied_has_no_votes(binding, three, lock):
    """By FLUSHALL: the connections stay, and the servers say that they have been up for long."""
    async with binding.inside(lock):
        pass
    for server in three[:2]:
        empty(server)
    assert await is_refused(binding, lock)
    await binding.until(lambda: not any(holders(three)))


async def test_a_replica_that_was_promoted_has_no_vote(binding, three, lock):
    """Its data have the mark of its primary, and may lack the primary's last grants."""
    for server in three[:2]:
        mark(server, "0123456789abcdef")
    assert await is_refused(binding, lock)


async def test_restarted_nodes_have_no_votes(binding, three, lock):
    """With the data that they had when they stopped."""
    async with binding.inside(lock):
        pass
    for server in three[:2]:
        server.restart(keep_data=True)
        assert mark_of(server)
    assert await is_refused(binding, lock)


@pytest.mark.lengthy
async def test_a_node_that_failed_over_and_back_has_no_vote(binding, three, own_server, lock, settings):
    """It has the run id, the mark and the connections that it had before, but not the lock."""
    primary, replica = (own_server(None, port=0, args=["--repl-diskless-sync-delay", "0"]) for _ in range(2))
    nodes = [primary, *three[1:]]
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODES": [server.url for server in nodes]}}
    await replicate(binding, replica, primary)
    mark(primary, run_id_of(primary))
    await binding.until(lambda: mark_of(replica) is not None)
    async with binding.inside(lock):
        pass
    command(replica, "REPLICAOF", "NO", "ONE")
    take_away(nodes[:2])  # by a majority without the third node
    await replicate(binding, primary, replica)
    command(primary, "REPLICAOF", "NO", "ONE")
    assert mark_of(primary) == run_id_of(primary)
    assert not await binding.acquire(lock, wait_time=0)


async def replicate(binding, replica: EmbeddedServer, primary: EmbeddedServer) -> None:
    command(replica, "REPLICAOF", "127.0.0.1", primary.port)
    with replica.client() as client:
        await binding.until(lambda: client.info("replication")["master_link_status"] == "up")


async def test_the_mark_of_the_former_release_counts_once(binding, three, lock):
    """An upgrade needs no pause. Older data that come back have that mark, too."""
    for server in three:
        with server.client() as client:
            client.delete(NODE_KEY)
            client.set(voter_key(QUARANTINE), run_id_of(server))
    async with binding.inside(lock):
        pass
    for server in three[:2]:
        with server.client() as client:
            client.hset(NODE_KEY, "replication", "of a former primary")
    assert await is_refused(binding, lock)
    for server in three[:2]:
        with server.client() as client:
            assert not client.exists(voter_key(QUARANTINE))  # the former release does not count them either


def test_the_quarantine_of_a_slow_clock_is_longer():
    """A node whose clock is slow keeps leases for longer than this process counts."""
    known = Restarts(("a",), quarantine=10.0, clock_drift=0.05)
    known.meet(0, "the node's run id")
    assert known.doubt(0, b"new", sent_at=100.0, now=100.0)
    assert known.doubt(0, b"new", sent_at=110.4, now=110.4)
    assert known.doubt(0, b"new", sent_at=110.5, now=110.5) is None


async def test_a_mark_is_known_from_when_it_was_seen(binding, three, lock, monkeypatch):
    """Data that were lost again have another one."""
    known = node_set("quorum").restarts
    for server in three:
        empty(server)
    assert await is_refused(binding, lock)
    monkeypatch.setattr(known, "quarantine", 0.001)
    monkeypatch.setattr(known, "learn", lambda longest_ms: None)
    async with binding.inside(lock):
        pass
    await binding.until(lambda: sum(mark_of(server) == run_id_of(server) for server in three) >= 2)
    monkeypatch.undo()
    for server in three:
        empty(server)
    assert await is_refused(binding, lock)


async def test_renewals_do_not_count_nodes_that_may_have_voted_for_another(binding, three, lock):
    """They were emptied, and another owner may have had their votes until then."""
    async with binding.inside(lock):
        hold = hold_of(lock)
        forget_and_plant(three, hold.owner_id)
        hold.runs_for *= 2  # it is due now
        look_at(hold)
        await binding.until(lambda: hold.suspect)
        for server in three[:2]:
            mark(server, run_id_of(server))
        await binding.until(lambda: not hold.suspect)


def forget_and_plant(three: list[EmbeddedServer], owner_id: str) -> None:
    """Empty two nodes; then they have the lock again, as a seed adds it."""
    for server in three[:2]:
        empty(server)
        with server.client() as client:
            client.hset("rlock:x", owner_id, 1)
            client.pexpire("rlock:x", 60_000)


async def test_re_entries_do_not_count_nodes_that_may_have_voted_for_another(binding, three, lock):
    async with binding.inside(lock):
        hold = hold_of(lock)
        forget_and_plant(three, hold.owner_id)
        ends = hold.deadline
        assert await is_refused(binding, lock)
        assert hold.deadline == ends
        assert hold.count == 1


async def test_the_remaining_lease_ends_when_the_hold_counts_as_lost(binding, lock, settings):
    """The servers' clocks may be slower, so their leases end later."""
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "CLOCK_DRIFT": 0.25}}
    async with binding.inside(lock):
        asked_at = monotonic()
        left = await binding.call(lock, "remaining_lease")
        assert asked_at + left <= hold_of(lock).deadline


async def test_inner_releases_do_not_prolong_a_hold(binding, three, lock):
    """Nodes that may have voted for another owner execute them, too."""
    async with binding.inside(lock):
        async with binding.inside(lock):
            hold = hold_of(lock)
            forget_and_plant(three, hold.owner_id)
            ends = hold.deadline
        assert hold.deadline == ends


@pytest.mark.lengthy
async def test_new_data_get_a_vote_after_the_quarantine(binding, three, nodes, lock):
    for server in three:
        empty(server)
    began = monotonic()
    async with binding.inside(lock):
        assert monotonic() > began + QUARANTINE
    # Others need not wait.
    await binding.until(lambda: sum(mark_of(server) == run_id_of(server) for server in three) >= 2)
    assert [mark_of(server) for server in nodes[3:]] == [None, None]


LONGER = 10 * QUARANTINE


@pytest.fixture
def long_lock(three: list[EmbeddedServer], settings: Settings) -> RedLock:
    """That of another project on the same nodes, whose leases are longer."""
    settings.RLOCK = {**settings.RLOCK, "long": {**settings.RLOCK["quorum"], "QUARANTINE": LONGER}}
    return RedLock("y", using="long")


async def test_who_has_longer_leases_waits_for_longer(binding, lock, long_lock):
    async with binding.inside(lock):
        assert await is_refused(binding, long_lock)


async def test_nodes_wait_for_the_longest_lease_of_all_projects(binding, three, lock, long_lock):
    """Also if a node that has forgotten how long that is replies first."""
    for server in three:
        mark(server, run_id_of(server), LONGER)
    async with binding.inside(long_lock):
        pass
    empty(three[0])
    take_away(three[1:2])
    await binding.until(lambda: all(quarantine_of(server) == 1000 * LONGER for server in three[1:]))
    assert not await binding.acquire(lock, wait_time=0)
    known = node_set("quorum").restarts
    await binding.until(lambda: known.quarantine > LONGER)
    assert known.doubt(0, known._seen[0].mark[0], monotonic() + QUARANTINE + 1, monotonic())


async def test_a_process_vouches_for_the_longest_lease_of_all_projects(binding, three, lock, long_lock, monkeypatch):
    for server in three:
        mark(server, run_id_of(server), LONGER)
    async with binding.inside(long_lock):
        pass
    empty(three[0])
    known = node_set("quorum").restarts
    while known.quarantine < LONGER:
        async with binding.inside(lock):
            await binding.sleep(0.01)
    monkeypatch.setattr(known, "quarantine", 0.001)
    while mark_of(three[0]) != run_id_of(three[0]):  # the first replies show the new mark, later ones that it is kept
        async with binding.inside(lock):
            await binding.sleep(0.01)
    assert kept_by(three[0]) == 1000 * LONGER


def quarantine_of(server: EmbeddedServer) -> int:
    with server.client() as client:
        return int(client.hget(NODE_KEY, "quarantine") or 0)


def kept_by(server: EmbeddedServer) -> int:
    with server.client() as client:
        return int(client.hget(NODE_KEY, "kept") or 0)
