"""Private servers of all systems: on free ports or sockets, in temporary folders, gone when we are."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.postgres import PostgresServer
from benchmarks.programs import Program, ProgramUnavailableError
from example_project.embedded import EmbeddedServer, free_port


class Server(Protocol):
    """A server that runs. ``url`` is what its clients need."""

    @property
    def url(self) -> str: ...

    def kill(self) -> None: ...


class Postgres(PostgresServer):
    """With the settings that it has by default: a COMMIT that wrote anything waits for the disk."""

    def __init__(self) -> None:
        super().__init__(durable=True)

    @property
    def url(self) -> str:
        return f"host={self.folder} user={self.user_name} dbname=postgres"


class MariaDB(Program):
    """With the settings that it has by default, behind a unix socket."""

    def __init__(self) -> None:
        self._server, self._installer = _find("mariadbd"), _find("mariadb-install-db")
        super().__init__()

    @property
    def url(self) -> str:
        """The path of its socket; ``root`` has no password there."""
        return str(self.folder / "socket")

    def prepare(self) -> None:
        self.run(
            self._installer,
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def command(self) -> list[str]:
        data = f"--datadir={self.folder / 'data'}"
        return [self._server, "--no-defaults", data, f"--socket={self.url}", "--skip-networking"]

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(self.url) == 0


class ZooKeeper(Program):
    """One server, with the settings that Debian gives it."""

    CLASSES = Path("/usr/share/java/zookeeper.jar")

    def __init__(self) -> None:
        if not self.CLASSES.exists():
            raise ProgramUnavailableError(f"Debian's package zookeeper is not installed: there is no {self.CLASSES}.")
        self._java = _find("java")
        self._port = free_port()
        super().__init__()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self._port}"

    def prepare(self) -> None:
        lines = (
            "tickTime=2000",
            f"dataDir={self.folder / 'data'}",
            f"clientPort={self._port}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",  # all clients have one address here
            "admin.enableServer=false",  # it would listen on port 8080
        )
        (self.folder / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(self) -> list[str]:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [self._java, "-cp", str(self.CLASSES), main, str(self.folder / "zoo.cfg")]

    def is_ready(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0


def _find(program: str) -> str:
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if path is None:
        raise ProgramUnavailableError(f"There is no program {program}.")
    return path


def _valkey() -> EmbeddedServer:
    """It writes a log of its commands to the disk each second, as servers of locks should."""
    return EmbeddedServer(port=0, args=["--appendonly", "yes"])


PROGRAMS: dict[str, Callable[[], Any]] = {
    "Valkey": _valkey,
    "PostgreSQL": Postgres,
    "MariaDB": MariaDB,
    "ZooKeeper": ZooKeeper,
}


@dataclass
class Running:
    """The servers that run, and why others do not."""

    servers: dict[str, Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """What was skipped, and why."""
        return " ".join(f"{name} was skipped: {reason}" for name, reason in self.missing.items())


@contextmanager
def running() -> Iterator[Running]:
    """All servers that can be started here, for the time of the block."""
    found = Running()
    with ExitStack() as stack:
        for name, program in PROGRAMS.items():
            try:
                found.servers[name] = stack.enter_context(program())
            except ProgramUnavailableError as error:
                found.missing[name] = str(error)
        yield found
