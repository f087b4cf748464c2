"""Servers of our own that answer as a test says, and proxies that send commands where they should not go."""

from __future__ import annotations

import contextlib
import itertools
import socket
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from example_project.embedded import EmbeddedServer

Answer = Callable[[socket.socket], None]
"""Serves one connection."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_: Any) -> None:
        """The client has left."""


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The URL of a server that serves each connection so."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            answer(self.request)

    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()


def refusing(text: str, close: bool = False) -> Answer:
    """Answers each command by an error; ``close`` ends the connection after the first one."""

    def answer(client: socket.socket) -> None:
        stream = client.makefile("rb")
        while command_in(stream) is not None:
            client.sendall(f"-{text}\r\n".encode())
            if close:
                return

    return answer


def saying(data: bytes) -> Answer:
    """Sends the same bytes to each client, and closes the connection."""

    def answer(client: socket.socket) -> None:
        client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)
            client.recv(65536)

    return answer


def late(server: EmbeddedServer, seconds: float) -> Answer:
    """A server whose first reply on each connection is late."""

    def answer(client: socket.socket) -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):  # the test is over
            _join(client, _connected(server))

    return answer


def rewriting(server: EmbeddedServer, old: bytes, new: bytes) -> Answer:
    """A server whose replies say something else, of the same length."""
    assert len(old) == len(new)

    def answer(client: socket.socket) -> None:
        _join(client, _connected(server), lambda data: data.replace(old, new))

    return answer


def counting(server: EmbeddedServer, turns: list[str]) -> Answer:
    """A server that notes each round trip: each time that a client sends something after a reply, or connects."""

    def answer(client: socket.socket) -> None:
        turns.append("connects")
        waits = False

        def sent(data: bytes) -> bytes:
            nonlocal waits
            if not waits:
                turns.append(repr(data[:40]))
            waits = True
            return data

        def replied(data: bytes) -> bytes:
            nonlocal waits
            waits = False
            return data

        _join(client, _connected(server), replied, sent)

    return answer


def in_turn(servers: Sequence[EmbeddedServer]) -> Answer:
    """Leads each connection to the next server."""
    turns = itertools.cycle(servers)

    def answer(client: socket.socket) -> None:
        _join(client, _connected(next(turns)))

    return answer


def sharding(servers: Sequence[EmbeddedServer]) -> Answer:
    """Sends each command to the server of its first key, as twemproxy does, and knows only some commands."""

    def answer(client: socket.socket) -> None:
        with ExitStack() as stack:
            links = [stack.enter_context(_connected(server)) for server in servers]
            streams = [stack.enter_context(link.makefile("rb")) for link in links]
            stream = stack.enter_context(client.makefile("rb"))
            while (words := command_in(stream)) is not None:
                name = words[0].upper()
                if name not in {b"EVAL", b"EVALSHA", b"EXISTS", b"GET", b"DEL"}:
                    client.sendall(b"-ERR unknown command\r\n")
                    continue
                chosen = zlib.crc32(words[3] if name.startswith(b"EVAL") else words[1]) % len(links)
                sent = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
                links[chosen].sendall(b"*%d\r\n%b" % (len(words), sent))
                client.sendall(_reply(streams[chosen]))

    return answer


def command_in(stream: Any) -> list[bytes] | None:
    """The words of the next command; None at the end of the connection."""
    head = stream.readline()
    if not head.startswith(b"*"):
        return None
    return [stream.read(int(stream.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]


def _reply(stream: Any) -> bytes:
    line: bytes = stream.readline()
    kind, size = line[:1], line[1:-2]
    if kind == b"$" and size != b"-1":
        return line + bytes(stream.read(int(size) + 2))
    return line + b"".join(_reply(stream) for _ in range(int(size))) if kind == b"*" else line


def _connected(server: EmbeddedServer) -> socket.socket:
    if server.port:
        return socket.create_connection(("127.0.0.1", server.port))
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(f"{server.folder}/server.sock")
    except OSError:
        link.close()
        raise
    return link


def _join(
    client: socket.socket,
    server: socket.socket,
    change: Callable[[bytes], bytes] = bytes,
    change_sent: Callable[[bytes], bytes] = bytes,
) -> None:
    with server:
        back = threading.Thread(target=_pump, args=(server, client, change), daemon=True)
        back.start()
        _pump(client, server, change_sent)
        back.join()


def _pump(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes] = bytes) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(change(data))
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
