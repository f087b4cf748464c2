"""Servers within this process that run the same scripts as Redis: fakeredis, reached by pairs of sockets.

They use the clock of the locks, also when a test fakes the time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import redis
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_rlock._core import process, threads
from django_rlock._core.clock import monotonic, wall_offset
from django_rlock._core.foreign import is_parallel_test_process
from django_rlock._core.process import Owned
from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import Script

logger = logging.getLogger("django_rlock.stores")

BEHAVES_LIKE = (7, 4)
"""The version of Redis whose commands fakeredis supports."""

_serving = threading.local()


class _ServersTime:
    """The module ``time`` for fakeredis. Threads of our servers get the clock of the locks; a project's own fakeredis
    gets the time that its tests freeze.
    """

    def __init__(self) -> None:
        self.ahead = wall_offset()

    def time(self) -> float:
        return monotonic() + self.ahead if hasattr(_serving, "here") else time.time()  # noqa: TID251

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


_time = _ServersTime()


def pass_time(seconds: float) -> None:
    """Advance the clock of all servers."""
    _time.ahead += seconds


class InProcessServer:
    """A server whose data is in this process. It is slower than Redis by as much as Python is slower than C, and wakes
    a waiter within about 20 ms.
    """

    def __init__(self) -> None:
        check_extra()
        _add_info()
        _set_clock()
        self._server = _make_server(
            ("127.0.0.1", 0), bind_and_activate=False, server_type="redis", server_version=BEHAVES_LIKE
        )
        self._server.daemon_threads = True
        self._numbers = itertools.count(1)
        self._load_scripts()

    def dial(self) -> socket.socket:
        """A connection that no other process can make."""
        ours, its = socket.socketpair()
        self._server.process_request(its, (f"thread {next(self._numbers)}", 0))
        return ours

    def _load_scripts(self) -> None:
        # fakeredis closes a connection after an error reply, such as the one for an unknown script.
        with self._client() as client:
            _load_scripts(client)

    def give_vote(self, quarantine: float) -> None:
        """Let the server vote as a node of RedLock: it has lost no lock."""
        with self._client() as client:
            run_id = _run_id(self._server.fake_server)
            kept_ms = math.ceil(1000 * quarantine)
            client.hset(keys.NODE_KEY, items=["mark", "?", "replication", run_id, "known", run_id, "kept", kept_ms])

    @contextlib.contextmanager
    def _client(self) -> Iterator[redis.Redis]:
        pool = redis.ConnectionPool(connection_class=partial(MemoryConnection, dial=self.dial))
        with contextlib.closing(redis.Redis(connection_pool=pool)) as client:
            yield client
        pool.disconnect()

    def flush(self) -> None:
        """Delete all its data."""
        server = self._server.fake_server
        with server.lock:
            for data in server.dbs.values():
                data.clear()


def _load_scripts(client: redis.Redis) -> None:
    for script in vars(scripts).values():
        if isinstance(script, Script):
            client.script_load(script.source)


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

    class FakeServer(TcpFakeServer):
        def process_request_thread(self, *args: Any) -> None:
            _serving.here = True
            super().process_request_thread(*args)

    return FakeServer(*args, **options)


def _set_clock() -> None:
    # list() makes a tuple of each item, and may collect garbage then; another thread may import a module meanwhile.
    for name, module in sys.modules.copy().items():
        if name.startswith("fakeredis.") and vars(module).get("time") is time:
            vars(module)["time"] = _time


def _run_id(server: object) -> str:
    return f"{id(server):x}"


def _add_info() -> None:
    """Add INFO, which fakeredis lacks, and by which RedLock identifies its nodes."""
    from fakeredis._commands import SUPPORTED_COMMANDS, command

    is_split = find_spec("fakeredis._socket")  # from 2.40 on
    FakeSocket = import_string(f"fakeredis.{'_socket.' if is_split else ''}_fakesocket.FakeSocket")  # noqa: N806

    def info(self: Any, *_sections: bytes) -> bytes:
        run_id = _run_id(self._server)
        return f"run_id:{run_id}\r\nmaster_replid:{run_id}\r\n".encode()

    if "info" not in SUPPORTED_COMMANDS:
        FakeSocket.info = command((), (bytes,))(info)


# --- the servers of this process -------------------------------------------------------------------------------------


class _Own:
    """The servers of this process by their URLs, each started on first use; a forked child has its own servers."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._unused: list[InProcessServer] = []
        self.servers: dict[str, InProcessServer] = {}

    def server(self, url: str) -> InProcessServer:
        return self.servers.get(url) or threads.run_in_thread(self._start, url)

    def _start(self, url: str) -> InProcessServer:
        with self._mutex:
            if url not in self.servers:
                self.servers[url] = self._unused.pop() if self._unused else _first_server()
            return self.servers[url]

    @contextlib.contextmanager
    def fresh(self) -> Iterator[None]:
        former, self.servers = self.servers, {}
        try:
            yield
        finally:
            used, self.servers = self.servers, former
            for server in used.values():  # to make a server and load its scripts takes longer than most tests
                server.flush()
                self._unused.append(server)


def _first_server() -> InProcessServer:
    if process.is_forked() and not is_parallel_test_process():
        logger.warning(
            "This process was forked, and keeps locks in its own memory: its parent and other processes do not see "
            "them. To share locks between processes, set STORE to 'embedded', or CACHE to a Redis, in RLOCK."
        )
    return InProcessServer()


_own = Owned("connections", _Own, outlives_settings=True)


def fresh() -> contextlib.AbstractContextManager[None]:
    """Use empty servers during the block, and the former ones afterwards."""
    return _own.value.fresh()


class MemoryConnection(redis.Connection):
    """A connection to a server of this process: a pair of sockets that no other process can reach."""

    def __init__(self, *, dial: Callable[[], socket.socket], **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._dial = dial

    def _connect(self) -> socket.socket:
        sock = self._dial()
        sock.settimeout(self.socket_timeout)
        return sock


def make_pool(url: str) -> redis.ConnectionPool:
    """A pool of connections to the server of a URL in this process. Raises ImproperlyConfigured without the extra."""
    check_extra()
    return redis.ConnectionPool(connection_class=MemoryConnection, dial=lambda: _own.value.server(url).dial())


def start(url: str, quarantine: float | None) -> None:
    """Start the server of a URL, which may take longer than a call may wait. With the QUARANTINE of its alias, it
    votes."""
    server = _own.value.server(url)
    if quarantine:
        server.give_vote(quarantine)
