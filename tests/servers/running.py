"""Servers as a project runs them: two processes over one port, and a client that may go away."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path

from example_project.processes import Process
from tests.eventually import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
LISTEN = Path(__file__).with_name("listen.py")
LONG = str(10 * round(PATIENCE))
"""A time limit of a server that no test is to meet, in seconds."""


@dataclass(frozen=True)
class Server:
    """How to start a server, and how it differs from others.

    ``command`` gets the listening socket as ``{fd}``. ``log`` is what its log says when a restart has begun, and for
    each process that has ended by it. ``speaks_asgi`` is whether its views are async, and cancelled when their client
    goes away. ``copies`` is how many processes have to be started for two that serve, ``lets_requests_end`` whether
    requests go on when a process is to end, ``runs_exit_hooks`` whether Python's run when it ends.
    """

    name: str
    package: str
    command: tuple[str, ...]
    log: tuple[str, str]
    speaks_asgi: bool = False
    copies: int = 1
    lets_requests_end: bool = True
    runs_exit_hooks: bool = True


def _gunicorn(worker: str, *options: str) -> Server:
    limits = ("--timeout", LONG, "--graceful-timeout", LONG, "--keep-alive", LONG)
    return Server(
        f"gunicorn-{worker}",
        "gevent" if worker == "gevent" else "gunicorn",
        (
            *("-m", "gunicorn", "--bind", "fd://{fd}", "--workers", "2", "--worker-class", worker, *limits),
            *(*options, "--no-control-socket", "tests.servers.project:wsgi"),
        ),
        log=("Handling signal: hup", "Worker exiting"),
    )


SERVERS = (
    _gunicorn("sync", "--preload"),
    _gunicorn("gthread", "--preload", "--threads", "4"),
    _gunicorn("gevent"),
    Server(
        "uvicorn",
        "uvicorn",
        (
            *("-m", "uvicorn", "--fd", "{fd}", "--workers", "2", "--timeout-worker-healthcheck", LONG),
            *("--timeout-keep-alive", LONG, "tests.servers.project:asgi"),
        ),
        log=("Received SIGHUP", "Finished server process"),
        speaks_asgi=True,
        runs_exit_hooks=False,
    ),
    Server(
        "daphne",
        "daphne",
        ("-m", "daphne", "--fd", "{fd}", "tests.servers.project:asgi"),
        log=("Killed", ""),
        speaks_asgi=True,
        copies=2,
        lets_requests_end=False,
    ),
    # Started by Python, it would find the environment's packages, but not after it has started itself anew.
    Server(
        "uwsgi",
        "pyuwsgi",
        (
            *("-c", "import pyuwsgi; pyuwsgi.run()", "--binary-path", sys.executable, "--http-socket", "fd://{fd}"),
            *("--master", "--processes", "2", "--enable-threads", "--die-on-term", "--need-app"),
            *("--module", "tests.servers.project:wsgi"),
        ),
        log=("gracefully killing workers", "buried after"),
    ),
)


class Site:
    """The project behind a server, until the end of the block."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._processes: list[Process] = []
        self._connections: list[HTTPConnection] = []
        self._numbers = count(1)
        self.port = 0

    def __enter__(self) -> Site:
        for _ in range(self.server.copies):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.stop()

    def _start(self) -> None:
        command = [sys.executable, str(LISTEN), str(self.port), sys.executable, *self.server.command]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "tests.servers.settings"}
        process = Process(f"{self.server.name}{next(self._numbers)}", command, self._folder, environ)
        self._processes.append(process)
        self.port = int(process.wait_until_ready())
        process.ready.unlink()

    @contextmanager
    def restarting(self, pid: int) -> Iterator[HTTPConnection]:
        """Restart it as it is done in production, or of two copies the one with this pid; wait for the end of that.

        Gives a connection for requests that come meanwhile.
        """
        with self._reloading() if self.server.copies == 1 else self._replacing(pid) as connection:
            yield connection

    @contextmanager
    def _reloading(self) -> Iterator[HTTPConnection]:
        (process,) = self._processes
        begun, ended = self.server.log
        until = process.log.read_text().count(ended) + 2
        self._signal(process, signal.SIGHUP, begun)
        yield self.connect()
        self.disconnect()
        eventually(lambda: process.log.read_text().count(ended) >= until, PATIENCE)

    @contextmanager
    def _replacing(self, pid: int) -> Iterator[HTTPConnection]:
        (process,) = [each for each in self._processes if each.pid == pid]
        other = self.elsewhere(pid)
        self._signal(process, signal.SIGTERM, self.server.log[0])
        yield other
        self.disconnect()
        assert process.ends_within(PATIENCE)
        process.stop()
        self._processes.remove(process)
        self._start()

    def _signal(self, process: Process, number: int, begun: str) -> None:
        """Send a signal, and wait until the log says that it was heard."""
        before = process.log.read_text().count(begun)
        os.kill(process.pid, number)
        eventually(lambda: process.log.read_text().count(begun) > before, PATIENCE)

    def log(self) -> str:
        return "\n".join(process.log.read_text(errors="replace") for process in self._processes)

    def connect(self) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self._connections.append(connection)
        return connection

    def disconnect(self) -> None:
        """Close what clients have left open."""
        while self._connections:
            self._connections.pop().close()

    def begin(self, path: str, connection: HTTPConnection | None = None) -> HTTPConnection:
        """A request whose response is still to be read, over a new connection unless one is given."""
        connection = connection or self.connect()
        connection.request("GET", path)
        return connection

    def get(self, path: str, connection: HTTPConnection | None = None) -> str:
        return finish(self.begin(path, connection))

    def elsewhere(self, pid: int) -> HTTPConnection:
        """A connection to another process than this."""

        def found() -> HTTPConnection | None:
            connection = self.connect()
            if int(self.get("/pid/", connection)) != pid:
                return connection
            return None

        return eventually(found, PATIENCE)


def finish(connection: HTTPConnection) -> str:
    """The body of a response that is fine."""
    response = connection.getresponse()
    body = response.read().decode()
    assert response.status == 200, body
    return body
