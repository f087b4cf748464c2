"""Sends tasks over few keys, and remembers what was sent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random
from typing import Any
from uuid import uuid4

import redis

from tests.campaign.plan import QUEUE, VISIBILITY, WATCHDOG_TIMEOUT
from tests.campaign.servers import Servers

KEYS = 5
PAUSE = 0.015
"""Seconds between two tasks, on average."""
MOST_WAITING = 100
"""Messages in the queue beyond which no more are sent: no worker gets through more."""
BRIEF = 0.03
"""Seconds that most tasks last at most."""
LONG = 1.5 * max(VISIBILITY, WATCHDOG_TIMEOUT)
"""How long few tasks take, in seconds: the broker delivers them again, and their leases are renewed."""


class Publisher:
    """``long`` is the share of long tasks, ``most`` how many are sent at most.

    ``sent`` has the ids of tasks that were certainly sent, ``refused`` counts what was not, by why.
    """

    def __init__(
        self, tasks: list[Any], servers: Servers, seed: str, over: threading.Event, long: float, most: float
    ) -> None:
        self._tasks = tasks
        self._broker = servers.broker
        self._chance = Random(f"{seed}/publisher")
        self._over = over
        self._long = long
        self._most = most
        self._thread = threading.Thread(target=self._go_on)
        self._results: list[Any] = []
        self.sent: dict[str, str] = {}
        self.refused: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for its end, after ``over`` was set."""
        self._thread.join()
        self._results.clear()  # a result that is deleted unsubscribes, which fails while the broker is down

    def _go_on(self) -> None:
        while not self._over.wait(self._chance.expovariate(1 / PAUSE)):
            if len(self.sent) >= self._most:
                return
            if self._waiting() < MOST_WAITING:
                self._send()
            else:
                self._over.wait(10 * PAUSE)

    def _waiting(self) -> int:
        try:
            with self._broker.client() as client:
                return int(client.execute_command("EVAL", _LENGTH, 0, QUEUE))
        except redis.RedisError:
            return MOST_WAITING

    def _send(self) -> None:
        task = self._chance.choice(self._tasks)
        lasts = LONG if self._chance.random() < self._long else self._chance.uniform(0, BRIEF)
        key, task_id = f"key{self._chance.randrange(KEYS)}", uuid4().hex
        try:
            result = task.apply_async([], {"key": key, "lasts": lasts}, task_id=task_id)
        except Exception as error:  # noqa: BLE001 - a library's word that it has a task like this already
            self.refused[type(error).__name__] += 1
        else:
            self._results.append(result)
            if result.id == task_id:
                self.sent[task_id] = f"{task.name} of {key}, {lasts:.2f} s, sent at {time.monotonic():.3f}"
            else:
                self.refused["another's result"] += 1


_LENGTH = "redis.call('select', 1) return redis.call('llen', ARGV[1])"
