"""The connections to the nodes that an event loop keeps, and how replies are read from them."""

import asyncio
import gc
from contextlib import ExitStack

import pytest
from redis.exceptions import InvalidResponse

from django_rlock.drivers import resp
from django_rlock.drivers.quorum_aio import quorum_driver
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks.redlock import RedLock
from tests.faces import BlockingFace
from tests.topologies.servers import encrypted

GRANT = b"""EVAL "return {'1', 'OK', 1}" 0\r\n"""


@pytest.fixture
def lock(nodes):
    return RedLock("x", using="quorum")


def links():
    found = quorum_driver("quorum").links()._links
    assert len(found) == 5
    return found


async def acquire_and_release(lock):
    assert await lock.aacquire(wait_time=0)
    await lock.arelease()


def test_all_calls_of_a_loop_share_them(lock):
    async def body():
        await acquire_and_release(lock)
        before = dict(links())
        await asyncio.gather(*[acquire_and_release(RedLock(f"y{number}", using="quorum")) for number in range(10)])
        assert links() == before

    asyncio.run(body())


def test_a_reply_that_nobody_asked_for_is_no_vote(lock, nodes):
    async def body():
        await acquire_and_release(lock)
        for server in nodes:
            with server.client() as client:
                client.hset("rlock:x", "somebody", 1)
        for link in links().values():
            link._transport.write(GRANT)
        with pytest.raises(QuorumNotReachedError, match="reply of another command"):
            await lock.aacquire(wait_time=0)
        assert not await lock.aacquire(wait_time=0)

    asyncio.run(body())


def test_the_reply_to_a_cancelled_call_is_not_the_next_ones(lock, nodes):
    async def body():
        await acquire_and_release(lock)
        before = dict(links())
        for server in nodes[:3]:
            server.pause()
        task = asyncio.ensure_future(lock.aacquire())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for server in nodes[:3]:
            server.resume()
        async with lock:
            assert await lock.aowned()
        assert links() == before

    asyncio.run(body())


def test_broken_ones_are_replaced(lock, nodes):
    async def body():
        await acquire_and_release(lock)
        for server in nodes:
            with server.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
        while any(link.is_open for link in links().values()):  # noqa: ASYNC110 - they have no event
            await asyncio.sleep(0.001)
        for _ in range(3):
            await acquire_and_release(lock)
        assert all(link.is_open for link in links().values())

    asyncio.run(body())


def test_they_end_with_their_loop(lock, nodes):
    def connected():
        with nodes[0].client() as client:
            return len(client.client_list())

    before = connected()

    async def body():
        await acquire_and_release(lock)
        assert connected() > before

    for _ in range(2):
        asyncio.run(body())
    face = BlockingFace()
    face.run(face.until(lambda: connected() <= before))
    gc.collect()
    assert len(quorum_driver("quorum")._links) <= 1


# --- replies ----------------------------------------------------------------------------------------------------------

STREAM = (
    b"*3\r\n$5\r\nnonce\r\n:1\r\n$2\r\nOK\r\n-NOSCRIPT unknown\r\n*2\r\n$1\r\na\r\n:-1\r\n"
    b"+OK\r\n*2\r\n$-1\r\n*0\r\n_\r\n:1732112345678901\r\n$4\r\n\r\n\r\n\r\n"
)


def read(reader, size):
    replies = []
    for start in range(0, len(STREAM), size):
        reader.feed(STREAM[start : start + size])
        while (reply := reader.gets()) is not resp.INCOMPLETE:
            replies.append(repr(reply))
    return replies


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_reader_in_python_reads_what_hiredis_reads(size):
    pytest.importorskip("hiredis")
    theirs = read(resp.make_reader(), size)
    assert len(theirs) == 8
    assert read(resp.PythonReader(), size) == theirs


def test_without_hiredis(lock, monkeypatch):
    monkeypatch.setattr(resp, "hiredis", None)
    assert isinstance(resp.make_reader(), resp.PythonReader)
    asyncio.run(acquire_and_release(lock))


def test_what_is_no_reply_is_refused():
    reader = resp.PythonReader()
    reader.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(InvalidResponse):
        reader.gets()


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_over_tls(settings):
    with ExitStack() as stack:
        servers = {f"tls{number}": stack.enter_context(encrypted()) for number in range(3)}
        settings.CACHES = {**settings.CACHES, **{name: server.cache for name, server in servers.items()}}
        # A handshake takes its time where the machine is busy.
        settings.RLOCK = {"quorum": {"NODES": list(servers), "QUARANTINE": 0, "NODE_TIMEOUT": 1.0}}
        lock = RedLock("x", using="quorum")

        async def body():
            for _ in range(3):
                await acquire_and_release(lock)
            assert all(link.is_open for link in quorum_driver("quorum").links()._links.values())

        asyncio.run(body())
