"""Drives the report of the test process by hand: its round takes the time as an argument."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_rlock._core.clock import monotonic
from django_rlock._monitoring import reporter
from django_rlock._redis import keys
from django_rlock._transport.identity import client_id
from django_rlock.inspection import lock_info
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import settle


class HandDriven(reporter.Reporter):
    """A reporter without a thread."""

    def _wake(self) -> None:
        pass


class Clock:
    """Runs the reporter's round at times that this process has not come to yet."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def publish_in(self, seconds: float) -> float:
        """Let a number of seconds pass and run the round; returns in how many seconds it wants to run again."""
        settle()  # background threads notify the reporter
        if not isinstance(reporter._reporter.value, HandDriven):  # settings have changed
            drive_by_hand()
        self.ahead += seconds
        now = monotonic() + self.ahead
        return reporter._reporter.value.round(now) - now


def drive_by_hand() -> None:
    """Begin as a process that has reported nothing."""
    reporter._reporter.value.stop()
    driven = reporter._reporter.value = HandDriven()
    items: list[reporter.Item] = [*HOLDS.snapshot(), *WAITS.snapshot()]
    for item in items:
        driven.notify(item)


def drive_by_thread() -> None:
    """Go on as usual."""
    reporter._reporter.value = reporter.Reporter()


@contextmanager
def pool_users() -> Iterator[set[int]]:
    """The threads that take a connection from one of redis-py's pools meanwhile."""
    users, get_connection = set[int](), redis.ConnectionPool.get_connection

    def get_connection_here(*args: Any, **kwargs: Any) -> Any:
        users.add(threading.get_ident())
        return get_connection(*args, **kwargs)

    with pytest.MonkeyPatch.context() as watching:
        watching.setattr(redis.ConnectionPool, "get_connection", get_connection_here)
        yield users


def report_of(client: Any) -> dict[str, Any]:
    """What this process has reported."""
    return dict(client.hgetall(report_key()))


def report_key() -> str:
    return keys.report_key(client_id())


@contextmanager
def commands(client: redis.Redis) -> Iterator[list[str]]:
    """The commands that clients sent to the server in the block, without those inside scripts."""
    seen: list[str] = []
    with client.monitor() as monitor:
        thread = threading.Thread(target=_listen, args=(monitor, seen))
        thread.start()
        client.echo("begin")
        yield seen
        client.echo("end")
        thread.join()
    start = seen.index("ECHO begin")
    # A connection that listens is looked after from time to time, also for what an earlier test heard on it.
    apart = "CLIENT SETINFO", "PING", "UNSUBSCRIBE", "SUBSCRIBE rlock_wake:stack:"
    seen[:] = [command for command in seen[start + 1 :] if not command.startswith(apart)]


def _listen(monitor: redis.client.Monitor, seen: list[str]) -> None:
    for entry in monitor.listen():
        if entry["client_type"] == "lua":
            continue
        if entry["command"] == "ECHO end":
            return
        seen.append(entry["command"])


def held(name: str, using: str = "default") -> Any:
    """The info of a lock that someone holds."""
    info = lock_info(name, using)
    assert info is not None
    return info
