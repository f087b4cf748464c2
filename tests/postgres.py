"""A PostgreSQL cluster of the tests' own, behind a unix socket that nobody else finds, and gone when we are.

with PostgresServer() as server:
    server.database  # an entry for DATABASES
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

START_TIMEOUT = 30.0
"""Seconds that the server gets to accept its first connection."""

# The end of file on standard input tells that the process which started us has ended, by SIGKILL too.
_UNTIL_TOLD = '"$@" </dev/null & read _; kill -INT $!; wait $!; rm -rf "$0"'
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "60"}


class PostgresUnavailableError(RuntimeError):
    """There is no PostgreSQL here that could be started; the text says why."""


def find_binaries() -> Path:
    """The folder of ``initdb`` and ``postgres``: the PATH's, pg_config's, or the newest below /usr/lib/postgresql."""
    folders = [Path(found).parent for found in [shutil.which("postgres")] if found]
    if shutil.which("pg_config"):
        told = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
        folders.append(Path(told.stdout.strip()))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresUnavailableError(
        "PostgreSQL's initdb and postgres are neither on the PATH nor in /usr/lib/postgresql."
    )


def _version(folder: Path) -> float:
    with suppress(ValueError):
        return float(folder.parent.name)
    return 0.0


class PostgresServer:
    """A server with an empty database. It runs as an ordinary user where we are root, since it refuses root.

    PostgresUnavailableError where there is none; RuntimeError when it does not start.
    """

    def __init__(self) -> None:
        self.binaries = find_binaries()
        self._user = _ordinary_user()
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="rlock-pg-"))

    @property
    def database(self) -> dict[str, Any]:
        user = self._user.pw_name if self._user else pwd.getpwuid(os.getuid()).pw_name
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": user,
            "HOST": str(self.folder),
        }

    def __enter__(self) -> Self:
        try:
            if self._user is not None:
                os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
            self._initialize()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate(b"stop\n")
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialize(self) -> None:
        command = [str(self.binaries / "initdb"), "--pgdata", str(self.folder / "data"), "--auth=trust", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, **self._as_user())
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr.strip() or done.stdout.strip()}")

    def _start(self) -> None:
        options = {**_FAST, "listen_addresses": "", "unix_socket_directories": str(self.folder)}
        postgres = [str(self.binaries / "postgres"), "-D", str(self.folder / "data")]
        for name, value in options.items():
            postgres += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _UNTIL_TOLD, str(self.folder), *postgres],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us
                **self._as_user(),
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        status = self.folder / "data" / "postmaster.pid"
        # Its eighth line, of fixed width, says how far the start has come.
        while not (status.exists() and b"\nready" in status.read_bytes()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {self._log()}")
            time.sleep(0.02)

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _ordinary_user() -> pwd.struct_passwd | None:
    """Who is to run the server; None for ourselves."""
    if os.getuid() != 0:
        return None
    for name in "postgres", "nobody":
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailableError("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody'.")
