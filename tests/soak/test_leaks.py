"""What a soak may keep: no socket of a connection that failed or ended, and what bounded caches keep."""

import socket
from pathlib import Path

from django_rlock import FairLock, RLock
from django_rlock._redis.keys import MOST_KEPT
from django_rlock._transport.calls import Prepared
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.soak.leaks import MOST_OBJECTS, too_many_objects


def connect(proxy: Proxy) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(proxy.path)
    return client


def test_proxy_keeps_no_socket_of_a_server_that_is_down(tmp_path: Path) -> None:
    with Proxy(tmp_path / "nobody", tmp_path) as proxy:
        for _ in range(20):
            with connect(proxy) as client:
                assert client.recv(1) == b""
        eventually(lambda: proxy.connections == 0)


def test_proxy_keeps_no_socket_of_a_connection_that_ended(tmp_path: Path, server) -> None:
    with Proxy(Path(server.folder) / "server.sock", tmp_path) as proxy:
        for _ in range(5):
            with connect(proxy) as client:
                client.sendall(b"PING\r\n")
                assert client.recv(7) == b"+PONG\r\n"
        eventually(lambda: proxy.connections == 0)


def test_calls_that_are_kept_for_the_next_time_are_no_leak() -> None:
    left_by_others = {*too_many_objects()}
    kinds: list[type] = [RLock, FairLock]
    for kind in kinds:
        for number in range(MOST_KEPT):
            lock = kind(f"stock:{number}")
            kept = lock._kind
            kept.acquire(lock, "somebody", 1, 30.0)
            kept.release(lock, "somebody", 0, 30.0)
    assert {*too_many_objects()} <= left_by_others
    leaked = [Prepared.__new__(Prepared) for _ in range(20 * MOST_OBJECTS)]
    assert "objects of Prepared" in too_many_objects()
    del leaked
