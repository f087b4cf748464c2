"""From an alias to connections: django-redis's own pool for commands, and pools beside it for what lives longer.

django-redis may disconnect its pool at the end of a request (``CLOSE_CONNECTION``), in use or not. So the background
thread and the listener have a pool of their own, made by the same factory with the same parameters. django-redis has
no asyncio client; one is made for each running loop from the same parameters. In a cluster there is a pool for each
node, which is named by its address.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import redis
import redis.asyncio
import redis.asyncio.connection as aio
import redis.asyncio.sentinel as aio_sentinel
import redis.connection
import redis.sentinel
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django_redis import get_redis_connection
from django_redis.pool import ConnectionFactory
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from django_rlock.cluster import Address, ClusterClient, SlotMap
from django_rlock.once import once
from django_rlock.settings import DEFAULT_ALIAS, NODE_MARK, get_settings, is_url

UNSET_TIMEOUT = 5.0
"""How long to wait for a reply where the cache sets no SOCKET_TIMEOUT, in seconds."""

CONNECT_WITHIN = 4
"""How long connecting to a node may take, in node timeouts."""

SHORTEST_LIMIT = 0.5
"""How long the background thread waits for a reply at least, in seconds, however short the leases are."""

SENTINEL_WITHIN = 0.5
"""How long one sentinel may take to name the primary, in seconds, before the next is asked."""

SERVER_ERRORS = redis.RedisError, RedisClusterException, OSError
"""What clients raise when a server cannot be asked or refuses; that of a cluster without a node is no RedisError."""

_ASYNC_CLASSES: dict[type, type[aio.AbstractConnection]] = {
    redis.connection.Connection: aio.Connection,
    redis.connection.SSLConnection: aio.SSLConnection,
    redis.connection.UnixDomainSocketConnection: aio.UnixDomainSocketConnection,
    redis.sentinel.SentinelManagedConnection: aio_sentinel.SentinelManagedConnection,
    redis.sentinel.SentinelManagedSSLConnection: aio_sentinel.SentinelManagedSSLConnection,
}
_ASYNC_OPTIONS = {
    "credential_provider",
    "client_name",
    "db",
    "health_check_interval",
    "host",
    "password",
    "path",
    "port",
    "protocol",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "username",
}

_shared_pools: WeakSet[redis.ConnectionPool] = WeakSet()
_own_pools: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
"""Pools and clients that no cache shares; they are closed when other settings take their place."""
PoolKey = tuple[str, Address | None]
"""An alias and, in a cluster, one of its nodes."""
_async_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[PoolKey, aio.ConnectionPool]] = WeakKeyDictionary()


def get_client(using: str = DEFAULT_ALIAS) -> redis.Redis:
    """django-redis's client of an alias, for commands other than lock scripts."""
    cache = get_settings(using).cache
    if is_url(cache):
        return cast("redis.Redis", ConnectionFactory({}).connect(cache))
    try:
        client = get_redis_connection(cache, write=True)
        if not isinstance(client, ClusterClient):
            client.connection_pool  # noqa: B018 - a client without one cannot carry locks
    except (NotImplementedError, AttributeError) as error:
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{cache!r}], which has no Redis client of django-redis "
            f"({type(caches[cache]).__name__}). Set its BACKEND to 'django_redis.cache.RedisCache', or name another "
            f"CACHES alias in RLOCK[{using!r}]['CACHE']."
        ) from error
    return cast("redis.Redis", client)


@once
def _cluster_client(using: str) -> ClusterClient | None:
    client: object = get_client(using)
    return client if isinstance(client, ClusterClient) else None


@once
def is_cluster(using: str) -> bool:
    """Whether the alias is a Redis Cluster."""
    return _cluster_client(using) is not None


@once
def slot_map(using: str) -> SlotMap:
    """Which node of the alias's cluster serves which slot."""
    return SlotMap(cast("ClusterClient", _cluster_client(using)))


@once
def command_pool(using: str, node: Address | None = None) -> redis.ConnectionPool:
    """The alias's own pool, which it shares with the cache; behind sentinels or in a cluster, locks' own."""
    pool = get_client(using).connection_pool if node is None else _node_pool(using, node)
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        pool = _pool_beside(using)
    _shared_pools.add(pool)
    return pool


@once
def background_pool(using: str, node: Address | None = None) -> redis.ConnectionPool:
    """A pool beside the alias's, for the background thread and the listener."""
    get_client(using)  # refuses an alias without a Redis client
    pool = _pool_beside(using) if node is None else _node_pool(using, node)
    _limit(pool.connection_kwargs, _longest_reply(using))
    return pool


@once
def node_pool(using: str) -> redis.ConnectionPool:
    """Locks' own pool for a node of an alias with NODES; a node that does not answer stops nobody for long."""
    get_client(using)  # refuses an alias without a Redis client
    pool = _pool_beside(using)
    _limit(pool.connection_kwargs, CONNECT_WITHIN * get_settings(using).node_timeout)
    _shared_pools.add(pool)
    return pool


def _pool_beside(using: str) -> redis.ConnectionPool:
    url = get_settings(using).cache
    factory: Any = ConnectionFactory({})
    if not is_url(url):
        cache: Any = caches[url]
        client = cache.client
        url, factory = client._server[0], client.connection_factory  # noqa: SLF001 - the primary's URL
        factory = type(factory)(factory.options)  # sentinels of its own
    pool: redis.ConnectionPool = factory.get_connection_pool(factory.make_connection_params(url))
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        _hurry(pool.sentinel_manager)
        _own_pools.update({sentinel.connection_pool: None for sentinel in pool.sentinel_manager.sentinels})
    _own_pools[pool] = None
    return pool


def _hurry(manager: Any) -> None:
    """Have the next sentinel asked soon: redis-py tries one that is down ten times, for minutes."""
    for sentinel in manager.sentinels:
        sentinel.set_retry(Retry(NoBackoff(), 0))
        _limit(sentinel.connection_pool.connection_kwargs, SENTINEL_WITHIN)


def _node_pool(using: str, node: Address) -> redis.ConnectionPool:
    pool = cast("ClusterClient", _cluster_client(using)).make_pool(node)
    _own_pools[pool] = None
    return pool


def _longest_reply(using: str) -> float:
    if NODE_MARK in using:
        return CONNECT_WITHIN * get_settings(using).node_timeout
    return max(get_settings(using).watchdog_timeout / 6, SHORTEST_LIMIT)


def _limit(options: dict[str, Any], longest: float) -> None:
    """Keep a server that does not answer from stopping the background thread for longer than leases allow."""
    for name in ("socket_timeout",) if "path" in options else ("socket_timeout", "socket_connect_timeout"):
        options[name] = min(options.get(name) or UNSET_TIMEOUT, longest)


@once
def background_client(using: str = DEFAULT_ALIAS) -> redis.Redis:
    """A client on the background pool, or one beside the cache's for a cluster."""
    cluster = _cluster_client(using)
    if cluster is None:
        return redis.Redis(connection_pool=background_pool(using))
    client = cluster.limited(lambda options: _limit(options, _longest_reply(using)))
    _own_pools[client] = None
    return cast("redis.Redis", client)


async def async_pool(key: PoolKey) -> aio.ConnectionPool:
    """The running loop's pool for an alias, or a node of it; closed when the loop shuts its async generators down."""
    loop = asyncio.get_running_loop()
    pools = _async_pools.get(loop)
    if pools is None:
        drop_closed_loops(_async_pools)
        pools = _async_pools[loop] = {}
    if key not in pools:
        pools[key] = _make_async_pool(*key)
        # asyncio.run(), asgiref and the ASGI servers close a loop's async generators before the loop itself.
        lifeline = _close_with_loop(pools[key])
        await anext(lifeline)
        pools[key].lifeline = lifeline  # type: ignore[attr-defined]
    return pools[key]


def drop_closed_loops(by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Any]) -> None:
    """Forget what belongs to loops that have been closed."""
    # Sockets refer to their loop, so the weak keys alone would not let it go. Other threads, whose loops come and go
    # too, may be here at the same time.
    for reference in by_loop.keyrefs():
        loop = reference()
        if loop is not None and loop.is_closed():
            by_loop.pop(loop, None)


async def _close_with_loop(pool: aio.ConnectionPool) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await pool.disconnect()
        if isinstance(pool, aio_sentinel.SentinelConnectionPool):
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.connection_pool.disconnect()


def _make_async_pool(using: str, node: Address | None) -> aio.ConnectionPool:
    pool = command_pool(using, node)
    if pool.connection_class not in _ASYNC_CLASSES:
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] connects with {pool.connection_class.__name__}, which has no asyncio twin here. "
            f"Use a redis://, rediss:// or unix:// LOCATION for locks in async code."
        )
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return aio_sentinel.SentinelConnectionPool(  # type: ignore[no-untyped-call]
            pool.service_name,
            _async_sentinel(pool.sentinel_manager),
            is_master=pool.is_master,
            check_connection=pool.check_connection,
            **_async_options(pool),
        )
    return aio.ConnectionPool(**_async_options(pool))


def _async_sentinel(manager: Any) -> aio_sentinel.Sentinel:
    twin = aio_sentinel.Sentinel([], min_other_sentinels=manager.min_other_sentinels)  # type: ignore[no-untyped-call]
    for sentinel in manager.sentinels:
        # The driver's limit is for all of them together.
        limits = {"socket_timeout": SENTINEL_WITHIN, "socket_connect_timeout": SENTINEL_WITHIN}
        pool = aio.ConnectionPool(**_async_options(sentinel.connection_pool) | limits)
        twin.sentinels.append(redis.asyncio.Redis(connection_pool=pool))
    return twin


def _async_options(pool: redis.ConnectionPool) -> dict[str, Any]:
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in _ASYNC_OPTIONS or name.startswith("ssl_")
    }
    return options | {
        "connection_class": _ASYNC_CLASSES[pool.connection_class],
        "max_connections": pool.max_connections,
        "socket_timeout": None,  # the driver limits each exchange as a whole
    }


def reset() -> None:
    """Forget all pools: after a fork, where the sockets are the parent's, or when the settings change."""
    for cached in (_cluster_client, is_cluster, slot_map, command_pool, node_pool, background_pool, background_client):
        cached.cache_clear()
    _async_pools.clear()


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        for pool in _own_pools.keyrefs():  # a list; threads make others meanwhile
            _close_idle(pool())
        reset()


def _close_idle(pool: Any) -> None:
    """Close what no thread is using at this moment."""
    if isinstance(pool, redis.BlockingConnectionPool):
        pool.disconnect()  # redis-py before 7 knows no difference here
    elif pool is not None:
        pool.disconnect(inuse_connections=False)


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.connections")


def _after_fork() -> None:
    for pool in _shared_pools:
        # redis-py makes its pool anew in a child, but takes these locks to do so, which another thread of the parent
        # may have held.
        for holder in (pool, getattr(pool, "_event_dispatcher", None)):
            if hasattr(holder, "_lock"):
                setattr(holder, "_lock", threading.RLock())  # noqa: B010 - of any type
    reset()


os.register_at_fork(after_in_child=_after_fork)
