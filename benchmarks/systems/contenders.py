"""The locks of all systems, behind one small interface. Each is made in the process that uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import psycopg
import pymysql
from django_redis import get_redis_connection
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import LockTimeout

from benchmarks import stage
from django_rlock import FairLock, RLock
from django_rlock.locks.base import BaseLock


class Terms(NamedTuple):
    """What a contender is made for: the server, the lock's name, and seconds.

    ``wait`` is how long it waits at most. A Redis lock is free ``lease`` seconds after its holder was last heard of, a
    ZooKeeper session ends after ``session`` seconds of silence; the databases have no such limit.
    """

    url: str
    name: str
    wait: float
    lease: float = 30.0
    session: float = 10.0


class Contender(Protocol):
    """A lock. ``take`` waits for ``Terms.wait`` at most and returns whether it was taken."""

    def take(self) -> bool: ...

    def give(self) -> None: ...

    def warned(self) -> bool:
        """Whether the client knows by itself that it may hold the lock no more, without asking the server."""


class Ours:
    def __init__(self, kind: type[BaseLock], terms: Terms) -> None:
        stage.use_server(terms.url)
        stage.set_leases(terms.lease)
        self._lock = kind(terms.name)
        self._wait = terms.wait

    def take(self) -> bool:
        return self._lock.acquire(wait_time=self._wait)

    def give(self) -> None:
        self._lock.release()

    def warned(self) -> bool:
        return self._lock.suspect or self._lock.lost


class RedisPy:
    def __init__(self, terms: Terms) -> None:
        stage.use_server(terms.url)
        self._lock = get_redis_connection().lock(terms.name, timeout=terms.lease)
        self._wait = terms.wait

    def take(self) -> bool:
        return bool(self._lock.acquire(blocking_timeout=self._wait))

    def give(self) -> None:
        self._lock.release()

    def warned(self) -> bool:
        return False


class _Postgres:
    """A connection that has set its limit once, as Django's ``OPTIONS`` do."""

    def __init__(self, terms: Terms, *, autocommit: bool) -> None:
        limit = f"-c lock_timeout={terms.wait * 1000:.0f}"
        self._connection = psycopg.connect(terms.url, options=limit, autocommit=autocommit)

    def warned(self) -> bool:
        return self._connection.closed


class PostgresRow(_Postgres):
    """``SELECT … FOR UPDATE`` until COMMIT."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms, autocommit=False)
        self._name = terms.name
        with suppress(psycopg.errors.UniqueViolation):  # two that make it at once
            self._connection.execute("CREATE TABLE IF NOT EXISTS stock (name text PRIMARY KEY)")
        self._connection.commit()
        self._connection.execute("INSERT INTO stock VALUES (%s) ON CONFLICT DO NOTHING", [terms.name])
        self._connection.commit()

    def take(self) -> bool:
        try:
            self._connection.execute("SELECT * FROM stock WHERE name = %s FOR UPDATE", [self._name])
        except psycopg.errors.LockNotAvailable:
            self._connection.rollback()
            return False
        return True

    def give(self) -> None:
        self._connection.commit()


class PostgresAdvisory(_Postgres):
    """``pg_advisory_lock``, which belongs to the session."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms, autocommit=True)
        self._number = [crc32(terms.name.encode())]

    def take(self) -> bool:
        try:
            self._connection.execute("SELECT pg_advisory_lock(%s)", self._number)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def give(self) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s)", self._number)


class _MariaDB:
    _WAITED_TOO_LONG = 1205

    def __init__(self, terms: Terms) -> None:
        limit = f"SET innodb_lock_wait_timeout = {max(1, round(terms.wait))}"
        self._connection = pymysql.connect(unix_socket=terms.url, user="root", autocommit=True, init_command=limit)
        self._cursor = self._connection.cursor()

    def warned(self) -> bool:
        return not self._connection.open


class MariaDBRow(_MariaDB):
    """``SELECT … FOR UPDATE`` until COMMIT."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._name = terms.name
        self._cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        self._cursor.execute("CREATE TABLE IF NOT EXISTS bench.stock (name varchar(100) PRIMARY KEY) ENGINE=InnoDB")
        self._cursor.execute("INSERT IGNORE INTO bench.stock VALUES (%s)", [terms.name])

    def take(self) -> bool:
        self._connection.begin()
        try:
            self._cursor.execute("SELECT * FROM bench.stock WHERE name = %s FOR UPDATE", [self._name])
        except pymysql.err.OperationalError as error:
            if error.args[0] != self._WAITED_TOO_LONG:
                raise
            self._connection.rollback()
            return False
        return True

    def give(self) -> None:
        self._connection.commit()


class MariaDBNamed(_MariaDB):
    """``GET_LOCK``, which belongs to the session."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._name, self._wait = terms.name, terms.wait

    def take(self) -> bool:
        self._cursor.execute("SELECT GET_LOCK(%s, %s)", [self._name, self._wait])
        return self._cursor.fetchone() == (1,)

    def give(self) -> None:
        self._cursor.execute("SELECT RELEASE_LOCK(%s)", [self._name])


class ZooKeeperLock:
    """kazoo's recipe, with a session of its own."""

    def __init__(self, terms: Terms) -> None:
        self._client = KazooClient(terms.url, timeout=terms.session)
        self._client.start()
        self._lock = self._client.Lock(f"/bench/{terms.name}")
        self._wait = terms.wait

    def take(self) -> bool:
        try:
            return bool(self._lock.acquire(timeout=self._wait))
        except LockTimeout:
            return False

    def give(self) -> None:
        self._lock.release()

    def warned(self) -> bool:
        return self._client.state != KazooState.CONNECTED


class System(NamedTuple):
    """``server`` is the key of its program in ``servers.PROGRAMS``."""

    server: str
    make: Callable[[Terms], Contender]


BASE = "redis-py"
SYSTEMS: dict[str, System] = {
    "FairLock": System("Valkey", partial(Ours, FairLock)),
    "RLock": System("Valkey", partial(Ours, RLock)),
    BASE: System("Valkey", RedisPy),
    "PostgreSQL, FOR UPDATE": System("PostgreSQL", PostgresRow),
    "PostgreSQL, advisory": System("PostgreSQL", PostgresAdvisory),
    "MariaDB, FOR UPDATE": System("MariaDB", MariaDBRow),
    "MariaDB, GET_LOCK": System("MariaDB", MariaDBNamed),
    "ZooKeeper, kazoo": System("ZooKeeper", ZooKeeperLock),
}


def make(system: str, url: str, **terms: Any) -> Contender:
    """A system's contender for its server; its lock has the system's name unless ``name`` is among the terms."""
    return SYSTEMS[system].make(Terms(url, **{"name": f"bench:{system}", **terms}))
