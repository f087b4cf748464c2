"""Connections without a client library: what thousands of processes send, at the cost of one.

Each connection has a lock and an owner of its own, and sends its packets in turn, one at a time, as a process would.
"""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import hiredis

from benchmarks.capacity.packets import Packet, Sequel

_POLL_AT_MOST = 0.1


class Sent(NamedTuple):
    """How many packets got all their replies, and in how many seconds."""

    packets: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.packets / self.seconds


class Connection:
    """A connection and what it sends, again and again."""

    def __init__(self, sock: socket.socket, sequel: Sequel) -> None:
        self.sock = sock
        self._packets = sequel.packets
        self._next = 0
        self._missing = 0
        self._reader = hiredis.Reader()
        for packet in sequel.before:
            self._send(packet)
            while not self.receive():
                pass

    def send(self) -> None:
        self._send(self._packets[self._next])
        self._next = (self._next + 1) % len(self._packets)

    def receive(self) -> bool:
        """Read what has come; returns whether the packet has got all its replies. ReplyError if it is refused."""
        self._reader.feed(self.sock.recv(65536))
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            self._missing -= 1
        return self._missing == 0

    def _send(self, packet: Packet) -> None:
        self.sock.sendall(packet.data)
        self._missing = packet.replies


@contextmanager
def links(url: str, count: int, sequel: Callable[[int], Sequel]) -> Iterator[list[Connection]]:
    """Connections to a server; ``sequel`` is called with the number of each."""
    address = urlsplit(url)
    opened: list[Connection] = []
    try:
        for number in range(count):
            sock = socket.create_connection((address.hostname or "", address.port or 0))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.append(Connection(sock, sequel(number)))
        yield opened
    finally:
        for link in opened:
            link.sock.close()


def drive(opened: Sequence[Connection], seconds: float, rate: float | None = None) -> Sent:
    """Let all send for a number of seconds: at random times, at a rate per second; None is as fast as they can."""
    idle, sent, done, due = deque(opened), 0, 0, time.monotonic()
    began, end = due, due + seconds
    with selectors.DefaultSelector() as selector:
        for link in opened:
            selector.register(link.sock, selectors.EVENT_READ, link)
        while (now := time.monotonic()) < end:
            while idle and due <= now:
                idle.popleft().send()
                sent += 1
                due += random.expovariate(rate) if rate else 0.0
            if rate:
                time.sleep(max(0.0, min(due, end) - time.monotonic()))
            ready = _ready(selector, 0 if rate else _POLL_AT_MOST)
            idle += ready
            done += len(ready)
        while done < sent:  # so that the next measurement begins with a server that has nothing to do
            done += len(_ready(selector, _POLL_AT_MOST))
    return Sent(done, time.monotonic() - began)


def _ready(selector: selectors.BaseSelector, seconds: float) -> list[Connection]:
    """Those that have got all replies, within a number of seconds."""
    return [key.data for key, _ in selector.select(seconds) if key.data.receive()]
