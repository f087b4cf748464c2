"""A server within this process that runs the same scripts as Redis: fakeredis, on a port of 127.0.0.1 or on none.

Its clock is that of the locks, whatever a test makes of the time.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import redis
from django.core.exceptions import ImproperlyConfigured

from django_rlock import keys, scripts, threads
from django_rlock.clock import monotonic, wall_offset
from django_rlock.process import Owned
from django_rlock.scripts import Script

BEHAVES_LIKE = (7, 4)
"""The version of Redis whose commands it supports."""

_idle: list[InProcessServer] = []
_serving = threading.local()


class _ServersTime:
    """The module ``time`` for fakeredis. In the threads of our servers the clock of the locks goes on; a project's own
    fakeredis has the time that its tests freeze.
    """

    def __init__(self) -> None:
        self.ahead = wall_offset()

    def time(self) -> float:
        return monotonic() + self.ahead if hasattr(_serving, "here") else time.time()  # noqa: TID251

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


_time = _ServersTime()


def pass_time(seconds: float) -> None:
    """Set the clock of all servers forward."""
    _time.ahead += seconds


class InProcessServer:
    """Keeps its data in this process. It is slower than Redis by as much as Python is slower than C, and a waiter is
    woken within about 20 ms.
    """

    def __init__(self, *, listens: bool = True) -> None:
        check_extra()
        _add_info()
        _set_clock()
        self._server = _make_server(
            ("127.0.0.1", 0), bind_and_activate=listens, server_type="redis", server_version=BEHAVES_LIKE
        )
        self._server.daemon_threads = True
        self._numbers = itertools.count(1)
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0"
        if listens:
            threading.Thread(target=self._server.serve_forever, name="rlock-in-process-server", daemon=True).start()
        self._load_scripts()

    def dial(self) -> socket.socket:
        """A connection that no other process can make."""
        ours, its = socket.socketpair()
        self._server.process_request(its, (f"thread {next(self._numbers)}", 0))
        return ours

    def _load_scripts(self) -> None:
        # fakeredis closes a connection after an error reply, such as the one for an unknown script.
        sources = [script.source for script in vars(scripts).values() if isinstance(script, Script)]
        pool = redis.ConnectionPool(connection_class=partial(MemoryConnection, server=lambda: self))
        with contextlib.closing(redis.Redis(connection_pool=pool)) as client:
            for source in sources:
                client.script_load(source)
        pool.disconnect()

    def give_vote(self, quarantine: float) -> None:
        """Let it vote as a node of RedLock: it has forgotten no lock."""
        with redis.Redis.from_url(self.url) as client:
            client.set(keys.voter_key(quarantine), _run_id(self._server.fake_server))

    def forget(self) -> None:
        """Delete all its data."""
        server = self._server.fake_server
        with server.lock:
            for data in server.dbs.values():
                data.clear()


def has_extra() -> bool:
    """Whether fakeredis is installed, with Lua."""
    return find_spec("lupa") is not None and find_spec("fakeredis") is not None


def check_extra() -> None:
    """Raise ImproperlyConfigured unless the extra is installed."""
    if not has_extra():
        raise ImproperlyConfigured(
            "Locks in the test process need fakeredis with Lua: pip install 'django-rlock[testing]'."
        )


def _make_server(*args: Any, **options: Any) -> Any:
    from fakeredis import TcpFakeServer

    class Server(TcpFakeServer):
        def process_request_thread(self, *args: Any) -> None:
            _serving.here = True
            super().process_request_thread(*args)

    return Server(*args, **options)


def _set_clock() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("fakeredis.") and vars(module).get("time") is time:
            vars(module)["time"] = _time


def _run_id(server: object) -> str:
    return f"{id(server):x}"


def _add_info() -> None:
    """Add INFO, which fakeredis lacks, and by which RedLock identifies its nodes."""
    from fakeredis._commands import SUPPORTED_COMMANDS, command
    from fakeredis._socket._fakesocket import FakeSocket

    def info(self: Any, *_sections: bytes) -> bytes:
        return f"run_id:{_run_id(self._server)}\r\n".encode()

    if "info" not in SUPPORTED_COMMANDS:
        FakeSocket.info = command((), (bytes,))(info)  # type: ignore[attr-defined]


@contextlib.contextmanager
def servers(number: int) -> Iterator[list[InProcessServer]]:
    """A number of empty servers for exclusive use. They are started once and reused."""
    taken = [_idle.pop() if _idle else InProcessServer() for _ in range(number)]
    try:
        for server in taken:
            server.forget()
        yield taken
    finally:
        _idle.extend(taken)


# --- the store "memory" ----------------------------------------------------------------------------------------------


class _Own:
    """The server of this process, started when it is first needed; a forked child has another one."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._server: InProcessServer | None = None

    def server(self) -> InProcessServer:
        return self._server or threads.elsewhere(self._start)

    def _start(self) -> InProcessServer:
        with self._mutex:
            if self._server is None:
                self._server = InProcessServer(listens=False)
            return self._server


_own = Owned("connections", _Own, outlives_settings=True)


def _own_server() -> InProcessServer:
    return _own.value.server()


class MemoryConnection(redis.Connection):
    """A connection to a server of this process: a pair of sockets that no other process knows."""

    def __init__(self, *, server: Any = _own_server, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._find = server

    def _connect(self) -> socket.socket:
        sock: socket.socket = self._find().dial()
        sock.settimeout(self.socket_timeout)
        return sock


def make_pool() -> redis.ConnectionPool:
    """A pool of connections to this process's server. Raises ImproperlyConfigured without the extra."""
    check_extra()
    return redis.ConnectionPool(connection_class=MemoryConnection)


def start() -> None:
    """Start this process's server, which takes longer than a call may."""
    _own_server()
