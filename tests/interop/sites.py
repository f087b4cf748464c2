"""Where both sides meet: a server or a cluster, and what can be seen there of who asks and tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.interop.redisson import Address
from tests.topologies.servers import Topology

HASTY_WATCHDOG = 2.0
"""The watchdogs' timeout on our alias "hasty", and of Java's clients at the address ``hasty``, in seconds."""

_OPTIONS = {"CACHE": "interop", "KEY_PREFIX": "", "FENCE_TTL": None}
_HASTY = {"WATCHDOG_TIMEOUT": HASTY_WATCHDOG, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}


class Site:
    """A running topology, as both sides reach it. ``client`` is the test's own."""

    def __init__(self, topology: Topology) -> None:
        self.client = topology.redis
        self.cluster = topology.name == "cluster"
        self.caches = {"interop": topology.cache}
        self.locks = {"default": _OPTIONS, "hasty": {**_OPTIONS, **_HASTY}}
        self.address = Address(tuple(f"redis://127.0.0.1:{server.port}" for server in topology.servers), self.cluster)
        self.hasty = self.address._replace(watchdog=int(HASTY_WATCHDOG * 1000))
        self._nodes = {server.port: server.client() for server in topology.servers}

    def empty(self) -> None:
        for node in self._nodes.values():
            node.flushall()

    def names(self) -> list[str]:
        """All keys there are."""
        return sorted(str(key) for node in self._nodes.values() for key in node.keys("*"))

    def start_counting(self) -> None:
        for node in self._nodes.values():
            node.config_resetstat()

    def tries(self) -> int:
        """How many scripts have run since the counting started."""
        stats = [node.info("commandstats") for node in self._nodes.values()]
        called = [each[name] for each in stats for name in ("cmdstat_eval", "cmdstat_evalsha") if name in each]
        return sum(stat["calls"] - stat["failed_calls"] for stat in called)

    @contextmanager
    def overheard(self, channel: str) -> Iterator[list[str]]:
        """The payloads that are published while the block runs; they are there at its end.

        As Redisson does it, the verbs of a cluster are those of its sharded channels.
        """
        payloads: list[str] = []
        with self._node_of(channel).pubsub() as pubsub:
            (pubsub.ssubscribe if self.cluster else pubsub.subscribe)(channel)
            assert _next(pubsub)["type"] in {"subscribe", "ssubscribe"}
            yield payloads
            pubsub.ping()
            while (message := _next(pubsub))["type"] in {"message", "smessage"}:
                payloads.append(message["data"])

    def _node_of(self, key: str) -> Any:
        if not self.cluster:
            return next(iter(self._nodes.values()))
        return self._nodes[self.client.get_node_from_key(key).port]


def _next(pubsub: Any) -> dict[str, Any]:
    message = pubsub.get_message(timeout=20)
    assert message is not None, "nothing came"
    return message
