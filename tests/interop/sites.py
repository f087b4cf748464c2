"""Where both sides meet: a server or a cluster, and what can be seen there of who listens, asks and tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from example_project.embedded import EmbeddedServer
from tests.interop.redisson import Address

HASTY_WATCHDOG = 2.0
"""The watchdogs' timeout on our alias "hasty", and of Java's clients at the address ``hasty``, in seconds."""

_OPTIONS = {"KEY_PREFIX": "", "CACHE": "interop", "FENCE_TTL": None}
_HASTY = {"WATCHDOG_TIMEOUT": HASTY_WATCHDOG, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}


class SingleServer:
    """One server, on a port: Java's clients know no unix sockets."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.client: Any = server.client()
        self.address = Address((server.url.removesuffix("/0"),))
        self.hasty = self.address._replace(watchdog=int(HASTY_WATCHDOG * 1000))
        self.cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        self.locks = {"default": _OPTIONS, "hasty": {**_OPTIONS, **_HASTY}}

    def empty(self) -> None:
        self.client.flushall()

    def names(self) -> list[str]:
        """All keys there are."""
        return sorted(self.client.keys())

    def start_counting(self) -> None:
        self.client.config_resetstat()

    def tries(self) -> int:
        """How many scripts have run since the counting started."""
        stats = self.client.info("commandstats")
        called = [stats[name] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats]
        return sum(stat["calls"] - stat["failed_calls"] for stat in called)

    @contextmanager
    def overheard(self, channel: str) -> Iterator[list[str]]:
        """The payloads that are published while the block runs; they are there at its end."""
        payloads: list[str] = []
        with self.client.pubsub() as pubsub:
            pubsub.subscribe(channel)
            assert _next(pubsub)["type"] == "subscribe"
            yield payloads
            pubsub.ping()
            while (message := _next(pubsub))["type"] == "message":
                payloads.append(message["data"])


def _next(pubsub: Any) -> dict[str, Any]:
    message = pubsub.get_message(timeout=20)
    assert message is not None, "nothing came"
    return message
