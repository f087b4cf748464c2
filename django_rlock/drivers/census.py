"""Which nodes may vote: a node that has restarted may have forgotten locks that are still held."""

from __future__ import annotations

import re
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError


class NodeRestartedError(RedisError):
    """A node has restarted, and gets no votes until the leases that it may have forgotten have ended."""


def identity(info: bytes | str) -> tuple[str, int]:
    """A server's run id and its uptime in seconds, out of its reply to WHO_ARE_YOU."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    run_id, uptime = re.search(r"run_id:(\w+)", text), re.search(r"uptime_in_seconds:(\d+)", text)
    if run_id is None or uptime is None:
        raise RedisConnectionError("The server does not tell its run id.")
    return run_id[1], int(uptime[1])


WHO_ARE_YOU = "INFO", "server"


class _Seen(NamedTuple):
    run_id: str
    last: float
    votes_from: float


class Census:
    """The run ids of an alias's nodes, as this process saw them. Times are monotonic seconds.

    A node that starts anew has another run id, and gets no votes for ``quarantine`` seconds, which is the longest lease
    (0: nodes that forget nothing). When it started is told by its uptime, so a process that has never seen it knows as
    well; but not before it was last seen with its old run id, whatever its clock says.

    A server is asked once for each connection, which ends when it does: what a connection brings is the same server's
    as long as it lasts. So NODES must not name a proxy that puts another server behind an open connection.
    """

    def __init__(self, names: tuple[str, ...], quarantine: float, clock_drift: float) -> None:
        self._names = names
        # Uptimes are whole seconds, of a clock that may be fast.
        self.quarantine = quarantine and quarantine * (1 + clock_drift) + 1.0
        self._seen: dict[int, _Seen] = {}

    def meet(self, node: int, run_id: str, uptime: int, now: float) -> None:
        """Note the server that a new connection leads to.

        ImproperlyConfigured when two names lead to the same server, which would vote twice.
        """
        seen = self._seen.get(node)
        if seen is None or seen.run_id != run_id:
            self._refuse_twins(node, run_id)
            started = now - uptime
            if seen is not None:
                started = max(started, seen.last)
            seen = _Seen(run_id, now, started + self.quarantine)
        self._seen[node] = seen._replace(last=now)

    def doubt(self, node: int, now: float) -> Exception | None:
        """Why a vote that a node has just given does not count; None when it does."""
        seen = self._seen[node]
        self._seen[node] = seen._replace(last=now)
        left = seen.votes_from - now
        if not self.quarantine or left <= 0:
            return None
        return NodeRestartedError(f"it has restarted, and gets no votes for another {left:.1f} s")

    def _refuse_twins(self, node: int, run_id: str) -> None:
        for other, seen in self._seen.items():
            if other != node and seen.run_id == run_id:
                raise ImproperlyConfigured(
                    f"{self._names[other]!r} and {self._names[node]!r} in NODES are one and the same server, which "
                    f"would vote twice. RedLock needs nodes that are independent of each other."
                )
