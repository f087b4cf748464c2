"""Which nodes may vote: a node that has restarted may have forgotten locks that are still held."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock.links.errors import server_error
from django_rlock.links.resp import ErrorReply


class NodeRestartedError(RedisError):
    """A node has restarted, and has no vote until the leases that it may have forgotten have expired."""


def identity(info: Any) -> tuple[str, int]:
    """A server's run id and uptime in seconds, from its reply to WHO_ARE_YOU. Raises what redis-py raises."""
    if isinstance(info, ErrorReply):
        raise server_error(str(info))
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    run_id, uptime = re.search(r"run_id:(\w+)", text), re.search(r"uptime_in_seconds:(\d+)", text)
    if run_id is None or uptime is None:
        raise RedisConnectionError("The server does not report its run id.")
    return run_id[1], int(uptime[1])


WHO_ARE_YOU = "INFO", "server"


@dataclass(slots=True)
class _Seen:
    run_id: str
    last: float
    votes_from: float


class Restarts:
    """The run ids of an alias's nodes, as this process saw them. Times are monotonic seconds.

    A node that has restarted has another run id, and has no vote for ``quarantine`` seconds, which is the longest lease
    (0: nodes that forget nothing). Its uptime shows when it started, so a process that has never seen it before knows
    too. The start is never assumed to be before the node was last seen with its old run id, whatever its clock says.

    A server is identified once for each connection, which ends when the server does, so every reply on a connection
    comes from the same server. Therefore NODES must not name a proxy that puts another server behind an open
    connection.
    """

    def __init__(self, names: tuple[str, ...], quarantine: float, clock_drift: float) -> None:
        self._names = names
        # Uptimes are whole seconds, and the server's clock may be fast.
        self.quarantine = quarantine and quarantine * (1 + clock_drift) + 1.0
        self._seen: dict[int, _Seen] = {}

    def meet(self, node: int, run_id: str, uptime: int, now: float) -> None:
        """Record the server that a new connection leads to.

        Raises ImproperlyConfigured when two names lead to the same server, which would vote twice.
        """
        seen = self._seen.get(node)
        if seen is None or seen.run_id != run_id:
            self._refuse_twins(node, run_id)
            started = now - uptime
            if seen is not None:
                started = max(started, seen.last)
            seen = _Seen(run_id, now, started + self.quarantine)
        seen.last = now
        self._seen[node] = seen

    def doubt(self, node: int, now: float) -> Exception | None:
        """Why a vote just given by a node does not count; None if it does."""
        seen = self._seen[node]
        seen.last = now
        left = seen.votes_from - now
        if not self.quarantine or left <= 0:
            return None
        return NodeRestartedError(f"it has restarted, and gets no votes for another {left:.1f} s")

    def _refuse_twins(self, node: int, run_id: str) -> None:
        for other, seen in self._seen.copy().items():
            if other != node and seen.run_id == run_id:
                raise ImproperlyConfigured(
                    f"{self._names[other]!r} and {self._names[node]!r} in NODES are one and the same server, which "
                    f"would vote twice. RedLock needs nodes that are independent of each other."
                )
