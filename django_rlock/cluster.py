"""Redis Cluster for django-redis, which has no support of its own: a connection factory, and the map of slots.

    CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://10.0.0.1:6379",
            "OPTIONS": {"CONNECTION_FACTORY": "django_rlock.cluster.ConnectionFactory"},
        },
    }

``LOCATION`` is any node; ``OPTIONS["STARTUP_NODES"]``, a list of (host, port), names more to ask when that one is down.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import redis
from django_redis import pool
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisClusterException

Address = tuple[str, int]

SLOTS = 16384
ASK_WITHIN = 1.0
"""How long one node may take to tell the map of slots, in seconds."""
_DEFAULT_PORT = 6379


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    """The hash slot of a key or a sharded channel."""
    return key_slot(key.encode())


class ConnectionFactory(pool.ConnectionFactory):  # type: ignore[misc]  # django-redis is not typed
    """Gives django-redis one client of the cluster for each process, and locks a pool for each of its nodes."""

    _clients: dict[str, ClusterClient] = {}

    def connect(self, url: str) -> ClusterClient:
        params = self.make_connection_params(url)
        # Unlike its base class it tells caches with the same URL and different options apart.
        key = repr((params, self.options))
        return self._clients.get(key) or self._clients.setdefault(key, ClusterClient(self, params))

    def disconnect(self, connection: ClusterClient) -> None:
        connection.disconnect()


class ClusterClient:
    """redis-py's RedisCluster; it connects when it is first used, and anew in a forked child."""

    def __init__(self, factory: ConnectionFactory, params: dict[str, Any]) -> None:
        self._factory = factory
        self._params = params
        self._cluster: Any = None  # redis-py's cluster client is half typed
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected(), name)

    def mget(self, keys: Iterable[Any], *more: Any) -> list[Any]:
        """From all the nodes that the keys are on; not atomic."""
        return list(self._connected().mget_nonatomic(keys, *more))

    def primaries(self) -> list[redis.Redis]:
        """A client for each primary."""
        cluster = self._connected()
        return list(map(cluster.get_redis_connection, cluster.get_primaries()))

    @property
    def start(self) -> list[Address]:
        """The nodes that the settings name."""
        parts = urlsplit(self._params["url"])
        more = self._factory.options.get("STARTUP_NODES", ())
        return [(parts.hostname or "localhost", parts.port or _DEFAULT_PORT), *map(tuple, more)]

    def limited(self, limit: Callable[[dict[str, Any]], None]) -> ClusterClient:
        """A client beside this one, with options of its own for connections."""
        params = dict(self._params)
        limit(params)
        return ClusterClient(self._factory, params)

    def make_pool(self, address: Address) -> redis.ConnectionPool:
        """A new pool of connections to one node."""
        made: redis.ConnectionPool = self._factory.get_connection_pool(
            self._params | {"url": _url_at(self._params["url"], address)}
        )
        return made

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections to all nodes; those that are in use only if wanted."""
        if self._cluster is not None and self._pid == os.getpid():
            for node in self._cluster.get_nodes():
                if node.redis_connection is not None:
                    with contextlib.suppress(OSError):
                        node.redis_connection.connection_pool.disconnect(inuse_connections)

    def _connected(self) -> Any:
        if self._cluster is None or self._pid != os.getpid():
            try:
                self._cluster = self._connect()
            except RedisClusterException as error:  # which is no RedisError
                raise redis.ConnectionError(str(error)) from error
            self._pid = os.getpid()
        return self._cluster

    def _connect(self) -> Any:
        factory = self._factory
        options = {name: value for name, value in self._params.items() if name != "url"} | factory.pool_cls_kwargs
        return RedisCluster(
            url=self._params["url"],
            startup_nodes=list(itertools.starmap(ClusterNode, self.start)),
            **options | factory.redis_client_cls_kwargs,
        )


def _url_at(url: str, address: Address) -> str:
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    host, port = address
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return parts._replace(netloc=f"{user}@{place}" if user else place).geturl()


class SlotMap:
    """Which node serves which slot. One for each alias of a process; its nodes tell it, and their redirections."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes = list(client.start)
        self._mutex = threading.Lock()
        self.rounds = 0
        self.stale = True

    def owner(self, slot: int) -> Address:
        """The node that serves a slot as far as is known; where none is known, one that may tell."""
        return self._owners[slot] or self._nodes[0]

    def moved(self, slot: int, address: Address) -> None:
        """Learn from a redirection."""
        self._owners[slot] = address

    def doubt(self, address: Address) -> None:
        """Have the map asked for anew, since a node did not answer; of others first."""
        self._nodes = [*(node for node in self._nodes if node != address), address]
        self.stale = True

    def refresh(self, rounds: int | None = None) -> None:
        """Ask for the map, unless another thread just did. It stays as it is where no node answers.

        ``rounds`` is how often it had been asked for when this was wanted (None: now).
        """
        before = self.rounds if rounds is None else rounds
        with self._mutex:
            # Those who waited for one that heard nothing would not hear more, one after the other.
            if self.stale and self.rounds == before:
                self._ask_all()
                self.rounds += 1

    def _ask_all(self) -> None:
        give_up_at = time.monotonic() + 2 * ASK_WITHIN
        for node in list(self._nodes):
            if time.monotonic() < give_up_at and (ranges := self._ask(node)):
                self._learn(ranges)
                return

    def _ask(self, node: Address) -> list[tuple[int, int, Address]]:
        node_pool = self._client.make_pool(node)
        node_pool.connection_kwargs |= {"socket_timeout": ASK_WITHIN, "socket_connect_timeout": ASK_WITHIN}
        client: Any = redis.Redis(connection_pool=node_pool)
        try:
            reply = client.execute_command("CLUSTER SLOTS", NEVER_DECODE=True)
        except (redis.RedisError, OSError):
            return []
        finally:
            node_pool.disconnect()
        return [(start, end, _address(primary, node)) for start, end, primary, *_ in reply]

    def _learn(self, ranges: Sequence[tuple[int, int, Address]]) -> None:
        owners: list[Address | None] = [None] * SLOTS
        for start, end, address in ranges:
            owners[start : end + 1] = [address] * (end + 1 - start)
        self._owners = owners
        self._nodes = list(dict.fromkeys([*(address for _, _, address in ranges), *self._client.start]))
        self.stale = False


def _address(told: Sequence[Any], asked: Address) -> Address:
    # A node that does not know its own address means the one by which it was reached.
    host = told[0].decode() if told[0] else asked[0]
    return host, int(told[1])
