"""How to connect to one server: by a pool of redis-py, whose class and options the project has chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from redis.exceptions import AuthenticationError
from redis.sentinel import MasterNotFoundError

from django_rlock.links.link import Link, Place, keep_alive
from django_rlock.redaction import hide_secrets, shown
from django_rlock.redis_internals import connection_of, take_socket

UNSET_TIMEOUT = 5.0
"""How long to wait for a reply if the cache sets no SOCKET_TIMEOUT, in seconds."""

OF_ONE_POOL = (
    # For RESP3 push messages, whose handling takes mutexes of redis-py's pools and of logging.
    "event_dispatcher",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "maintenance_notification_hash",
    "maintenance_state",
    "oss_cluster_maint_notifications_handler",
)
NOT_FOR_LINKS = (
    # The flows retry themselves, within their callers' time; redis-py's retries would only block a thread.
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    *OF_ONE_POOL,
)
OVERRIDES = {"protocol": 2, "health_check_interval": 0}
"""Options of links, whatever the entry says: replies as the scripts' readers expect them, and no PING beside a call."""

_LOGIN = "username", "password", "credential_provider"
_WANTS_NONE = "without any password configured"
"""The reply to AUTH of a server that wants no password."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source:
    """How to connect to one server. ``longest`` limits connecting and each reply, in seconds; None leaves the pool's
    limits.

    The pool's options are read for each link, as a pool may change them: it may renew a password.
    """

    pool: Any
    longest: float | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.options)})"

    @property
    def options(self) -> dict[str, Any]:
        """The options of a link's connection."""
        return self._for_links(self.pool.connection_kwargs)

    def _for_links(self, options: Mapping[str, Any]) -> dict[str, Any]:
        found = without(NOT_FOR_LINKS, options) | OVERRIDES
        return found if self.longest is None else found | limits(found, self.longest)

    @property
    def reply_limit(self) -> float:
        """How long a reply may take, in seconds."""
        return self.options.get("socket_timeout") or UNSET_TIMEOUT

    def within(self, longest: float) -> Source:
        """The same with limits: connecting, and each reply, may take at most ``longest`` seconds."""
        return Source(self.pool, longest)

    def connect(self, place: Place | None = None) -> Link:
        """Open a new link. Raises what redis-py raises."""
        try:
            return self._open(place, self._for_links)
        except AuthenticationError as error:
            if _WANTS_NONE not in str(error):
                raise
        # The server takes any password by HELLO, and so the cache works; it refuses AUTH, by which links log in.
        return self._open(place, lambda options: without(_LOGIN, self._for_links(options)))

    def _open(self, place: Place | None, prepare: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Link:
        connection = None
        try:
            connection = self._make(prepare)
            connection.connect()
            sock = take_socket(connection)
            if self.options.get("socket_keepalive", True) and not self.options.get("socket_keepalive_options"):
                keep_alive(sock)  # redis-py does so from version 8 on
            return Link(sock, place)
        except MasterNotFoundError:  # whose text lists the objects of redis-py
            asked = ", ".join(":".join(map(str, place)) for place in self._sentinels())
            raise MasterNotFoundError(f"No sentinel names the primary of {self.pool.service_name!r}: {asked}") from None
        except Exception as error:
            hide_secrets(error)  # redis-py 6.4 shows the sentinels' password where none of them replies
            raise
        finally:
            if connection is not None:
                connection.disconnect()

    def _sentinels(self) -> Iterator[tuple[object, object]]:
        for sentinel in self.pool.sentinel_manager.sentinels:
            options = sentinel.connection_pool.connection_kwargs
            yield options.get("host"), options.get("port")

    def _make(self, prepare: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
        if not _makes_its_own(self.pool):
            return self.pool.connection_class(**prepare(self.pool.connection_kwargs))
        # The project's class decides how to connect, as it does for the cache. The copy shares its options, but keeps
        # books of its own, since a link never returns to a pool.
        pool = copy(self.pool)
        pool.reset()
        pool.connection_class = _prepared(pool.connection_class, prepare)
        return connection_of(pool)


def _makes_its_own(pool: Any) -> bool:
    """Whether a project's class of pools makes connections in another way than redis-py's."""
    ways = type(pool).make_connection, type(pool).get_connection
    return not all(way.__module__.startswith("redis.") for way in ways)


def without(names: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def limits(options: Mapping[str, Any], longest: float) -> dict[str, float]:
    """The options that limit connecting and each reply to ``longest`` seconds, if they do not do so by less."""
    names = ["socket_timeout"] if "path" in options else ["socket_timeout", "socket_connect_timeout"]
    return {name: min(options.get(name) or UNSET_TIMEOUT, longest) for name in names}


def _prepared(base: type[Any], prepare: Callable[[Mapping[str, Any]], dict[str, Any]]) -> type[Any]:
    class Prepared(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**prepare(options))

    return Prepared
