"""Servers that seem far away: a process between client and servers that delays commands and replies.

One thread waits for all sockets at once, and each piece of data has a time of its own, so that nothing queues behind
anything else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def delayed(ports: Sequence[int], seconds: float) -> Iterator[tuple[int, list[int]]]:
    """Yields the proxy's process id, and the ports of 127.0.0.1 that lead to the given ones.

    Through them a round trip takes ``seconds`` longer, half of it each way.
    """
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
    relay = Relay(dict(zip(listeners, ports, strict=True)), seconds / 2)
    process = multiprocessing.get_context("spawn").Process(target=relay.run, daemon=True)
    process.start()
    addresses = [listener.getsockname() for listener in listeners]
    for listener in listeners:
        listener.close()
    try:
        yield process.pid or 0, [port for _, port in addresses]
    finally:
        process.kill()
        process.join()


class Relay:
    """Forwards data ``seconds`` later; ``upstream`` maps each listening socket to the port that it leads to."""

    def __init__(self, upstream: dict[socket.socket, int], seconds: float) -> None:
        self._upstream = upstream
        self._seconds = seconds
        self._peers: dict[socket.socket, socket.socket] = {}
        self._kept: deque[tuple[float, socket.socket, bytes]] = deque()
        """When to send, where and what; the delay is the same for all, so they are in order."""

    def run(self) -> None:
        while True:
            # Not poll(), whose timeout is in whole milliseconds.
            for each in select.select([*self._upstream, *self._peers], (), (), self._time_left())[0]:
                if each in self._upstream:
                    self._accept(each)
                elif each in self._peers:
                    self._read(each)
            while self._kept and self._kept[0][0] <= time.monotonic():
                _, target, data = self._kept.popleft()
                with contextlib.suppress(OSError):  # it was closed meanwhile
                    target.sendall(data)

    def _time_left(self) -> float | None:
        return max(self._kept[0][0] - time.monotonic(), 0) if self._kept else None

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", self._upstream[listener]))
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers |= {client: server, server: client}

    def _read(self, source: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65536)
        if data:
            self._kept.append((time.monotonic() + self._seconds, self._peers[source], data))
        else:
            self._close(source)

    def _close(self, source: socket.socket) -> None:
        for each in (source, self._peers[source]):
            del self._peers[each]
            each.close()
