"""From an alias to connections: django-redis's own pool for commands, and pools beside it for what lives longer.

django-redis may disconnect its pool at the end of a request (``CLOSE_CONNECTION``), in use or not. So the background
thread and the listener have a pool of their own, made by the same factory with the same parameters. django-redis has
no asyncio client; one is made for each running loop from the same parameters.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import redis
import redis.asyncio
import redis.asyncio.connection as aio
import redis.connection
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django_redis import get_redis_connection

from django_rlock.settings import DEFAULT_ALIAS, get_settings

UNSET_TIMEOUT = 5.0
"""How long to wait for a reply where the cache sets no SOCKET_TIMEOUT, in seconds."""

SHORTEST_LIMIT = 0.5
"""How long the background thread waits for a reply at least, in seconds, however short the leases are."""

_ASYNC_CLASSES: dict[type, type[aio.AbstractConnection]] = {
    redis.connection.Connection: aio.Connection,
    redis.connection.SSLConnection: aio.SSLConnection,
    redis.connection.UnixDomainSocketConnection: aio.UnixDomainSocketConnection,
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
_async_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, aio.ConnectionPool]] = WeakKeyDictionary()


def get_client(using: str = DEFAULT_ALIAS) -> redis.Redis:
    """django-redis's client of an alias, for commands other than lock scripts."""
    cache = get_settings(using).cache
    try:
        client = get_redis_connection(cache, write=True)
        client.connection_pool  # noqa: B018 - a client without one cannot carry locks
    except (NotImplementedError, AttributeError) as error:
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{cache!r}], which has no Redis client of django-redis "
            f"({type(caches[cache]).__name__}). Set its BACKEND to 'django_redis.cache.RedisCache', or name another "
            f"CACHES alias in RLOCK[{using!r}]['CACHE']."
        ) from error
    return cast("redis.Redis", client)


@cache
def command_pool(using: str) -> redis.ConnectionPool:
    """The alias's own pool, which it shares with the cache."""
    pool = get_client(using).connection_pool
    _shared_pools.add(pool)
    return pool


@cache
def background_pool(using: str) -> redis.ConnectionPool:
    """A pool beside the alias's, for the background thread and the listener."""
    get_client(using)  # refuses an alias without a Redis client
    cache: Any = caches[get_settings(using).cache]
    client, factory = cache.client, cache.client.connection_factory
    pool: redis.ConnectionPool = factory.get_connection_pool(
        factory.make_connection_params(client._server[0])  # noqa: SLF001 - the primary's URL
    )
    _limit(pool.connection_kwargs, max(get_settings(using).watchdog_timeout / 6, SHORTEST_LIMIT))
    return pool


def _limit(options: dict[str, Any], longest: float) -> None:
    """Keep a server that does not answer from stopping the background thread for longer than leases allow."""
    for name in ("socket_timeout", "socket_connect_timeout") if "host" in options else ("socket_timeout",):
        options[name] = min(options.get(name) or UNSET_TIMEOUT, longest)


def background_client(using: str = DEFAULT_ALIAS) -> redis.Redis:
    """A client on the background pool."""
    return redis.Redis(connection_pool=background_pool(using))


async def async_pool(using: str) -> aio.ConnectionPool:
    """The running loop's pool for an alias; closed when the loop shuts its async generators down."""
    loop = asyncio.get_running_loop()
    pools = _async_pools.get(loop)
    if pools is None:
        _drop_closed_loops()
        pools = _async_pools[loop] = {}
    if using not in pools:
        pools[using] = _make_async_pool(using)
        # asyncio.run(), asgiref and the ASGI servers close a loop's async generators before the loop itself.
        lifeline = _close_with_loop(pools[using])
        await anext(lifeline)
        pools[using].lifeline = lifeline  # type: ignore[attr-defined]
    return pools[using]


def _drop_closed_loops() -> None:
    # A pool's sockets refer to their loop, so the weak keys alone would not let it go. Other threads, whose loops come
    # and go too, may be here at the same time.
    for reference in _async_pools.keyrefs():
        loop = reference()
        if loop is not None and loop.is_closed():
            _async_pools.pop(loop, None)


async def _close_with_loop(pool: aio.ConnectionPool) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await pool.disconnect()


def _make_async_pool(using: str) -> aio.ConnectionPool:
    pool = command_pool(using)
    connection_class = _ASYNC_CLASSES.get(pool.connection_class)
    if connection_class is None:
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] connects with {pool.connection_class.__name__}, which has no asyncio twin here. "
            f"Use a redis://, rediss:// or unix:// LOCATION for locks in async code."
        )
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in _ASYNC_OPTIONS or name.startswith("ssl_")
    }
    # The driver limits each exchange as a whole.
    return aio.ConnectionPool(
        connection_class=connection_class, max_connections=pool.max_connections, socket_timeout=None, **options
    )


def reset() -> None:
    """Forget all pools: after a fork, where the sockets are the parent's, or when the settings change."""
    command_pool.cache_clear()
    background_pool.cache_clear()
    _async_pools.clear()


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        reset()


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
