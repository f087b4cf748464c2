"""Caches and clients of a project's own, made of those of Django's Redis backend."""

from __future__ import annotations

from typing import Any

import redis
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel


class Subclass(RedisCache):
    """Changes nothing about connections."""


class SharingClient(RedisCacheClient):
    """One pool for all threads."""

    pools: dict[int, Any] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pools = self.pools


class ShardingClient(RedisCacheClient):
    """Chooses the server by the key, which Django's documentation of the client offers."""

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        return _client(self, server=len(key) % 2)


class DatabasesClient(RedisCacheClient):
    """Spreads keys over databases of one server."""

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        return _client(self, server=0, db=sum(key.encode()) % 2)


def _client(asked: Any, server: int, **options: Any) -> redis.Redis:
    return redis.Redis.from_url(asked._servers[server], **{**asked._pool_options, **options})


class ClusterClient(RedisCacheClient):
    """Has a client of a cluster, which is not connected here."""

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        return RedisCluster.__new__(RedisCluster)


class SentinelClient(RedisCacheClient):
    """Asks a sentinel for the primary."""

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        return Sentinel([("127.0.0.1", 1)]).master_for("mymaster")


def _of(client: type[RedisCacheClient]) -> type[RedisCache]:
    class Cache(RedisCache):
        def __init__(self, server: Any, params: dict[str, Any]) -> None:
            super().__init__(server, params)
            self._class = client

    return Cache


Sharing, Sharding, Databases, Cluster, Sentinels = map(
    _of, [SharingClient, ShardingClient, DatabasesClient, ClusterClient, SentinelClient]
)
