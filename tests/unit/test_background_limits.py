"""How long background threads wait: connecting and replying have limits of their own."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from django_rlock._redis.scripts import LOCK_RENEW
from django_rlock._transport.calls import ScriptCall, Template, pack, run_sync
from django_rlock._transport.connection import Connection, ConnectionSlot
from django_rlock._transport.pool import BACKGROUND, Server

LIMIT = 1.0
"""Seconds, for connecting and for a reply."""


class Slow:
    """A server that takes all its time to connect, and some to reply."""

    def __init__(self, reply: bytes) -> None:
        self.ours, self.theirs = socket.socketpair()
        self._reply = reply
        self.server = Server(self._connect, LIMIT)

    def _connect(self, slot: ConnectionSlot | None) -> Connection:
        time.sleep(LIMIT)
        threading.Thread(target=self._serve, daemon=True).start()
        return Connection(self.ours, slot)

    def _serve(self) -> None:
        self.theirs.recv(65536)
        time.sleep(0.2)
        with contextlib.suppress(OSError):  # the client has given up
            self.theirs.sendall(self._reply)


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow(b"*2\r\n$1\r\n7\r\n:1\r\n")
    yield found
    found.theirs.close()
    found.ours.close()


def test_replies_to_many_commands_have_their_time(slow: Slow) -> None:
    assert run_sync(BACKGROUND.converse(slow.server, b"PING", [(b"7", LOCK_RENEW)], LIMIT)) == [[b"7", 1]]


def test_a_late_retry_has_time_for_its_reply(slow: Slow) -> None:
    """Though all tries of a call share the time that its caller has."""
    call = ScriptCall("x", Template(LOCK_RENEW, (), ("x",)), "x", "owner")
    assert run_sync(BACKGROUND.exchange(slow.server, call, pack(call, b"7"), b"7", 0.05)) == [b"7", 1]
