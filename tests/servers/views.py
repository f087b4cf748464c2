"""What a test sees of the project's views, and how it lets them go on."""

from __future__ import annotations

from typing import Any, NamedTuple

import redis

from tests.eventually import PATIENCE


class Entry(NamedTuple):
    """Which process entered, and how many were inside with it."""

    pid: int
    inside: int


class Views:
    """The project's views with locks of this name; ``work`` and ``renewed`` are sync or async."""

    def __init__(self, client: redis.Redis, name: str, *, is_async: bool) -> None:
        self.client = client
        self.name = name
        self.sync_work = f"/job/{name}/"
        self.work = f"/ajob/{name}/" if is_async else self.sync_work
        self.renewed = f"/short{self.work}"
        self.forget = f"/forget/{name}/", f"/aforget/{name}/"
        self.keep = f"/keep/{name}/"
        self.key = f"rlock:stock:{name}"
        self.queue = f"rlock_queue:{{{self.key}}}"
        self.kept_key = f"rlock:kept:{name}"

    def entered(self) -> Entry:
        """The next one that entered."""
        return Entry(*map(int, self._next("entered").split()))

    def let_go(self) -> None:
        """Let one that is inside come to its end."""
        self.client.rpush(f"go:{self.name}", "on")

    def left(self) -> int:
        """The process of the next one that came to its end."""
        return int(self._next("left"))

    def waiting(self) -> int:
        """How many tickets the lock's queue has."""
        return int(self.client.zcard(self.queue))

    def lease(self) -> int:
        """What is left of the lease, in milliseconds."""
        return int(self.client.pttl(self.key))

    def is_free(self) -> bool:
        """Whether no one holds the lock or waits for it."""
        return not self.client.exists(self.key, self.queue)

    def is_kept(self) -> bool:
        """Whether a process still has the lock that is its own."""
        return bool(self.client.exists(self.kept_key))

    def _next(self, event: str) -> str:
        found: Any = self.client.blpop([f"{event}:{self.name}"], PATIENCE)
        assert found, f"none has {event} {self.name}"
        return str(found[1])
