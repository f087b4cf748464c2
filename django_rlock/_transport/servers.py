"""From an alias to connections: how to reach its server, or a node of its cluster, according to its entry in CACHES.

The entry's own backend makes a pool from it, through django-redis's factory or the client of Django's RedisCache. So
every option keeps its meaning: TLS, sentinels, credential providers, unix sockets, the project's own classes. Locks use
that pool's way to connect, but have separate connections (``pool``); neither CLOSE_CONNECTION nor a cache that is
out of connections affects them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, cast

import redis
import redis.sentinel
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from django_rlock._core.foreign import is_test, own_client, primary_url, server_error
from django_rlock._core.process import Owned, owned_table, remembered
from django_rlock._core.redis_py import (
    OF_ONE_POOL,
    UNSET_TIMEOUT,
    ClosingPool,
    database_named,
    limits,
    refuse_unusable,
    without,
)
from django_rlock._core.text import redacted
from django_rlock._core.threads import snapshot
from django_rlock._transport.cluster import ASK_WITHIN, Address, ClusterClient, ClusterFactory, SlotMap
from django_rlock._transport.connection import Connection, ErrorReply
from django_rlock._transport.pool import Connect, Server, Source
from django_rlock.settings import (
    DEFAULT_ALIAS,
    EMBEDDED,
    MEMORY,
    NODE_MARK,
    get_settings,
    is_url,
    names_no_place,
    server_aliases,
    settings_of,
)

try:
    # Imported here, not when an entry names it: two threads that import parts of it at once can find it half loaded.
    import django_redis
    import django_redis.cache
    import django_redis.client
except ModuleNotFoundError:  # locks over Django's own cache do not need it
    django_redis = None

CONNECT_WITHIN = 4
"""How long callers wait for each reply of a RedLock's node while they connect, in node timeouts, but at least
SHORTEST_LIMIT."""

SHORTEST_LIMIT = 0.5
"""How long a background thread waits for a reply at least, in seconds, however short the leases are."""

REPORT_WITHIN = 1.0
"""How long a process report may take, in seconds, since reports to other servers wait meanwhile."""

SENTINEL_WITHIN = 0.5
"""How long one sentinel may take to name the primary, in seconds, before the next one is asked."""

SERVER_ERRORS = redis.RedisError, RedisClusterException, OSError
"""The errors of clients if a server is unreachable or refuses; a cluster without nodes does not raise a RedisError."""

PROBES = 32
"""How many keys are used to find out where a project's own client writes them."""

_CLUSTER_SLOTS = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"

Purpose = Literal["calls", "background", "listening", "reports"]
"""The use of a connection. Callers share the alias's MAX_CONNECTIONS; for the other purposes see ``SparingServer``."""


# --- clients ----------------------------------------------------------------------------------------------------------


class NoPlaceError(ImproperlyConfigured):
    """The project has not configured a server for its locks."""


def _disconnect(clients: dict[str, redis.Redis]) -> None:
    for each in snapshot(clients.values()):
        each.connection_pool.disconnect()


_clients: Owned[dict[str, redis.Redis]] = Owned("connections", dict, stop=_disconnect)


def get_client(using: str = DEFAULT_ALIAS) -> redis.Redis:
    """A client of an alias, for other commands than those of locks; django-redis's own, if that serves the entry.

    Raises ImproperlyConfigured as ``source`` does.
    """
    known = _clients.value.get(using)
    if known is not None:
        return known
    entry, pool = get_settings(using).cache, source(using).pool
    if needs_no_cache(using) or isinstance(_redis_cache(using), RedisCache):
        return _clients.value.setdefault(using, redis.Redis(connection_pool=pool))
    return cast("redis.Redis", django_redis.get_redis_connection(entry, write=True))


def node_client(using: str) -> redis.Redis:
    """A client of one node of an alias with NODES, with short time limits."""
    known = _clients.value.get(using)
    if known is not None:
        return known
    reached = _make_source(using)  # it has its own pool, so its options may be changed
    reached.pool.connection_kwargs.update(limits(reached.options, connect_within(using)))
    return _clients.value.setdefault(using, redis.Redis(connection_pool=reached.pool))


def clients_of(using: str, within: float) -> dict[str, redis.Redis]:
    """New clients of all servers that have an alias's locks, by the servers' names without passwords, to check each
    server's state. A reply may take ``within`` seconds, and nothing is retried.

    Raises ImproperlyConfigured as ``source`` does, and what redis-py raises if no node of a cluster replies.
    """
    cluster = None if get_settings(using).nodes else cluster_client(using)
    if cluster is not None:
        hurried = cluster.limited(partial(_limit, longest=within))
        return {address_of(client): client for client in hurried.primaries()}
    clients = {}
    for alias in server_aliases(using):
        pool = _make_source(alias).pool  # its own pool, so its options may be changed
        _limit(pool.connection_kwargs, longest=within)
        clients[redacted(get_settings(alias).cache)] = redis.Redis(connection_pool=pool)
    return clients


def _limit(options: dict[str, Any], longest: float) -> None:
    options.update(limits(options, longest), retry=Retry(NoBackoff(), 0))


def address_of(client: redis.Redis) -> str:
    """The address that a client connects to; behind sentinels, with the name by which they know it."""
    pool: Any = client.connection_pool
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        found = pool.master_address
        return f"{pool.service_name} at {found[0]}:{found[1]}" if found else str(pool.service_name)
    return database_named(pool.connection_kwargs)[0]


def _redis_cache(using: str) -> Any:
    """Make a cache object of the alias's entry. Django's own object is not used: it may be behind a mutex that an
    interrupted caller left locked.

    Raises ImproperlyConfigured if its client cannot be used for locks.
    """
    entry = get_settings(using).cache
    with _improperly_configured(using, entry):
        made: Any = caches.create_connection(entry)
        client = getattr(made, "client", None)
    if isinstance(made, RedisCache):
        return made
    if names_no_place(using):
        settings_of(using)  # raises if RLOCK has an option, such as a cache, in the place of an alias
        raise NoPlaceError(
            f"RLOCK[{using!r}] names no place for locks, and CACHES[{entry!r}] is {type(made).__name__}, which has no "
            f"Redis: no lock can be taken. Set RLOCK = {{{using!r}: {{'CACHE': …}}}} to an entry of CACHES with a "
            f"Redis; or, for development and one machine, {{'STORE': 'embedded'}}, with pip install "
            f"'django-rlock[embedded]'; or, for tests, {{'STORE': 'memory'}}, with pip install 'django-rlock[testing]'."
        )
    if not hasattr(client, "connection_factory"):
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{entry!r}], which has no Redis client of django-redis or of Django's own "
            f"({type(made).__name__}). Set its BACKEND to 'django_redis.cache.RedisCache' or "
            f"'django.core.cache.backends.redis.RedisCache', or name another CACHES alias in RLOCK[{using!r}]['CACHE']."
        )
    if django_redis is not None and isinstance(client, django_redis.client.ShardClient):
        _refuse_shards(using, client)
    return made


def _refuse_shards(using: str, client: Any) -> NoReturn:
    raise ImproperlyConfigured(
        f"RLOCK[{using!r}] uses CACHES[{get_settings(using).cache!r}], whose client is {type(client).__name__}: it "
        f"spreads keys over servers that know nothing of each other, and one lock would be on several. Name a cache on "
        f"one server in RLOCK[{using!r}]['CACHE'], or several servers in NODES for RedLock."
    )


@contextmanager
def _improperly_configured(using: str, entry: str) -> Iterator[None]:
    """Turn any error of the backend or redis-py about an entry into ImproperlyConfigured, without passwords."""
    try:
        yield
    except Exception as error:  # of classes that the entry names
        if isinstance(error, ImproperlyConfigured) and str(error).startswith("RLOCK["):
            raise
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{redacted(entry)!r}], from which no client can be made: "
            f"{redacted(str(error))} ({type(error).__name__}). Correct that entry."
        ) from None


@remembered("connections")
def cluster_client(using: str) -> ClusterClient | None:
    """The client of the alias's cluster; None if it is not a cluster."""
    if needs_no_cache(using):
        return None
    made = _redis_cache(using)
    if isinstance(made, RedisCache) or django_redis is None:
        return None
    with _improperly_configured(using, get_settings(using).cache):
        factory = made.client.connection_factory
        return factory.connect(primary_url(made)) if isinstance(factory, ClusterFactory) else None


@remembered("connections")
def is_cluster(using: str) -> bool:
    """Whether the alias is a Redis Cluster. An alias with NODES is not, and may have no cache."""
    return get_settings(using).nodes is None and cluster_client(using) is not None


@remembered("connections")
def slot_map(using: str) -> SlotMap:
    """Which node of the alias's cluster serves which slot."""
    return SlotMap(cast("ClusterClient", cluster_client(using)), partial(_ask_slots, using))


def _ask_slots(using: str, node: Address) -> Any:
    """Return a node's reply to CLUSTER SLOTS. Raises redis-py's errors."""
    reached = server(using, node)
    connection = reached.take(ASK_WITHIN, ASK_WITHIN)
    try:
        reply = connection.ask(_CLUSTER_SLOTS, ASK_WITHIN)
    except BaseException:
        connection.close()
        raise
    if isinstance(reply, ErrorReply):
        connection.close()
        raise server_error(str(reply))
    reached.give_back(connection)
    return reply


def check_entry(using: str) -> None:
    """Raise ImproperlyConfigured if an alias's CACHES entry, or a node's URL, is not usable; makes no connection."""
    cluster_client(using)
    source(using)


# --- servers ----------------------------------------------------------------------------------------------------------


@remembered("connections")
def source(using: str) -> Source:
    """How to connect to an alias's server.

    Raises ImproperlyConfigured if the entry has no Redis client that can be used for locks.
    """
    return _make_source(using)


def _make_source(using: str) -> Source:
    entry = get_settings(using).cache
    made = None if needs_no_cache(using) else _redis_cache(using)
    with _improperly_configured(using, entry):
        pool: Any
        if made is None:
            pool = _pool_without_cache(using)
        elif isinstance(made, RedisCache):
            pool = _like(_djangos_pool(using, own_client(made)))
        else:
            factory = made.client.connection_factory
            own = type(factory)(factory.options)  # with its own sentinels
            pool = own.get_connection_pool(own.make_connection_params(primary_url(made)))
        refuse_unusable(pool.connection_kwargs)
        _refuse_unusable_classes(using, entry, pool)
        if isinstance(pool, redis.sentinel.SentinelConnectionPool):
            _hurry(pool.sentinel_manager)
        found = Source(pool)
        pool.connection_class(**found.options)  # this makes no connection, and refuses unknown options
    return found


def _refuse_unusable_classes(using: str, entry: str, pool: Any) -> None:
    """Raise ImproperlyConfigured for classes of connections that cannot carry locks."""
    made = pool.connection_class
    if isinstance(pool, redis.sentinel.SentinelConnectionPool) and not issubclass(
        made, redis.sentinel.SentinelManagedConnection
    ):
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{entry!r}], whose LOCATION begins with rediss:// or unix://, which redis-py "
            f"does not take behind sentinels. Write 'redis://{pool.service_name}/0', and for TLS "
            f"OPTIONS['CONNECTION_POOL_KWARGS'] = {{'ssl': True}}."
        )
    if made.__module__.partition(".")[0] == "fakeredis":
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{entry!r}], whose connection class is fakeredis's "
            f"{made.__name__}: it opens no socket, and locks need one. In tests use "
            f"django_rlock.testing.override_locks() or the pytest fixture rlocks, which run fakeredis as a server."
        )


def needs_no_cache(using: str) -> bool:
    """Whether an alias has its own URL, or a store other than a cache."""
    return is_url(get_settings(using).cache) or _is_tested_without_redis(using)


def _place_in_memory(using: str) -> str | None:
    """The URL of the memory where the locks live; None if they live elsewhere."""
    named = get_settings(using).cache
    if named.startswith(MEMORY):
        return named
    return MEMORY if _is_tested_without_redis(using) else None


def _pool_without_cache(using: str) -> redis.ConnectionPool:
    options = get_settings(using)
    if place := _place_in_memory(using):
        return cast("redis.ConnectionPool", _memory().make_pool(place))
    if options.cache.startswith(EMBEDDED):
        return cast("redis.ConnectionPool", _embedded().make_pool(using, Path(str(options.folder)), options.idle_time))
    return redis.ConnectionPool.from_url(options.cache)


def _embedded() -> ModuleType:
    from django_rlock import _embedded

    return _embedded


def _memory() -> ModuleType:
    """The store in the process, which most processes never load."""
    from django_rlock import _memory

    return _memory


def _is_tested_without_redis(using: str) -> bool:
    """Whether this is a test of a project that names no place for its locks and has no Redis as its cache. Its locks
    stay in the process then, as its e-mails do.
    """
    return names_no_place(using) and is_test() and _memory().has_extra()


def _djangos_pool(using: str, client: Any) -> Any:
    """The pool through which the client of Django's own backend, or of a subclass, writes to the first server."""
    keys = range(1 if type(client) is RedisCacheClient else PROBES)  # a subclass may spread keys over its servers
    pools: list[Any] = [getattr(client.get_client(str(key), write=True), "connection_pool", None) for key in keys]
    if any(pool is None or isinstance(pool, redis.sentinel.SentinelConnectionPool) for pool in pools):
        raise ImproperlyConfigured(
            f"RLOCK[{using!r}] uses CACHES[{get_settings(using).cache!r}], a cluster or a server behind sentinels: "
            f"there locks need django-redis. Set its BACKEND to 'django_redis.cache.RedisCache', with the OPTIONS of "
            f"docs/topologies.md, or name another CACHES alias in RLOCK[{using!r}]['CACHE']."
        )
    if len({database_named(pool.connection_kwargs) for pool in pools}) > 1:
        _refuse_shards(using, client)
    return pools[0]


def _like(pool: Any, pool_class: type[redis.ConnectionPool] = redis.ConnectionPool) -> redis.ConnectionPool:
    """A pool of our own that connects like another one, which the cache's threads may share."""
    if type(pool).__module__.startswith("redis."):
        return pool_class(pool.connection_class, **without(OF_ONE_POOL, pool.connection_kwargs))
    own: redis.ConnectionPool = copy(pool)  # with the same options, which the project's class may renew
    own.reset()
    return own


def _hurry(manager: Any) -> None:
    """Make redis-py ask the next sentinel soon, since it tries an unreachable one ten times, for minutes; and close its
    connections to them, which it keeps open otherwise."""
    for sentinel in manager.sentinels:
        sentinel.connection_pool = _like(sentinel.connection_pool, ClosingPool)
        options = sentinel.connection_pool.connection_kwargs
        refuse_unusable(options, "a sentinel's")
        sentinel.set_retry(Retry(NoBackoff(), 0))
        for name in ("socket_timeout", "socket_connect_timeout"):
            options[name] = min(options.get(name) or UNSET_TIMEOUT, SENTINEL_WITHIN)


_Key = tuple[str, Address | None, Purpose]


def server(using: str, node: Address | None = None, purpose: Purpose = "calls") -> Server:
    """This process's connections to an alias's server, or to a node of its cluster. Errors as ``source``."""
    return _servers.value[using, node, purpose]


_when_closed: list[Callable[[str, Address | None], object]] = []


def when_closed(notify: Callable[[str, Address | None], object]) -> None:
    """Call a function with the alias, and the node of its cluster, whenever all connections to a server must be
    closed."""
    _when_closed.append(notify)


def _close_all(using: str, node: Address | None) -> None:
    """Close all connections to a server that has become a replica: it may leave them open, and refuses what they ask
    for.

    Threads find out by themselves that the connections they use at the moment are closed.
    """
    for (alias, address, _), each in snapshot(_servers.value.items()):
        if (alias, address) == (using, node):
            each.close_idle()
    for notify in _when_closed:
        notify(using, node)


def servers_of(using: str) -> list[Server]:
    """The servers to which callers of an alias, or of its nodes, have connections."""
    aliases = {using, *server_aliases(using)}
    return [each for (alias, _, _), each in snapshot(_servers.value.items()) if alias in aliases]


class SparingServer(Server):
    """A server for background work and reports. They use connections that callers have left idle, so that a process has
    few. If there is none, they do not wait, but open one beyond MAX_CONNECTIONS; ``shared`` are those not in use.
    """

    def __init__(self, callers: Server | None, shared: deque[Connection], connect: Connect, *options: Any) -> None:
        super().__init__(connect, *options)
        self._callers: Any = callers
        self.idle = shared

    def take_idle(self, now: float | None = None) -> Connection | None:
        return (self._callers and self._callers.take_idle(now)) or super().take_idle(now)

    def give_back(self, connection: Connection) -> None:
        (self._callers.give_back if connection.slot else super().give_back)(connection)

    def close_idle(self) -> None:
        super().close_idle()
        if self._callers:
            self._callers.close_idle()

    def prune(self, now: float, keep: int = 0) -> float:
        return super().prune(now, keep)


def _make_server(key: _Key) -> Server:
    using, node, purpose = key
    its = source(using) if node is None else Source(cast("ClusterClient", cluster_client(using)).make_pool(node))
    reached = its.within(_longest(using, purpose))
    # The server that an alias's store needs is started here, since that takes longer than a call may.
    if place := _place_in_memory(using):
        quarantine = get_settings(using).longest_lease if NODE_MARK in using else None
        _memory().start(place, quarantine)
    elif get_settings(using).cache.startswith(EMBEDDED):
        _embedded().start(reached.pool)
    max_connections = get_settings(using).max_connections if purpose == "calls" else None
    options = reached.connect, reached.reply_limit, max_connections, partial(_close_all, using, node)
    if purpose in {"calls", "listening"}:
        return Server(*options)
    callers = None if NODE_MARK in using else server(using, node)  # RedLock must identify the server first
    return SparingServer(callers, server(using, node, "background").idle if purpose == "reports" else deque(), *options)


_servers = owned_table("connections", _make_server, Server.close)


def _longest(using: str, purpose: Purpose) -> float | None:
    """How long connecting and a reply may take, in seconds; None: as the cache's entry says."""
    if purpose == "reports":
        return REPORT_WITHIN
    # Callers of a RedLock wait for a silent node no longer than connect_within(); connecting goes on beside them.
    return None if purpose == "calls" and NODE_MARK not in using else background_limit(using)


def connect_within(using: str) -> float:
    """How long a caller waits for each reply of a node of the alias while it connects, in seconds."""
    return max(CONNECT_WITHIN * get_settings(using).node_timeout, SHORTEST_LIMIT)


def background_limit(using: str) -> float:
    """How long a background thread waits for the alias's server, in seconds: short enough that leases do not end."""
    return max(get_settings(using).watchdog_timeout / 6, SHORTEST_LIMIT)
