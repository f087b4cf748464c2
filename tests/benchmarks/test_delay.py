"""The proxy that makes servers seem far away."""

import time

from benchmarks.delay import delayed
from benchmarks.quorum import connection
from example_project.embedded import EmbeddedServer


def test_a_round_trip_takes_longer() -> None:
    with (
        EmbeddedServer(port=0) as server,
        delayed([server.port or 0], 0.05) as (_, [port]),
        connection(f"redis://127.0.0.1:{port}/0") as client,
    ):
        for _ in range(3):
            started = time.monotonic()
            client.sendall(b"PING\r\n")
            assert client.recv(64) == b"+PONG\r\n"
            assert time.monotonic() - started >= 0.05
