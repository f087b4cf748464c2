"""What the package knows of redis-py and its caches: URLs, options, and how it makes connections."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from inspect import Parameter, signature
from traceback import walk_tb
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis.cluster
from django.core.cache.backends.redis import RedisCache
from django.utils.module_loading import import_string
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock._core import foreign
from django_rlock._core.text import shown

# --- URLs and options -------------------------------------------------------------------------------------------------

# Which URLs and options redis-py accepts, which ones a cache has, and which databases they name.

SCHEMES = "redis://", "rediss://", "unix://"
EXAMPLE = "redis://user:password@host:6379/0, with special characters of a password percent-encoded"
"""The form of a URL, for errors."""
_DATABASE = re.compile(r"/?[0-9]*/?")
_LONGEST_LIMIT = 24 * 86400
"""The longest time limit, in seconds: a socket counts milliseconds in 31 bits."""
_BACKENDS = "django_redis.", "django.core.cache.backends.redis."
_OWN_CONNECTIONS = {"CONNECTION_FACTORY", "CONNECTION_POOL_CLASS", "pool_class"}


def is_well_formed(url: str) -> bool:
    """Whether redis-py accepts the whole URL; redis-py itself ignores some mistakes, such as a database that is not a
    number."""
    try:
        options, parts = _named_by(url), urlsplit(url)
    except ValueError:
        return False
    if any(map(str.isspace, url.strip())) or parts.fragment or options.get("db", 0) < 0:
        return False
    if parts.scheme == "unix":
        return "path" in options
    return parts.port != 0 and _DATABASE.fullmatch(parts.path) is not None


def locations(cache: Mapping[str, Any]) -> Iterator[str]:
    """The parts of an entry of CACHES that redis-py treats as URLs."""
    location = cache.get("LOCATION")
    if isinstance(location, str):
        location = re.split("[;,]" if is_djangos(cache) else ",", location)
    if isinstance(location, list | tuple | set):
        yield from (url for url in location if isinstance(url, str) and (url.startswith(SCHEMES) or _is_usual(cache)))


def _is_usual(cache: Mapping[str, Any]) -> bool:
    """Whether redis-py makes the connections, so that schemes other than its own are an error."""
    is_own = bool(_OWN_CONNECTIONS & _mapping(cache.get("OPTIONS")).keys())
    return str(cache.get("BACKEND")).startswith(_BACKENDS) and not is_own


def is_djangos(cache: Mapping[str, Any]) -> bool:
    """Whether Django's own Redis backend, or a subclass, serves an entry; False if no such class can be imported."""
    try:
        backend = import_string(cache["BACKEND"])
    except Exception:  # noqa: BLE001 - from a module that the entry names; making the cache reports it
        return False
    return isinstance(backend, type) and issubclass(backend, RedisCache)


def databases(cache: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The databases that an entry's URLs and options name, in the form of ``database_named``."""
    options = _mapping(cache.get("OPTIONS"))
    given = options if is_djangos(cache) else _mapping(options.get("CONNECTION_POOL_KWARGS"))
    named = [{**given, **_named_by(url)} for url in locations(cache) if is_well_formed(url)]
    return set(map(database_named, named))


def primary_database(cache: Mapping[str, Any]) -> str | None:
    """The database of an entry's primary, equal for entries that reach the same one; None if that is not known."""
    options = _mapping(cache.get("OPTIONS"))
    url = next(locations(cache), "")
    if not url or not is_well_formed(url):
        return None
    given = options if is_djangos(cache) else _mapping(options.get("CONNECTION_POOL_KWARGS"))
    # Behind sentinels, a URL has the name of a service instead of an address; and a project's own class may connect
    # to anything.
    beside = [f"{key}={options[key]!r}" for key in sorted({"SENTINELS", *_OWN_CONNECTIONS} & options.keys())]
    if not _is_usual(cache):
        beside.append(str(cache.get("BACKEND")))
    return " ".join(["/".join(database_named({**given, **_named_by(url)})), *beside])


def database_at(url: str) -> str | None:
    """The same for a URL."""
    return "/".join(database_named(_named_by(url))) if url.startswith(SCHEMES) and is_well_formed(url) else None


def _named_by(url: str) -> Mapping[str, Any]:
    options: Mapping[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    return options


def database_named(options: Mapping[str, Any]) -> tuple[str, str]:
    """The database in redis-py's options for connections: its server's address or path, and its number."""
    server = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return str(server), str(options.get("db") or 0)


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    """The hash slot of a key or a sharded channel."""
    return key_slot(key.encode())


def refuse_unusable(options: Mapping[str, Any], owner: str = "its") -> None:
    """Raise ValueError for a value in redis-py's options for connections that it refuses only when it connects."""
    for name, (is_usable, wanted) in _CHECKED_OPTIONS.items():
        if name in options and not is_usable(options[name]):
            raise ValueError(f"{owner} {name} must be {wanted}, not {shown(options[name])}")


def _is_limit(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and 0 < cast("float", value) <= _LONGEST_LIMIT)


def _is_port(value: object) -> bool:
    return isinstance(value, int | str) and re.fullmatch(r"\d{1,5}", str(value)) is not None and 0 < int(value) < 65536


_LIMIT = _is_limit, "None or a number of seconds above 0, and of at most 24 days"
_CHECKED_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "host": (lambda value: value is None or isinstance(value, str), "a string"),
    "port": (_is_port, "a number from 1 to 65535"),
    "socket_timeout": _LIMIT,
    "socket_connect_timeout": _LIMIT,
}


_FILES = "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"


def unreadable_file(options: Mapping[str, Any]) -> OSError | None:
    """The error of the first file or folder in redis-py's options for TLS that cannot be read."""
    for path in filter(None, map(options.get, _FILES)):
        try:
            os.close(os.open(path, os.O_RDONLY))  # folders, too
        except OSError as error:
            return error
    return None


@contextmanager
def naming_files(options: Mapping[str, Any]) -> Iterator[None]:
    """Name the unreadable file in an error of the block, which connects: OpenSSL's errors do not."""
    try:
        yield
    except (OSError, RedisError):
        if unreadable := unreadable_file(options):
            raise RedisConnectionError(f"{unreadable.filename} cannot be read: {unreadable.strerror}") from unreadable
        raise


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- options of connections -------------------------------------------------------------------------------------------

# How options of the cache's connections become those of the locks' connections.

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
NOT_FOR_CONNECTIONS = (
    # The flows retry themselves, within their callers' time; redis-py's retries would only block a thread.
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    *OF_ONE_POOL,
)


def makes_its_own(pool: Any) -> bool:
    """Whether a project's class of pools makes connections in another way than redis-py's."""
    ways = type(pool).make_connection, type(pool).get_connection
    return not all(way.__module__.startswith("redis.") for way in ways)


def without(names: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def limits(options: Mapping[str, Any], longest: float) -> dict[str, float]:
    """The options that limit connecting and each reply to ``longest`` seconds, if they do not do so by less."""
    names = ["socket_timeout"] if "path" in options else ["socket_timeout", "socket_connect_timeout"]
    return {name: min(options.get(name) or UNSET_TIMEOUT, longest) for name in names}


# --- connections ------------------------------------------------------------------------------------------------------

# How redis-py's classes make connections, and what is noted or changed meanwhile.

_command = signature(redis.ConnectionPool.get_connection).parameters.get("command_name")
_WANTS_COMMAND = _command is not None and _command.default is Parameter.empty


@contextmanager
def noting_replies(note: Callable[[], object]) -> Iterator[None]:
    """Call ``note`` whenever the server or a sentinel has replied to the running thread, which connects and logs in.

    A sentinel that is silent has its own time limit, whose end counts as a reply, too.
    """
    former, _connecting.note = _connecting.note, note
    try:
        yield
    finally:
        _connecting.note = former


def _ignore() -> None: ...


class _Connecting(threading.local):
    """The thread that connects. Pools of redis-py and of projects choose by themselves which connections it opens."""

    note: Callable[[], object] = staticmethod(_ignore)

    def hear(self) -> None:
        """Note a reply."""
        self.note()


_connecting = _Connecting()


def noted(connection: Any) -> Any:
    """The connection, which from now on tells ``noting_replies`` of replies."""
    vars(connection).update(_noted_steps(connection, _connecting.hear))
    return connection


def unnoted(connection: Any) -> None:
    """Undo that: what is noted refers to the connection."""
    for name in _NOTED:
        vars(connection).pop(name, None)


_NOTED = "connect_to", foreign.TLS_STEP, "read_response"


def _noted_steps(connection: Any, note: Callable[[], object]) -> dict[str, Callable[..., Any]]:
    # An accepted TCP connection is not a reply: the kernel accepts it even if the server is stopped. Before TLS it
    # counts, because the handshake is the only step of redis-py with several round trips.
    calls = {
        "connect_to": (note, _ignore),  # the sentinels have been asked
        foreign.TLS_STEP: (note, note),
        "read_response": (_ignore, note),
    }
    steps = {name: getattr(connection, name) for name in _NOTED if hasattr(connection, name)}
    if foreign.TLS_STEP in steps:
        steps[foreign.TLS_STEP] = partial(_encrypted, steps[foreign.TLS_STEP])
    return {name: _noted(step, *calls[name]) for name, step in steps.items()}


def _encrypted(step: Callable[[socket.socket], socket.socket], sock: socket.socket) -> socket.socket:
    """Do the TLS handshake, and leave no socket open if that fails."""
    try:
        return step(sock)
    except BaseException as error:
        # The socket that ssl has made took the file from this one, which is all that redis-py closes. ssl before Python
        # 3.13 does not close its own if the server has left before the handshake; nor does redis-py if OCSP fails.
        for frame, _ in walk_tb(error.__traceback__):
            if (made := foreign.abandoned_socket(frame)) is not None:
                made.close()
        sock.close()
        raise


def _noted(step: Callable[..., Any], before: Callable[[], object], after: Callable[[], object]) -> Callable[..., Any]:
    def noted(*args: Any, **options: Any) -> Any:
        before()
        try:
            return step(*args, **options)
        finally:  # an error of the server is a reply, too: an older one knows no CLIENT SETINFO
            after()

    return noted


def connection_of(pool: Any) -> Any:
    """A connection of a pool; redis-py 5.2 wants to hear a command, which it does not use."""
    return pool.get_connection("") if _WANTS_COMMAND else pool.get_connection()


class ClosingPool(redis.ConnectionPool):
    """Closes each connection after its use, for clients that ask a question now and then, and that nobody closes."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        _connecting.hear()  # this sentinel's time begins
        return super().get_connection(*args, **options)

    def make_connection(self) -> Any:
        return noted(super().make_connection())

    def release(self, connection: Any) -> None:
        connection.disconnect()
        super().release(connection)


def prepared(base: type[Any], prepare: Callable[[Mapping[str, Any]], dict[str, Any]]) -> type[Any]:
    """The same class of connections, whose options ``prepare`` changes, and whose replies are noted."""

    class Prepared(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**prepare(options))
            noted(self)

    return Prepared


class MappedCluster(RedisCluster):
    """redis-py's client of a cluster, which also applies the address map to ASK redirections; and selects a database,
    of which Valkey's clusters may have several."""

    def __init__(self, url: str, db: int = 0, **options: Any) -> None:
        self._database = _named_by(url).get("db", db)
        if self._database:
            parts = urlsplit(url)
            named = [(name, value) for name, value in parse_qsl(parts.query) if name != "db"]
            url = parts._replace(path="", query=urlencode(named)).geturl()
        super().__init__(url=url, **options)

    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        if self._database:
            connection.send_command("SELECT", self._database)
            connection.read_response()

    def get_node(self, host: Any = None, port: Any = None, node_name: Any = None) -> Any:
        find: Any = super().get_node
        node = find(host, port, node_name)
        if node is None and node_name is not None:
            named, _, port = node_name.rpartition(":")
            node = find(*self.nodes_manager.remap_host_port(named, int(port)))
        return node
