"""The background thread of an alias, and the calls that it sends until they succeed."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ClusterCrossSlotError

from django_rlock._core import threads
from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.process import on_exit, owned_table
from django_rlock._transport.calls import ScriptCall, run_sync
from django_rlock._transport.registry import background_driver
from django_rlock._transport.servers import servers_of
from django_rlock.settings import get_settings

# --- the background thread --------------------------------------------------------------------------------------------

# The background thread of an alias. It runs the jobs that other modules register: renewal, heartbeats, clean-up.
#
# Each alias has its own thread, so an unreachable server delays no other alias. The thread sleeps while nothing is
# held or waited for. The acquire path calls ``wake_by`` to wake it, which costs one comparison if the thread will be
# awake in time anyway. The thread owns the state of its jobs; callers hand work over through deques.

T = TypeVar("T")

logger = logging.getLogger("django_rlock.worker")

SLOWEST_TICK = 0.5
"""The longest sleep between two rounds while there is work, in seconds."""
LATE = 1 / 6
"""A round that is later than this share of the lease is logged as an error."""
_HUNG = 1 / 2
"""A thread that is later than this share of the lease is abandoned and replaced by a new one."""
_IDLE_ROUNDS = 10
_COUNTED_FOR = 60.0
"""How long after a record of a late round further late rounds are only counted, in seconds."""


class BackgroundJob(Protocol):
    """A part of a background worker's round. One instance is made for each background worker."""

    def round(self, now: float) -> float:
        """Do what is due at the monotonic time ``now``; return when to run next (inf: not by itself)."""

    def at_exit(self) -> None:
        """Release the locks that must not outlive the process."""


_makers: list[Callable[[BackgroundWorker], BackgroundJob]] = []


def add_jobs(*makers: Callable[[BackgroundWorker], BackgroundJob]) -> None:
    """Register jobs of which each background worker makes one; they run in this order, after those added before."""
    _makers.extend(makers)


class BackgroundWorker:
    """The background thread of the alias ``using``, with its jobs by class."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.jobs: dict[Any, Any] = {make: make(self) for make in _makers}
        self.wakes_at = math.inf
        self.late_at = math.inf
        self._event = threads.AutoResetEvent()
        self._instance = threads.SingleInstance()
        self._runs = False
        self._finishing: threads.AutoResetEvent | None = None
        self._began = False
        self._stopped = False
        self._idle = 0
        self._counted_until = -math.inf
        self._counted: deque[float] = deque()

    # --- what callers do ---------------------------------------------------------------------------------------------

    def wake_by(self, due: float) -> None:
        """Make sure that a round begins no later than the monotonic time ``due``."""
        if due < self.wakes_at:
            self.wake()

    def wake(self) -> None:
        """Start a round now."""
        self._event.set()
        if not self._runs:
            self._start()

    def check(self, now: float, lease: float | None = None) -> None:
        """Called by acquire when a round is late: log that, and replace the thread if it has ended or hangs.

        ``lease`` says how late that is: how long the lock that was just taken is held unless a round prolongs it, in
        seconds (None: WATCHDOG_TIMEOUT).
        """
        late = now - self.wakes_at
        if lease is None:
            lease, _ = self._leases()
        if late < lease * LATE or self._stopped:
            return
        self.late_at = now + lease * LATE
        is_replaced = late >= lease * _HUNG or not self._runs
        self._note_late(late, now, is_replaced)
        if is_replaced:
            # A hanging thread that continues later sees that it was replaced, and ends.
            self._instance, self._runs = threads.SingleInstance(), False
            self._start()

    def _start(self) -> None:
        self._began = True
        try:
            threads.start(self._run, self._instance, name=f"rlock-worker-{self.using}")
        except RuntimeError as error:  # the interpreter ends, or the system has no thread left
            log(logger, logging.ERROR, "Locks of %r are not renewed, no thread can be started: %s", self.using, error)

    def stop(self) -> None:
        """End the thread, because the settings have changed."""
        self._stopped = True
        self._event.set()

    def finish(self) -> threads.AutoResetEvent:
        """Let the thread release what must not outlive the process; the returned event is set when that is done."""
        self._finishing = done = threads.AutoResetEvent()
        if self._began:
            self._event.set()
        else:
            done.set()
        return done

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self, instance: threads.SingleInstance) -> None:
        if not instance.enter():
            return  # another thread runs it
        self._runs = True
        try:
            while self._instance is instance and not self._stopped:
                try:
                    self._turn()
                except BaseException as error:  # noqa: BLE001 - nothing would be renewed any more
                    self._log_failure(error)
                    time.sleep(SLOWEST_TICK)
        finally:
            if self._instance is instance:  # the next acquire starts another thread
                self._runs = False
                instance.exit()
                self.late_at = self.wakes_at = math.inf

    def _turn(self) -> None:
        """One round, and the sleep after it."""
        self._event.clear()
        began = monotonic()
        late = began - self.wakes_at
        self._log_counted(began)
        if began > self.late_at and late > self._leases()[0] * LATE:
            self._note_late(late, began)
        # After some rounds without work the thread sleeps until it is needed. It does not do so at once, because locks
        # that are taken and released in quick succession would then wake it each time.
        may_sleep = self._idle >= _IDLE_ROUNDS
        latest = began + SLOWEST_TICK
        # Work that arrives after a job has looked sets the event, unless the promised next round is early enough.
        self._promise(math.inf if may_sleep else latest)
        due = self.round()
        self._idle = self._idle + 1 if due == math.inf else 0
        if not may_sleep or due < math.inf:
            due = min(due, latest)
        if self._counted:
            due = min(due, self._counted_until)
        self._promise(due)
        left = due - monotonic()
        # Even a sleep of no time would let all greenlets of a process run.
        if left > 0 and self._event.wait(None if left == math.inf else left):
            self._idle = 0

    def _promise(self, due: float) -> None:
        # Set the later time first: otherwise a caller could find the thread late because it promised an earlier round.
        self.late_at = due + min(self._leases()) * LATE
        self.wakes_at = due

    def _leases(self) -> tuple[float, float]:
        """How long locks are held unless a round prolongs them, in seconds: usually, and on a message's word."""
        try:
            options = get_settings(self.using)
        except ImproperlyConfigured:  # a test has taken the alias away
            return math.inf, math.inf
        return options.watchdog_timeout, options.claim_time

    def round(self) -> float:
        """Run all jobs; return when the next round should begin."""
        if self._finishing is not None:
            return self._finish(self._finishing)
        due = math.inf
        for job in self.jobs.values():
            try:
                due = min(due, job.round(monotonic()))
            except BaseException as error:  # noqa: BLE001 - SystemExit too: it would end the renewal of all locks
                self._log_failure(error)
                due = min(due, monotonic() + SLOWEST_TICK)
        return due

    def _finish(self, done: threads.AutoResetEvent) -> float:
        for job in self.jobs.values():
            try:
                job.at_exit()
            except Exception as error:  # noqa: BLE001 - no caller could handle it
                log(logger, logging.INFO, "Not cleaned up at exit: %s", error)
        done.set()
        self._finishing = None
        return math.inf

    def _note_late(self, late: float, now: float, is_replaced: bool = False) -> None:
        """Log that a round is late, unless that was just logged: a busy process would log it each time."""
        if now < self._counted_until and not is_replaced:
            self._counted.append(late)
            return
        self._counted_until = now + _COUNTED_FOR
        text = "The background thread of %r is late by %.1f s; locks may be lost."
        log(logger, logging.ERROR, text, self.using, late)

    def _log_counted(self, now: float) -> None:
        if self._counted and now >= self._counted_until:
            counted, self._counted = self._counted, deque()
            late = threads.snapshot(counted)
            text = "The background thread of %r was late %d more times, by up to %.1f s; locks may be lost."
            log(logger, logging.ERROR, text, self.using, len(late), max(late))

    def _log_failure(self, error: BaseException) -> None:
        log(logger, logging.ERROR, "A background job of %r failed; it runs again: %s", self.using, repr(error))


class Schedule(Generic[T]):
    """What a job has to look at, by the time when it is due. ``is_valid`` returns whether an entry is still valid.

    A thread that hung and was replaced may go on with its round, beside its replacement. So an entry is removed before
    it is looked at, and each step is one call into C: each entry has another number, so the heap never compares holds,
    which would run Python code.
    """

    def __init__(self, is_valid: Callable[[float, T], bool] = lambda _at, _what: True) -> None:
        self._is_valid = is_valid
        self._heap: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[tuple[float, T]]:
        return iter([(at, what) for at, _, what in threads.snapshot(self._heap)])

    def add(self, at: float, what: T) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), what))

    def take(self, until: float) -> tuple[float, T] | None:
        """Remove and return the first valid entry, if it is due at ``until`` or before."""
        with suppress(IndexError):  # the heap is empty
            while True:
                entry = at, _, what = heapq.heappop(self._heap)
                if not self._is_valid(at, what):
                    continue
                if at <= until:
                    return at, what
                heapq.heappush(self._heap, entry)
                break
        return None

    def first(self) -> tuple[float, T] | None:
        """The first entry, which may be no longer valid."""
        entry = next(iter(self._heap), None)
        return None if entry is None else (entry[0], entry[2])

    def first_due(self) -> float:
        """When the first entry is due; inf without entries."""
        entry = self.first()
        return math.inf if entry is None else entry[0]

    def keep(self, most: int, worth: Callable[[T], float]) -> None:
        """Drop the entries that are worth least, if there are more than ``most``."""
        self._heap = heapq.nlargest(most, self._heap, key=lambda entry: worth(entry[2]))
        heapq.heapify(self._heap)


WORKERS = owned_table("background", BackgroundWorker, BackgroundWorker.stop)
"""The background threads of this process, by alias."""


def worker(using: str) -> BackgroundWorker:
    """The background thread of an alias, made on first use."""
    return WORKERS.value[using]


def workers() -> list[BackgroundWorker]:
    """All background threads of this process."""
    return threads.snapshot(WORKERS.value.values())


def _finish_all(within: float) -> None:
    """Let all aliases finish at the same time, so that an unreachable server takes no time from the others."""
    give_up_at = monotonic() + within
    for done in [each.finish() for each in workers()]:
        done.wait(give_up_at - monotonic())


on_exit("background", _finish_all)


# --- calls that must succeed ------------------------------------------------------------------------------------------

# Calls that a background thread sends until they succeed: undoing attempts that were given up, and late releases.
# They may come after the owner has taken the lock again, because each attempt has its own owner id.
#
# They are sent together, many in a round. If a call undoes a command that may still be under way, or of which a copy
# may be, it is sent again at growing intervals, until a lease taken by such a copy would have expired. So a command
# that arrives late by some time is undone within about that time, or its lease has expired by itself.

cleaning_logger = logging.getLogger("django_rlock.cleanup")

AGAIN_AFTER = 1.0
"""The delay before a command that may be executed late is undone a second time, in seconds; each further delay is
twice the one before."""
MOST_CLEAN_UPS = 10_000
"""The maximum number of waiting calls; beyond it, those whose leases expire first are dropped."""
RETRY = 0.5
"""After how many seconds a job tries again what failed."""
_IN_A_PACKET = 500


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
        self._due = Schedule[CleanUp]()

    def clear(self) -> None:
        """Drop the remaining jobs, because their server is gone."""
        self.inbox.clear()
        self._due = Schedule()

    def round(self, now: float) -> float:
        self._take_in(now)
        due: list[CleanUp] = []
        while len(due) < _IN_A_PACKET and (entry := self._due.take(now)):
            due.append(entry[1])
        if due:
            self._send(due)
        return self._due.first_due()

    def _take_in(self, at: float) -> None:
        while self.inbox:
            self._due.add(at, self.inbox.popleft())
        too_many = len(self._due) - MOST_CLEAN_UPS
        if too_many > 0:
            log(cleaning_logger, logging.WARNING, "Gave up on cleaning up %d calls of %r.", too_many, self._using)
            self._due.keep(MOST_CLEAN_UPS, lambda clean_up: clean_up.until)

    def _send(self, due: list[CleanUp]) -> None:
        replies = run_sync(background_driver(self._using).run_all([each.call for each in due]))
        now = monotonic()
        for each, reply in zip(due, replies, strict=True):
            if not isinstance(reply, Exception):
                if each.gap and now < each.until:
                    self._due.add(now + each.gap, each._replace(gap=2 * each.gap))
            elif isinstance(reply.__cause__, ClusterCrossSlotError):  # for all calls of that name, the undone one too
                log(cleaning_logger, logging.DEBUG, "Nothing to clean up: %s", reply)
            elif now < each.until:
                self._due.add(now + RETRY, each)
            else:
                log(cleaning_logger, logging.WARNING, "Gave up on cleaning up: %s", reply)

    def at_exit(self) -> None:
        self.round(math.inf)


class IdleConnections:
    """Closes the connections of an alias that callers have not used for a while."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self._using = worker.using

    def round(self, now: float) -> float:
        return min((server.prune(now) for server in servers_of(self._using)), default=math.inf)

    def at_exit(self) -> None:
        """Nothing to do: the interpreter closes the connections."""


def clean_up(using: str, call: ScriptCall, until: float, again: bool = False, begins_by: float = 0.0) -> None:
    """Let the background thread run a call until it succeeds or the monotonic time ``until`` has come.

    ``again`` repeats it until then even after success, for a command that may still be executed after it. It begins at
    once, or by the monotonic time ``begins_by``, together with other calls.
    """
    its = worker(using)
    its.jobs[CleanUps].inbox.append(CleanUp(call, until, AGAIN_AFTER if again else 0.0))
    its.wake_by(begins_by)
