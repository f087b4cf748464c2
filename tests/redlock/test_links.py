"""The connections to the nodes that an event loop keeps, and how replies are read from them."""

import asyncio
import gc
import select
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, InvalidResponse
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._redis import scripts
from django_rlock._transport import connection
from django_rlock._transport.async_connection import TaskConnection
from django_rlock._transport.async_pool import _loops, connections_of
from django_rlock._transport.connection import Connection
from django_rlock._transport.pool import KEEP_IDLE
from django_rlock._transport.quorum.nodes import NodeSet, node_set
from django_rlock._transport.quorum.threads import NodeConnection
from django_rlock._transport.quorum.votes import QuorumCall
from django_rlock._transport.registry import sync_driver
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks.redlock import RedLock
from tests.background import no_threads
from tests.eventually import PATIENCE, eventually
from tests.faults.test_server_errors import NO_LOGIN
from tests.redlock.conftest import NODE_TIMEOUT, acquire_and_give_back, paused
from tests.topologies.servers import encrypted

GRANT = b"""EVAL "return {'1', 'OK', 1}" 0\r\n"""
ASK = QuorumCall("x", scripts.REDLOCK_BUMP, ("x",), ("owner",))


@pytest.fixture
def lock(nodes):
    return RedLock("x", using="quorum")


def links():
    shared = connections_of(asyncio.get_running_loop()).shared
    found = {node: shared[node_set("quorum").server(node, "calls")] for node in range(len(shared))}
    assert len(found) == 5
    return found


async def acquire_and_release(lock):
    assert await lock.aacquire(wait_time=0)
    await lock.arelease()


async def test_all_calls_of_a_loop_share_them(lock):
    await acquire_and_release(lock)
    before = dict(links())
    await asyncio.gather(*[acquire_and_release(RedLock(f"y{number}", using="quorum")) for number in range(10)])
    assert links() == before


def give_away(nodes):
    for server in nodes:
        with server.client() as client:
            client.hset("rlock:x", "another", 1)


@pytest.mark.usefixtures("patient")
async def test_a_reply_that_nobody_asked_for_is_no_vote(lock, nodes):
    async def try_once():
        return await lock.aacquire(wait_time=0)

    await acquire_and_release(lock)
    give_away(nodes)
    for server, link in zip(nodes, links().values(), strict=True):
        server.pause()
        link.connection.sock.send(GRANT)  # whose reply comes when the next call has been sent
    attempt = asyncio.ensure_future(try_once())
    await asyncio.sleep(0)
    for server in nodes:
        server.resume()
    assert not await attempt  # asked again over new connections, the nodes have refused
    assert not await lock.aacquire(wait_time=0)


async def test_what_came_while_the_loop_was_blocked_is_no_vote(lock, nodes):
    await acquire_and_release(lock)
    give_away(nodes)
    for link in links().values():
        link.connection.sock.send(GRANT)
        select.select([link.connection.sock], [], [])
    assert not await lock.aacquire(wait_time=0)


async def test_ends_while_the_loop_was_blocked_fail_no_brief_attempt(lock, nodes):
    await acquire_and_release(lock)
    for server in nodes:
        with server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
    await acquire_and_release(lock)


async def cancel_once_sent(call):
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("patient")
async def test_the_reply_to_a_cancelled_call_is_not_the_next_ones(lock, nodes):
    await acquire_and_release(lock)
    before = dict(links())
    with paused(nodes[:3]):
        await cancel_once_sent(acquire_and_release(lock))
    async with lock:
        assert await lock.aowned()
    assert links() == before


async def test_ends_of_connections_that_owe_a_reply_fail_no_brief_attempt(lock, nodes):
    await acquire_and_release(lock)
    with paused(nodes):
        await cancel_once_sent(acquire_and_release(lock))
        assert all(link.owes for link in links().values())
    for server in nodes:
        with server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
    await acquire_and_release(RedLock("y", using="quorum"))


VOTE = b"*2\r\n$1\r\n1\r\n:1\r\n"


@pytest.mark.parametrize(
    ("brought", "once", "votes", "error"),
    [
        (VOTE, False, 1, "closed the connection"),
        (VOTE[:8], False, 0, "closed the connection"),
        (VOTE + b"+stray\r\n", False, 1, "reply without a command"),
        (VOTE + b"+stray\r\n", True, 1, "reply without a command"),
    ],
    ids=["vote, end", "a part of a vote, end", "vote, stray reply", "vote, stray reply in one piece"],
)
def test_a_thread_counts_the_votes_before_the_end_of_a_link(brought, once, votes, error):
    ours, theirs = socket.socketpair()
    link = NodeConnection(0, Connection(ours))
    link.owed.append((b"1", ASK, object()))
    theirs.sendall(brought)
    theirs.close()
    heard: list[tuple[QuorumCall, object, object]] = []
    with pytest.raises(RedisConnectionError, match=error):
        heard.extend(link.read(limit=1, once=once))
    assert [reply for _, _, reply in heard] == [[b"1", 1]] * votes
    link.close()


def test_an_idle_link_that_brings_a_part_of_a_reply_is_not_used():
    ours, theirs = socket.socketpair()
    link = NodeConnection(0, Connection(ours))
    theirs.sendall(b"-ERR str")
    with pytest.raises(RedisConnectionError, match="reply without a command"):
        list(link.read(limit=1))
    link.close()
    theirs.close()


def test_a_loop_does_not_use_an_idle_link_that_brings_a_part_of_a_reply():
    ours, theirs = socket.socketpair()

    async def body():
        link = TaskConnection(Connection(ours), asyncio.get_running_loop())
        link.attach()
        theirs.sendall(b"-ERR str")
        assert not link.read()

    asyncio.run(body())
    theirs.close()


def test_an_attempt_that_is_cancelled_as_it_connects_leaves_nothing(lock):
    """Python would complain of a coroutine that is never awaited."""

    async def body():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await lock.aacquire()

    asyncio.run(body())
    gc.collect()


def test_the_next_loop_goes_on_with_them(lock):
    def kept():
        return {link for node in range(5) for link in node_set("quorum").server(node, "calls").idle}

    asyncio.run(acquire_and_release(lock))
    for _ in range(3):
        before = kept()
        asyncio.run(acquire_and_release(lock))
        assert kept() & before  # not all: those of nodes that owe a reply when their loop ends are closed
        assert all(node_set("quorum").server(node, "calls").size <= 1 for node in range(5))
    gc.collect()
    assert not _loops.value


# --- replies ----------------------------------------------------------------------------------------------------------

STREAM = (
    b"*3\r\n$5\r\nnonce\r\n:1\r\n$2\r\nOK\r\n-NOSCRIPT unknown\r\n*2\r\n$1\r\na\r\n:-1\r\n"
    b"+OK\r\n*2\r\n$-1\r\n*0\r\n_\r\n:1732112345678901\r\n$4\r\n\r\n\r\n\r\n"
)


def read(reader, size):
    replies = []
    for start in range(0, len(STREAM), size):
        reader.feed(STREAM[start : start + size])
        while (reply := reader.gets()) is not connection.INCOMPLETE:
            replies.append(repr(reply))
    return replies


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_reader_in_python_reads_what_hiredis_reads(size):
    pytest.importorskip("hiredis")
    theirs = read(connection.make_reader(), size)
    assert len(theirs) == 8
    assert read(connection.PythonReader(), size) == theirs


def test_without_hiredis(lock, monkeypatch):
    monkeypatch.setattr(connection, "hiredis", None)
    assert isinstance(connection.make_reader(), connection.PythonReader)
    asyncio.run(acquire_and_release(lock))


def test_what_is_no_reply_is_refused():
    reader = connection.PythonReader()
    reader.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(InvalidResponse):
        reader.gets()


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_over_tls(settings):
    with ExitStack() as stack:
        servers = {f"tls{number}": stack.enter_context(encrypted()) for number in range(3)}
        settings.CACHES = {**settings.CACHES, **{name: server.cache for name, server in servers.items()}}
        settings.RLOCK = {"quorum": {"NODES": list(servers), "QUARANTINE": 0, "NODE_TIMEOUT": NODE_TIMEOUT}}
        lock = RedLock("x", using="quorum")

        async def body():
            for _ in range(3):
                await acquire_and_release(lock)
            assert all(link.is_open for link in connections_of(asyncio.get_running_loop()).shared.values())

        asyncio.run(body())


async def test_a_connection_that_ends_while_it_is_made_is_made_anew(binding, proxies):
    cut = [each.cut_before(b"INFO") for each in proxies]
    lock = RedLock("x", using="quorum")
    assert await binding.acquire(lock, wait_time=0)
    await binding.until(lambda: all(each.served.is_set() for each in cut))
    assert node_set("quorum").down == {}
    await binding.release(lock)


@pytest.fixture
def without_clean_up():
    """The background worker would use a connection that a test looks at, to undo an attempt that failed."""
    with no_threads():
        yield


@pytest.mark.lengthy
@pytest.mark.usefixtures("patient", "without_clean_up")
async def test_connecting_goes_on_beside_the_votes(binding, proxies, monkeypatch):
    """Nodes that take longer to connect than callers wait are there for a later call, over the same connections."""
    lock = RedLock("x", using="quorum")
    known = node_set("quorum")
    # All of them from the start: a node is visited soon after the call has given it up.
    of_the_call, of_the_visit = ([each.hold(b"LIB-NAME") for each in proxies] for _ in range(2))
    further = [each.cut_before(b"LIB-NAME") for each in proxies]
    with monkeypatch.context() as hasty:
        hasty.setattr(known, "connect_within", 0.2)
        with pytest.raises(QuorumNotReachedError, match="Timeout connecting"):
            await binding.acquire(lock, wait_time=0)
        await binding.until(lambda: all(rule.served.is_set() for rule in of_the_visit))
        time.sleep(known.connect_within)  # noqa: ASYNC251 - none of them is in time, under either binding
    for rule in of_the_call + of_the_visit:
        rule.let_go.set()
    reached = [known.server(node, "calls") for node, _ in enumerate(proxies)]
    await binding.until(lambda: known.down == {} and all(server.idle for server in reached))
    assert await binding.acquire(lock, wait_time=0)
    await binding.release(lock)
    assert not any(rule.served.is_set() for rule in further)


async def test_nodes_that_were_slow_to_connect_vote_as_soon_as_they_have(binding, proxies):
    """A caller without a time limit does not wait until the background has reached them as well."""
    lock = RedLock("x", using="quorum")
    known = node_set("quorum")
    of_the_call = [each.hold(b"LIB-NAME") for each in proxies]
    for each in proxies:
        each.hold(b"LIB-NAME")  # of the background
        for _ in range(100):
            each.cut_before(b"LIB-NAME")  # and of its further visits
    with pytest.MonkeyPatch.context() as hasty:
        hasty.setattr(known, "connect_within", 0.2)
        acquiring = binding.start(acquire_and_give_back, binding, lock)
        await binding.until(lambda: known.down.keys() >= {0, 1})
    for rule in of_the_call:
        rule.let_go.set()
    await binding.result(acquiring)


async def test_connections_that_were_idle_for_long_are_replaced(binding, proxies):
    """They may be gone without a word, and a vote has no time to find that out."""
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)
    for each in proxies:
        each.forget_connections()
    transport: Any = sync_driver("quorum").transport  # type: ignore[attr-defined]
    for kept in transport._kept:
        for link in kept:
            link.since -= KEEP_IDLE
    if binding.name == "async":
        for link in connections_of(asyncio.get_running_loop()).shared.values():
            link.heard_at -= KEEP_IDLE
    assert await binding.acquire(lock, wait_time=0)
    await binding.release(lock)


def test_an_idle_connection_does_not_prove_that_a_node_is_up(hasty_nodes, nodes):
    known = node_set("quorum")
    kept = known.server(0, "background")
    kept.give_back(kept.open())
    nodes[0].pause()
    known.note_down(0, RedisTimeoutError("did not reply in time"))
    with pytest.raises(RedisTimeoutError, match="Timeout reading"):
        known._visit(0)
    assert not known.is_up(0)
    nodes[0].resume()
    eventually(lambda: known.is_up(0))


def test_a_node_is_visited_again_after_a_visit_that_has_ended_its_thread(nodes, monkeypatch):
    died = threading.Event()

    def die(*_):
        died.set()
        raise SystemExit

    monkeypatch.setattr(NodeSet, "_visit", die)
    known = node_set("quorum")
    known.note_down(0, RedisTimeoutError("did not reply in time"))
    assert died.wait(PATIENCE)
    eventually(lambda: not known._instances[0].is_entered)
    monkeypatch.undo()
    known._see_to(0)
    eventually(lambda: known.is_up(0))


def test_a_connection_that_has_lost_its_login_does_not_prove_that_a_node_is_up(proxies, monkeypatch):
    known = node_set("quorum")
    kept = known.server(0, "background")
    link = kept.open()
    kept.give_back(link)
    proxies[0].refuse(b"INFO", NO_LOGIN)
    with monkeypatch.context() as alone:
        alone.setattr(known, "_see_to", lambda node: None)
        known.note_down(0, RedisTimeoutError("did not reply in time"))
        with pytest.raises(AuthenticationError):
            known._visit(0)
        assert not known.is_up(0)
        assert link.sock.fileno() == -1
        known._visit(0)
    assert known.is_up(0)


async def test_who_finds_a_node_down_has_it_visited(binding, lock, monkeypatch):
    """An interruption may keep the one who noted it from that; then nobody else would ever have looked."""
    known = node_set("quorum")
    with monkeypatch.context() as interrupting:
        interrupting.setattr(known, "_see_to", interrupted)
        for node in range(3):
            with pytest.raises(KeyboardInterrupt):
                known.note_down(node, RedisTimeoutError("did not reply in time"))
    with pytest.raises(QuorumNotReachedError):
        await binding.acquire(lock, wait_time=0)
    await binding.until(lambda: known.down == {})
    await acquire_and_give_back(binding, lock)


def interrupted(node):
    raise KeyboardInterrupt
