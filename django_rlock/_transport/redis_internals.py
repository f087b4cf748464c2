"""All private names of redis-py, django-redis and Django's Redis backend that the package uses."""

from __future__ import annotations

import socket
from inspect import Parameter, signature
from typing import Any

import redis.cluster
from redis._parsers import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

_parse_error: Any = getattr(redis.cluster, "ClusterParser", BaseParser).parse_error  # the first until redis-py 6
_command = signature(redis.ConnectionPool.get_connection).parameters.get("command_name")
_WANTS_COMMAND = _command is not None and _command.default is Parameter.empty


def error_from(text: str) -> RedisError:
    """The exception that redis-py raises for the text of a server's error reply."""
    error: RedisError = _parse_error(text)
    return error


def take_socket(connection: Any) -> socket.socket:
    """Take the socket from a connection that redis-py has opened and logged in; the connection no longer has it."""
    sock, connection._sock = connection._sock, None  # noqa: SLF001
    if sock is None:
        raise RedisConnectionError("The connection was not set up completely.")
    # The connection's parser would read on from the socket, or close it when it is collected.
    connection._parser.on_disconnect()  # noqa: SLF001
    return sock  # type: ignore[no-any-return]


def connection_of(pool: Any) -> Any:
    """A connection of a pool; redis-py 5.2 wants to hear a command, which it does not use."""
    return pool.get_connection("") if _WANTS_COMMAND else pool.get_connection()


def primary_url(cache: Any) -> str:
    """The URL of a django-redis cache's primary."""
    url: str = cache.client._server[0]  # noqa: SLF001
    return url


def own_client(cache: Any) -> Any:
    """The client through which a cache of Django's own backend sends its commands."""
    return cache._cache  # noqa: SLF001
