"""Calls that a background thread sends until they succeed: undoing attempts that were given up, and late releases.

They are sent together, many in a round. If a call undoes a command that may still be under way, or of which a copy may
be, it is sent again at growing intervals, until a lease taken by such a copy would have expired. So a command that
arrives late by some time is undone within about that time, or its lease has expired by itself.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections import deque
from typing import NamedTuple

from redis.exceptions import ClusterCrossSlotError

from django_rlock.callbacks import log
from django_rlock.clock import monotonic
from django_rlock.connections import servers_of
from django_rlock.drivers.base import run_sync
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.room import background_driver
from django_rlock.drivers.worker import BackgroundWorker, add_job, worker

logger = logging.getLogger("django_rlock.cleaning")

AGAIN_AFTER = 1.0
"""The delay before a command that may be executed late is undone a second time, in seconds; each further delay is
twice the one before."""
MOST = 10_000
"""The maximum number of waiting calls; beyond it, those whose leases expire first are dropped."""
_RETRY = 0.5
_AT_ONCE = 500


class CleanUp(NamedTuple):
    """A call to send until the monotonic time ``until``.

    ``gap`` is the number of seconds after which it is sent again even though it succeeded (0: never); each time the
    gap doubles, until ``until``.
    """

    call: ScriptCall
    until: float
    gap: float = 0.0


class CleanUps:
    """The calls that a background worker still has to send."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self._using = worker.using
        self.inbox: deque[CleanUp] = deque()
        self._due: list[tuple[float, int, CleanUp]] = []
        self._numbers = itertools.count()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to send."""
        return not self.inbox and not self._due

    def clear(self) -> None:
        """Drop what is left, because its server is gone."""
        self.inbox.clear()
        self._due = []

    def round(self, now: float) -> float:
        self._take_in(now)
        due: list[CleanUp] = []
        while self._due and self._due[0][0] <= now and len(due) < _AT_ONCE:
            due.append(heapq.heappop(self._due)[2])
        if due:
            self._send(due)
        return self._due[0][0] if self._due else math.inf

    def _take_in(self, at: float) -> None:
        while self.inbox:
            self._plan(self.inbox.popleft(), at)
        if len(self._due) > MOST:
            self._due.sort(key=lambda entry: entry[2].until, reverse=True)
            log(logger, logging.WARNING, "Gave up on cleaning up %d calls of %r.", len(self._due) - MOST, self._using)
            del self._due[MOST:]
            heapq.heapify(self._due)

    def _plan(self, clean_up: CleanUp, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), clean_up))

    def _send(self, due: list[CleanUp]) -> None:
        replies = run_sync(background_driver(self._using).run_all([each.call for each in due]))
        now = monotonic()
        for each, reply in zip(due, replies, strict=True):
            if not isinstance(reply, Exception):
                if each.gap and now < each.until:
                    self._plan(each._replace(gap=2 * each.gap), now + each.gap)
            elif _is_refused(reply):
                log(logger, logging.DEBUG, "Nothing to clean up: %s", reply)
            elif now < each.until:
                self._plan(each, now + _RETRY)
            else:
                log(logger, logging.WARNING, "Gave up on cleaning up: %s", reply)

    def at_exit(self) -> None:
        self.round(math.inf)


def _is_refused(error: Exception) -> bool:
    """Whether a cluster refuses all calls for that name, and therefore refused the call that is to be undone."""
    return isinstance(error.__cause__, ClusterCrossSlotError)


class IdleLinks:
    """Closes the links of an alias that callers have not used for a while."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self._using = worker.using

    def round(self, now: float) -> float:
        return min((server.prune(now) for server in servers_of(self._using)), default=math.inf)

    def at_exit(self) -> None:
        """Nothing to do: the interpreter closes the links."""


def clean_up(using: str, call: ScriptCall, until: float, again: bool = False) -> None:
    """Let the background thread run a call until it succeeds or the monotonic time ``until`` has come.

    ``again`` repeats it until then even after success, for a command that may still be executed after it.
    """
    its = worker(using)
    its.jobs[CleanUps].inbox.append(CleanUp(call, until, AGAIN_AFTER if again else 0.0))
    its.ring()


add_job(CleanUps)
add_job(IdleLinks)
