"""A PostgreSQL cluster of its own, behind a unix socket that no one else finds, and gone when we are.

with PostgresServer() as server:
    server.database  # an entry for DATABASES
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.programs import Program, ProgramUnavailableError

_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def find_binaries() -> Path:
    """The folder of ``initdb`` and ``postgres``: the PATH's, pg_config's, or the newest below /usr/lib/postgresql."""
    folders = [Path(found).parent for found in [shutil.which("postgres")] if found]
    if shutil.which("pg_config"):
        told = subprocess.run(["pg_config", "--bindir"], capture_output=True, check=False, text=True)  # noqa: S607
        folders.append(Path(told.stdout.strip()))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise ProgramUnavailableError(
        "PostgreSQL's initdb and postgres are neither on the PATH nor in /usr/lib/postgresql."
    )


def _version(folder: Path) -> float:
    with suppress(ValueError):
        return float(folder.parent.name)
    return 0.0


class PostgresServer(Program):
    """A server with an empty database; it does not wait for the disk unless it is ``durable``.

    ProgramUnavailableError where there is none; RuntimeError when it does not start.
    """

    end_by = "INT"

    def __init__(self, *, durable: bool = False) -> None:
        self.binaries = find_binaries()
        self._options = {"max_connections": "60"} | ({} if durable else _FAST)
        super().__init__()

    @property
    def database(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": self.user_name,
            "HOST": str(self.folder),
        }

    def prepare(self) -> None:
        data = str(self.folder / "data")
        self.run(str(self.binaries / "initdb"), "--pgdata", data, "--auth=trust", "--no-sync")

    def command(self) -> list[str]:
        options = {**self._options, "listen_addresses": "", "unix_socket_directories": str(self.folder)}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), *settings]

    def is_ready(self) -> bool:
        """The eighth line of the status file, of fixed width, says how far the start has come."""
        status = self.folder / "data" / "postmaster.pid"
        return status.exists() and b"\nready" in status.read_bytes()
