"""The cluster client that the connection factory makes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException

from django_rlock.cluster.addresses import Address, NodeAddresses, startup_nodes, written
from django_rlock.cluster.slots import ASK_WITHIN

if TYPE_CHECKING:
    from django_rlock.cluster.factory import ConnectionFactory

_DEFAULT_PORT = 6379


class ClusterClient:
    """redis-py's RedisCluster; it connects on first use, and again in a forked child.

    Raises ImproperlyConfigured for options that are not addresses of nodes.
    """

    def __init__(self, factory: ConnectionFactory, params: dict[str, Any]) -> None:
        self._factory = factory
        self._params = params
        self._addresses = NodeAddresses(factory.options.get("NODE_ADDRESSES", {}))
        self.start = [_address_in(params["url"]), *startup_nodes(factory.options.get("STARTUP_NODES", ()))]
        """The nodes that the settings name."""
        self._clusters: dict[int, Any] = {}  # by process; redis-py's cluster client is half typed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected(), name)

    def mget(self, keys: Iterable[Any], *more: Any) -> list[Any]:
        """Read from all nodes that have the keys; not atomic."""
        return list(self._connected().mget_nonatomic(keys, *more))

    def primaries(self) -> list[redis.Redis]:
        """A client for each primary."""
        cluster = self._connected()
        return list(map(cluster.get_redis_connection, cluster.get_primaries()))

    def reached(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        """The address that reaches, from here, a node that ``asked`` announces as this host and port."""
        return self._addresses.reached(host, port, asked)

    def limited(self, limit: Callable[[dict[str, Any]], None]) -> ClusterClient:
        """A second client, whose connection options ``limit`` may change."""
        params = dict(self._params)
        limit(params)
        return ClusterClient(self._factory, params)

    def make_pool(self, address: Address) -> redis.ConnectionPool:
        """A new pool of connections to one node."""
        made: redis.ConnectionPool = self._factory.get_connection_pool(
            self._params | {"url": _url_at(self._params["url"], address)}
        )
        return made

    def ask_slots(self, address: Address) -> Sequence[Any]:
        """Send CLUSTER SLOTS to a node, over a connection of its own; see ``Ask``."""
        node_pool = self.make_pool(address)
        node_pool.connection_kwargs |= {"socket_timeout": ASK_WITHIN, "socket_connect_timeout": ASK_WITHIN}
        client: Any = redis.Redis(connection_pool=node_pool)
        try:
            return client.execute_command("CLUSTER SLOTS", NEVER_DECODE=True)  # type: ignore[no-any-return]
        finally:
            node_pool.disconnect()

    def disconnect(self) -> None:
        """Close open connections."""
        cluster = self._clusters.get(os.getpid())
        if cluster is not None:
            cluster.disconnect_connection_pools()

    def _connected(self) -> Any:
        return self._clusters.get(os.getpid()) or self._connected_first()

    def _connected_first(self) -> Any:
        """Threads that are the first to ask, at the same time, get the same one; another closes itself."""
        try:
            made = self._connect()
        except RedisClusterException as error:  # which is not a RedisError
            raise redis.ConnectionError(str(error)) from error
        return self._clusters.setdefault(os.getpid(), made)

    def _connect(self) -> Any:
        factory = self._factory
        options = {
            "startup_nodes": list(itertools.starmap(ClusterNode, self.start)),
            "address_remap": self._remap,
            # redis-py then reloads the map at each MOVED, and remaps it; otherwise it would follow MOVED unmapped.
            **({"reinitialize_steps": 1} if factory.options.get("NODE_ADDRESSES") else {}),
            **self._params,
            **factory.pool_cls_kwargs,
            **factory.redis_client_cls_kwargs,
        }
        return _MappedCluster(**options)

    def _remap(self, named: Address) -> Address:
        return self.reached(*named, self.start[0])  # redis-py does not say which node announced it


class _MappedCluster(RedisCluster):
    """Applies the address map to ASK redirections too."""

    def get_node(self, host: Any = None, port: Any = None, node_name: Any = None) -> Any:
        find: Any = super().get_node
        node = find(host, port, node_name)
        if node is None and node_name is not None:
            named, _, port = node_name.rpartition(":")
            node = find(*self.nodes_manager.remap_host_port(named, int(port)))
        return node


def _address_in(url: str) -> Address:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or _DEFAULT_PORT


def _url_at(url: str, address: Address) -> str:
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    place = written(address)
    return parts._replace(netloc=f"{user}@{place}" if user else place).geturl()
