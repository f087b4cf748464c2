"""Which nodes may vote: a node that has restarted, or lost its data, may have forgotten locks that are still held."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock.links.errors import server_error
from django_rlock.links.resp import ErrorReply


class NodeRestartedError(RedisError):
    """A node has lost data, and has no vote until the leases that it may have forgotten have expired."""


def run_id_in(info: Any) -> str:
    """A server's run id, from its reply to WHO_ARE_YOU. Raises what redis-py raises."""
    if isinstance(info, ErrorReply):
        raise server_error(str(info))
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    run_id = re.search(r"run_id:(\w+)", text)
    if run_id is None:
        raise RedisConnectionError("The server does not report its run id.")
    return run_id[1]


WHO_ARE_YOU = "INFO", "server"

UNMARKED = b"", math.inf


@dataclass(slots=True)
class _Seen:
    """A node's run id, and the mark of its data with the monotonic time at which this process first saw it."""

    run_id: str
    mark: tuple[bytes, float] = UNMARKED


class Restarts:
    """What this process knows of the data of an alias's nodes. Times are monotonic seconds.

    Each node has a mark among its data, which a grant returns. It is lost with the data. The first grant afterwards
    sets a new one, and the node has no vote for ``quarantine`` seconds, which is the longest lease (0: nodes that
    forget nothing). A process that has seen the same mark for so long, by its own clock, counts the node's votes
    again, and replaces the mark by the node's run id. From then on other processes count them too. A server that was
    restarted, or was a replica, may have an older state of the data: its run id is another, so the mark is not
    believed. No clock of a server matters.

    A server is identified once for each connection, which ends when the server does, so every reply on a connection
    comes from the same server. Therefore NODES must not name a proxy that puts another server behind an open
    connection.
    """

    def __init__(self, names: tuple[str, ...], quarantine: float, clock_drift: float) -> None:
        self._names = names
        self.quarantine = quarantine * (1 + clock_drift)  # the server's clock may be slow
        self._seen: dict[int, _Seen] = {}

    def meet(self, node: int, run_id: str) -> None:
        """Record the server that a new connection leads to.

        Raises ImproperlyConfigured when two names lead to the same server, which would vote twice.
        """
        seen = self._seen.get(node)
        if seen is None or seen.run_id != run_id:
            self._refuse_twins(node, run_id)
            self._seen[node] = _Seen(run_id)

    def doubt(self, node: int, mark: bytes, sent_at: float, now: float) -> Exception | None:
        """Why a vote does not count that came now from a node with this mark; None if it does. ``sent_at`` is when the
        node was asked."""
        seen = self._seen[node]
        if not self.quarantine or mark == seen.run_id.encode():
            return None
        if mark != seen.mark[0]:
            seen.mark = mark, now  # by one assignment, for other threads
        left = seen.mark[1] + self.quarantine - sent_at
        if left <= 0:
            return None
        return NodeRestartedError(f"it was emptied or has restarted, and gets no votes for another {left:.1f} s")

    def unknown_to_others(self, node: int, mark: bytes) -> str | None:
        """The run id that should replace the mark of a node whose vote counts; None if it already has."""
        run_id = self._seen[node].run_id
        return run_id if self.quarantine and mark != run_id.encode() else None

    def _refuse_twins(self, node: int, run_id: str) -> None:
        for other, seen in self._seen.copy().items():
            if other != node and seen.run_id == run_id:
                raise ImproperlyConfigured(
                    f"{self._names[other]!r} and {self._names[node]!r} in NODES are one and the same server, which "
                    f"would vote twice. RedLock needs nodes that are independent of each other."
                )
