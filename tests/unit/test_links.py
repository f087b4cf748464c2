"""What arrives on a connection, in whatever pieces."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._redis import scripts
from django_rlock._transport import connection
from django_rlock._transport import connection as link
from django_rlock._transport.async_connection import TaskConnection
from django_rlock._transport.connection import Connection, StaleReplyError, check_reply

SIZES = [*range(link._READ_FIRST - 20, link._READ_FIRST + 20), 5_000, 100_000]
"""Of replies: below, at and above what is read first."""

Ends = tuple[Connection, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, servers = socket.socketpair()
    with ours, servers:
        servers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        yield Connection(ours), servers


def ask(ours: Connection) -> list[object]:
    return [ours.ask(b"PING", 60)]


def wait_for(ours: Connection) -> list[object]:
    ours.sock.settimeout(0)
    found: list[object] = []
    while not found:
        found = ours.arrived()
    return found


@pytest.mark.parametrize("receive", [ask, wait_for])
@pytest.mark.parametrize("size", SIZES)
def test_reply_of_any_size_arrives_whole(ends: Ends, receive: Callable[[Connection], list[object]], size: int) -> None:
    ours, servers = ends
    reply = b"x" * size
    for _ in range(2):  # the first leaves nothing behind
        servers.sendall(b"$%d\r\n%b\r\n" % (size, reply))
        assert receive(ours) == [reply]


@pytest.mark.parametrize("size", SIZES)
def test_what_came_before_the_end_arrives(ends: Ends, size: int) -> None:
    ours, servers = ends
    servers.sendall(b"$%d\r\n%b\r\n" % (size, b"x" * size))
    servers.close()
    assert wait_for(ours) == [b"x" * size]
    with pytest.raises(RedisConnectionError, match="closed"):
        ours.arrived()


MALFORMED = [
    b"*1\r\n" * 5000 + b":1\r\n",
    b":abc\r\n",
    b"$abc\r\n",
    b"$-5\r\n",
    b"*-7\r\n",
    b"$99999999999999999999999999\r\n",
    b"%1\r\n*0\r\n:1\r\n",
    b"*2\r\n:1\r\nQ",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"\x16\x03\x01",
]


@pytest.fixture(params=[True, False], ids=["hiredis", "Python"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(connection, "hiredis", None)
    elif connection.hiredis is None:
        pytest.skip("hiredis is not installed")


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("brought", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_replies_are_one_error(brought: bytes) -> None:
    reader = connection.make_reader()
    reader.feed(brought)
    with pytest.raises(InvalidResponse):
        reader.gets()


@pytest.mark.usefixtures("_reader")
def test_a_list_of_billions_is_refused_or_ends_with_the_limit() -> None:
    reader = connection.make_reader()
    reader.feed(b"*4000000000\r\n")
    with suppress(InvalidResponse):
        assert reader.gets() is connection.INCOMPLETE


@pytest.mark.usefixtures("_reader")
def test_a_reply_that_is_too_long_is_refused_while_it_comes(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LONGEST_REPLY", 50_000)
    ours, servers = ends
    for _ in range(3):  # many that are not are not counted together
        servers.sendall(b"$40000\r\n%b\r\n" % (b"x" * 40_000))
        assert len(ask(ours)[0]) == 40_000  # type: ignore[arg-type]
    servers.sendall(b"$9999999999\r\n%b" % (b"x" * 60_000))
    with pytest.raises(InvalidResponse, match="a reply of more than"):
        ask(ours)


@pytest.mark.parametrize("reply", [b"*0\r\n", b"*1\r\n$1\r\n7\r\n", b"*-1\r\n", b"$1\r\n8\r\n"])
def test_a_reply_that_says_nothing_is_refused(ends: Ends, reply: bytes) -> None:
    ours, servers = ends
    servers.sendall(reply)
    with pytest.raises(StaleReplyError):
        check_reply(ask(ours)[0], b"7", scripts.RLOCK_ACQUIRE)


def test_a_nonce_alone_is_the_usual_reply_of_a_script_that_has_one(ends: Ends) -> None:
    ours, servers = ends
    for script, usual in ((scripts.RLOCK_ACQUIRE, b"OK"), (scripts.RLOCK_RELEASE, 1)):
        servers.sendall(b"$1\r\n7\r\n")
        assert check_reply(ask(ours)[0], b"7", script) == [b"7", usual]
    servers.sendall(b"$1\r\n7\r\n")
    with pytest.raises(StaleReplyError):
        check_reply(ask(ours)[0], b"7", scripts.LOCK_STATE)


def test_a_loop_gives_up_a_connection_on_which_a_reply_never_ends(ends: Ends) -> None:
    """What comes after it would never be read."""
    ours, servers = ends

    async def body() -> None:
        link = TaskConnection(ours, asyncio.get_running_loop())
        link.attach()
        answer = link.ask(b"PING", (b"7", scripts.RLOCK_ACQUIRE), 0.1)
        servers.sendall(b"$9999999999\r\nabc")
        assert isinstance(await answer, RedisTimeoutError)
        assert not link.is_open

    asyncio.run(body())
