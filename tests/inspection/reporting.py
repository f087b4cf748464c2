"""Drives the report of the test process by hand: its job takes the time as an argument."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from django_rlock import reports
from django_rlock.drivers.identity import client_id
from django_rlock.inspection import lock_info


class Clock:
    """Runs the report's job at times that this process has not come to yet."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def publish_in(self, seconds: float) -> float:
        """Let so many seconds pass and run the job; answers in how many seconds it wants to come again."""
        self.ahead += seconds
        now = time.monotonic() + self.ahead
        return reports.publish_reports(now) - now


def forget_reports() -> None:
    """Begin as a process that has reported nothing."""
    reports._publishers.clear()


def report_of(client: Any) -> dict[str, Any]:
    """What this process has told."""
    return dict(client.hgetall(report_key()))


def report_key() -> str:
    return reports.report_key(client_id())


@contextmanager
def commands(client: redis.Redis) -> Iterator[list[str]]:
    """The commands that clients sent to the server inside the block, without those inside scripts."""
    seen: list[str] = []
    with client.monitor() as monitor:
        thread = threading.Thread(target=_listen, args=(monitor, seen))
        thread.start()
        client.echo("begin")
        yield seen
        client.echo("end")
        thread.join()
    start = seen.index("ECHO begin")
    seen[:] = [command for command in seen[start + 1 :] if not command.startswith("CLIENT SETINFO")]


def _listen(monitor: redis.client.Monitor, seen: list[str]) -> None:
    for entry in monitor.listen():
        if entry["client_type"] == "lua":
            continue
        if entry["command"] == "ECHO end":
            return
        seen.append(entry["command"])


def held(name: str, using: str = "default") -> Any:
    """The info of a lock that somebody holds."""
    info = lock_info(name, using)
    assert info is not None
    return info
