"""A RabbitMQ broker of the tests' own, on ports that are free, and gone when we are.

with RabbitServer() as server:
    server.url  # for Kombu
"""

from __future__ import annotations

from pathlib import Path

from kombu import Connection

from benchmarks.programs import Program, ProgramUnavailableError
from example_project.embedded import free_port

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server itself: what is on the PATH would run it as the machine's service."""


class RabbitServer(Program):
    """A broker with the usual guest. ProgramUnavailableError where there is none; RuntimeError if it does not start."""

    # Each of the two leads a group of its own, so that what they start ends with them.
    until_told = """
    set -m
    exec 2>/dev/null
    shift
    epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" >/dev/null & epmd=$!
    "$@" </dev/null >log 2>&1 & server=$!
    echo $server
    read _
    kill -KILL -- -$server -$epmd
    wait $server $epmd
    rm -rf "$0"
    """
    start_timeout = 120.0  # it starts an Erlang machine

    def __init__(self) -> None:
        if not PROGRAM.exists():
            raise ProgramUnavailableError(f"Debian's rabbitmq-server is not installed: there is no {PROGRAM}.")
        self.port = free_port()
        super().__init__()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def command(self) -> list[str]:
        return [str(PROGRAM)]

    def environ(self) -> dict[str, str]:
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

    def is_ready(self) -> bool:
        with Connection(self.url, connect_timeout=5) as connection:
            try:
                connection.connect()
            except connection.recoverable_connection_errors:
                return False
        return True
