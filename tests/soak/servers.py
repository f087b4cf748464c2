"""The servers of a soak, started for it alone: one, a pair with a sentinel, five nodes; and what workers need to reach
them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from example_project.embedded import EmbeddedServer, ServerError, find_binary
from tests.proxy import Proxy
from tests.soak.grips import ONE, OPTIONS, PAIR, QUORUM
from tests.topologies.servers import Topology, command, primary_port, watched

NODES = 5
PROXIED = 2
"""How many of the nodes have a proxy before them."""
KEEPS_DATA = "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"
"""The kernel has every write that a server has acknowledged, so no SIGKILL loses it."""
PATIENCE = 60.0
"""Seconds that a server gets to come back: a machine may be busy."""
_LIBRARIES = "/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1"
_CACHE = "django_redis.cache.RedisCache"


def find_libfaketime() -> Path | None:
    """RLOCK_LIBFAKETIME, or where packages put it."""
    if named := os.environ.get("RLOCK_LIBFAKETIME"):
        return Path(named)
    return next((path for pattern in _LIBRARIES for path in Path("/").glob(pattern[1:])), None)


class Clock:
    """The wall clock of one server, which libfaketime sets; without that it goes with the machine's."""

    def __init__(self, folder: Path, name: str, library: Path | None) -> None:
        self.offset = 0.0
        self.is_ours = library is not None
        self.binary = find_binary()
        self._file = folder / f"{name}.clock"
        if library is not None:
            self._write()
            self.binary = str(self._wrapper(folder / f"{name}.sh", library))

    def set(self, offset: float, client: redis.Redis) -> None:
        """Set it a number of seconds before the machine's, and wait until the server sees that."""
        self.offset = offset
        self._write()
        give_up_at = time.monotonic() + PATIENCE
        while abs(_offset_of(client) - offset) > 0.1 and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{self.offset:+.3f}\n")
        new.rename(self._file)

    def _wrapper(self, path: Path, library: Path) -> Path:
        """A program that runs the server under this clock."""
        variables = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": self._file,
            "FAKETIME_NO_CACHE": 1,
            "FAKETIME_DONT_FAKE_MONOTONIC": 1,
            "FAKETIME_DISABLE_SHM": 1,
        }
        exports = " ".join(f"{name}={value}" for name, value in variables.items())
        path.write_text(f'#!/bin/sh\nexport {exports}\nexec {self.binary} "$@"\n')
        path.chmod(0o700)
        return path


def _offset_of(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6 - time.time())


class Single:
    """A server with a clock of its own, and perhaps a proxy before it."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, library: Path | None, proxied: bool) -> None:
        self.name = name
        self.clock = Clock(folder, name, library)
        self.server = stack.enter_context(EmbeddedServer(args=KEEPS_DATA, binary=self.clock.binary))
        self.proxy = stack.enter_context(_proxy(self.server, folder / f"{name}-proxy")) if proxied else None

    def client(self) -> redis.Redis:
        """A new client, past the proxy."""
        return self.server.client(socket_timeout=PATIENCE)

    def url(self, past_proxy: bool) -> str:
        return self.server.url if past_proxy or self.proxy is None else self.proxy.url

    def crash(self, *, keep_data: bool) -> None:
        """End it by SIGKILL, and start it again."""
        self.server.kill()
        if not keep_data:
            shutil.rmtree(self.data, ignore_errors=True)
        start(self.server)

    @property
    def data(self) -> Path:
        """Where it keeps its data."""
        return self.server.folder / "appendonlydir"


@contextlib.contextmanager
def _proxy(server: EmbeddedServer, folder: Path) -> Iterator[Proxy]:
    folder.mkdir()
    with Proxy(server.folder / "server.sock", folder) as proxy:
        yield proxy


class Servers:
    """All of them. ``folder`` is for their clocks and proxies."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.library = find_libfaketime()
        self.one = Single(stack, folder, ONE, self.library, proxied=True)
        self.nodes = [Single(stack, folder, f"node{n}", self.library, n < PROXIED) for n in range(NODES)]
        self.pair: Topology = stack.enter_context(watched())

    def settings(self, past_proxies: bool) -> dict[str, Any]:
        """For workers that go past the proxies, or through them."""
        nodes = [node.url(past_proxies) for node in self.nodes]
        return {
            "CACHES": {
                "default": {"BACKEND": _CACHE, "LOCATION": self.one.url(past_proxies)},
                PAIR: self.pair.cache,
            },
            "RLOCK": {
                ONE: {"CACHE": "default", **OPTIONS},
                PAIR: {"CACHE": PAIR, "REPLICA_ACKS": 0 if past_proxies else 1, **OPTIONS},
                QUORUM: {"NODES": nodes, **OPTIONS},
            },
        }

    def pair_now(self) -> list[str]:
        """What the pair and its sentinel say of each other, for workers that cannot take a lock there."""
        roles = [f"{server.port}: {command(server, 'ROLE')}" for server in self.pair.servers]
        return [f"sentinel: {primary_port(self.pair)}", *roles]

    def clients(self) -> dict[str, list[redis.Redis]]:
        """Clients of all servers that locks live on, by place."""
        return {
            ONE: [self.one.client()],
            PAIR: [server.client() for server in self.pair.servers],
            QUORUM: [node.client() for node in self.nodes],
        }


def start(server: EmbeddedServer) -> None:
    """Start it, however long that may take."""
    give_up_at = time.monotonic() + PATIENCE
    while True:
        try:
            return server.start()
        except ServerError:
            if time.monotonic() > give_up_at:
                raise
            server.kill()
