"""What arrives on a connection, in whatever pieces."""

import socket
from collections.abc import Callable, Iterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_rlock.links import link
from django_rlock.links.link import Link

SIZES = [*range(link._READ_FIRST - 20, link._READ_FIRST + 20), 5_000, 100_000]
"""Of replies: below, at and above what is read first."""

Ends = tuple[Link, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, servers = socket.socketpair()
    with ours, servers:
        servers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        yield Link(ours), servers


def ask(ours: Link) -> list[object]:
    return [ours.ask(b"PING", 60)]


def wait_for(ours: Link) -> list[object]:
    ours.sock.settimeout(0)
    found: list[object] = []
    while not found:
        found = ours.arrived()
    return found


@pytest.mark.parametrize("receive", [ask, wait_for])
@pytest.mark.parametrize("size", SIZES)
def test_reply_of_any_size_arrives_whole(ends: Ends, receive: Callable[[Link], list[object]], size: int) -> None:
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
