"""A RabbitMQ broker of the tests' own, on ports that are free, and gone when we are.

with RabbitServer() as server:
    server.url  # for Kombu
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from kombu import Connection

from example_project.embedded import free_port

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server itself: what is on the PATH would run it as the machine's service."""
START_TIMEOUT = 120.0
"""Seconds that the server gets to accept its first connection: it starts an Erlang machine."""

# The end of file on standard input tells that the process which started us has ended, by SIGKILL too. Each of the two
# leads a group of its own, so that what they start ends with them.
_UNTIL_TOLD = """
set -m
epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" & epmd=$!
"$@" </dev/null & server=$!
read _
kill -KILL -- -$server -$epmd
wait $server $epmd
rm -rf "$0"
"""


class RabbitUnavailableError(RuntimeError):
    """There is no RabbitMQ here; the text says where it is looked for."""


class RabbitServer:
    """A broker with the usual guest. RabbitUnavailableError where there is none; RuntimeError if it does not start."""

    def __init__(self) -> None:
        if not PROGRAM.exists():
            raise RabbitUnavailableError(f"Debian's rabbitmq-server is not installed: there is no {PROGRAM}.")
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="rlock-rabbit-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def __enter__(self) -> Self:
        try:
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

    def _start(self) -> None:
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", _UNTIL_TOLD, str(self.folder), str(PROGRAM)],
                cwd=self.folder,
                env={**os.environ, **self._environ()},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us
            )
        self._wait_until_ready()

    def _environ(self) -> dict[str, str]:
        places = "MNESIA_BASE", "LOG_BASE", "SCHEMA_DIR", "GENERATED_CONFIG_DIR"
        files = "CONFIG_FILE", "ADVANCED_CONFIG_FILE", "CONF_ENV_FILE", "ENABLED_PLUGINS_FILE", "PID_FILE"
        return {
            "HOME": str(self.folder),  # for Erlang's cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"rlock{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            **{f"RABBITMQ_{place}": str(self.folder / place.lower()) for place in places},
            **{f"RABBITMQ_{file}": str(self.folder / "none" / file.lower()) for file in files},
        }

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        give_up_at = time.monotonic() + START_TIMEOUT
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"RabbitMQ did not start: {(self.folder / 'output').read_text(errors='replace')}")
            time.sleep(0.1)

    def _accepts(self) -> bool:
        with Connection(self.url, connect_timeout=5) as connection:
            try:
                connection.connect()
            except connection.recoverable_connection_errors:
                return False
        return True
