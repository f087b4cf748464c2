"""Process reports: the holds and waits of this process, and its history, written to Redis outside the acquire path.

A background thread writes them: one hash for each process, with a field for each hold or wait that is older than half a
second. It writes differences, in one pipeline, at most once a second. The admin and the commands read the reports
(``inspection``) and compare them with the locks themselves, so a late or lost report misleads no reader. All times in a
report are in the server's clock, so hosts with different clocks agree on how long a lock has been held.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core import threads
from django_rlock._core.callbacks import log
from django_rlock._core.clock import LONGEST, monotonic
from django_rlock._core.process import Owned, on_exit
from django_rlock._core.threads import snapshot
from django_rlock._monitoring.documents import HEARTBEAT, KEEP, Mirror, describe_process, described_context
from django_rlock._monitoring.recorder import HotLock, Recorder, to_json
from django_rlock._redis.keys import HISTORIES, PROCESSES, history_key, report_key, stack_channel, stack_key
from django_rlock._transport.bridges import stack_of
from django_rlock._transport.identity import client_id
from django_rlock._transport.listener import ListenerWaiter
from django_rlock._transport.registry import Command, commands_to, listener
from django_rlock._transport.servers import SERVER_ERRORS
from django_rlock.locks.holds import HOLDS, NEWCOMERS, WAITS
from django_rlock.locks.records import Hold, Key, Wait
from django_rlock.settings import get_settings, server_aliases

Item = Hold | Wait

logger = logging.getLogger("django_rlock.reports")

MIN_AGE = 0.5
"""Holds and waits that end sooner than this are never written, in seconds."""
MAX_ENTRIES = 1000
"""The largest number of holds and waits in a report; the oldest are reported."""
MAX_HANDED_OVER = 100
"""The number of holds that a process remembers after it has handed them over: the last ones."""
_WRITE_PAUSE = 1.0
_RETRY_PAUSE = 10.0
_SHORTEST_TTL = 60.0
_CLOCK_PAUSE = HEARTBEAT
_CLOCK_STEP = 0.2
_FORGET_AFTER = 30 * 86400.0
_KEEP_STACK = 30.0
"""How long the reply with a stack is kept, in seconds."""
MAX_CALLS = 200
"""The largest number of calls in a reply: the innermost ones."""
_MOST_ASKED = 10


class Publisher:
    """What this process writes to one server: its report, and its history of the server's ``aliases``.

    The report contains the oldest MAX_ENTRIES holds and waits. Items younger than MIN_AGE are in ``_young``, items that
    exceed the maximum in ``_rest``; both are only checked when the report has room.
    """

    def __init__(self, using: str, recorder: Recorder) -> None:
        self.using = using
        self.aliases: set[str] = set()
        self.clock = 0.0  # server time minus monotonic time
        self.ttl = 0.0
        self.clock_due = self.beat_due = self.ttl_due = -math.inf
        self._server = commands_to(using, "reports")
        self.report = Mirror(self._server, "report", report_key(client_id()), PROCESSES)
        self._recorder = recorder
        self.history = Mirror(self._server, "history", history_key(client_id()), HISTORIES)
        self._version = 0
        self._shown: dict[Item, _Text] = {}
        self._young: deque[Item] = deque()
        self._rest: deque[Item] = deque()
        self._compact_at = MAX_ENTRIES

    @property
    def shows_stacks(self) -> bool:
        """Whether the report contains a hold whose stack this process shows."""
        return any(map(shows_stack, self._shown))

    def add(self, item: Item) -> None:
        """Report a hold or a wait, once it is old enough."""
        if item not in self._shown:
            self._young.append(item)

    def publish(self, now: float) -> float:
        """Write what has changed; returns when to call this again."""
        due = self._choose(now)
        if self._has_entries:
            self._change(self.report, self._write_report, now)
        elif self.report.may_be_there:
            self._change(self.report, lambda _now: self.report.remove(), now)
        if self._has_news:
            self._change(self.history, self.write_history, now)
        if self._has_entries or self.report.may_be_there:
            due = self.report.write_from
        return min(due, self.history.write_from) if self._has_news else due

    def _change(self, mirror: Mirror, write: Callable[[float], object], now: float) -> None:
        """Change a mirror, unless it is too early to do so again."""
        if now < mirror.write_from:
            return
        try:
            write(now)
            mirror.write_from = now + _WRITE_PAUSE
        except ImproperlyConfigured:
            # A test has removed the alias; outside tests the settings do not change.
            mirror.forget()
            mirror.write_from = math.inf
        except SERVER_ERRORS as error:
            log(logger, logging.INFO, "The process %s was not written; it is retried later: %s", mirror.noun, error)
            mirror.certain = False
            mirror.write_from = now + _RETRY_PAUSE

    def finish(self, now: float) -> None:
        """At the end of the process, write the rest, and delete the report if it holds nothing; errors are ignored."""
        if not HOLDS and self.report.may_be_there:
            with contextlib.suppress(ImproperlyConfigured, *SERVER_ERRORS):
                self.report.remove()
        if self._has_news:
            with contextlib.suppress(ImproperlyConfigured, *SERVER_ERRORS):
                self.write_history(now)

    @property
    def _hot(self) -> list[HotLock]:
        return [lock for lock in self._recorder.hot if lock.using in self.aliases]

    @property
    def _has_entries(self) -> bool:
        return bool(self._shown or self._hot)

    @property
    def _has_news(self) -> bool:
        return self._version != self._recorder.version

    # --- its entries -------------------------------------------------------------------------------------------------

    def _choose(self, now: float) -> float:
        """Choose the entries; returns when the next item is old enough."""
        for item in [item for item in self._shown if not _is_live(item, now)]:
            del self._shown[item]
        while self._young and self._young[0].since <= now - MIN_AGE:
            item = self._young.popleft()
            if _is_live(item, now) and item not in self._shown:
                self._rest.append(item)
        while self._rest and len(self._shown) < MAX_ENTRIES:
            item = self._rest.popleft()
            if _is_live(item, now):
                self._shown[item] = _Text()
        # Ended items are removed when their number may have doubled, so each round looks at few of them.
        if len(self._rest) > self._compact_at:
            self._rest = deque(item for item in self._rest if _is_live(item, now))
            self._compact_at = max(2 * len(self._rest), MAX_ENTRIES)
        return self._young[0].since + MIN_AGE if self._young else math.inf

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write_report(self, now: float) -> None:
        self._learn_clock(now)
        fields = dict(text.of(item, self.clock) for item, text in self._shown.items())
        fields |= dict(lock.field(self.clock) for lock in self._hot)
        # If the process was suspended, its report has expired: two thirds of the TTL after the refresh was due.
        if now >= self.ttl_due + self.ttl / 2:
            self.report.certain = False
        if not self.report.is_there:
            self.ttl = 0.0
        commands = self.report.changes(fields, self.clock) + self._ttl_commands(now)
        if commands or now >= self.beat_due:
            self.report.write(commands, fields, now + self.clock)
            self.beat_due = now + (HEARTBEAT if self.report.certain else _WRITE_PAUSE)

    def write_history(self, now: float) -> None:
        self._learn_clock(now)
        version, at, history = self._recorder.version, now + self.clock, self.history
        fields = self._recorder.fields(self.aliases, self.clock, now)
        if commands := history.changes(fields, self.clock):  # there are none if it is another server's news
            commands.append((history.key, ("PEXPIRE", history.key, str(round(KEEP * 1000)))))
            commands.append((HISTORIES, ("ZREMRANGEBYSCORE", HISTORIES, "-inf", repr(at - KEEP))))
            history.write(commands, fields, at)
        if history.certain:
            self._version = version

    def _ttl_commands(self, now: float) -> list[Command]:
        # The TTL is refreshed after a third at the latest, so the report of a dead process outlives the leases in it.
        longest = max((item.lease for item in self._shown if isinstance(item, Hold)), default=0.0)
        ttl = min(max(_SHORTEST_TTL, 2 * longest), LONGEST)
        if ttl <= self.ttl and now < self.ttl_due:
            return []
        self.ttl, self.ttl_due = ttl, now + ttl / 3
        return [(self.report.key, ("PEXPIRE", self.report.key, math.ceil(ttl * 1000)))]

    def _learn_clock(self, now: float) -> None:
        if now < self.clock_due:
            return
        before = monotonic()
        ((seconds, micros),) = self._server.run([(PROCESSES, ("TIME",))])
        half = (monotonic() - before) / 2
        clock = int(seconds) + int(micros) / 1e6 - (before + half)
        self.clock_due = now + _CLOCK_PAUSE
        # The server read its clock at some time between the two readings here. Smaller differences come from that, and
        # from the clocks' pace; following them would rewrite every entry.
        if abs(clock - self.clock) > _CLOCK_STEP + half:
            self.clock = clock
            forgotten = ("ZREMRANGEBYSCORE", PROCESSES, "-inf", repr(monotonic() + clock - _FORGET_AFTER))
            self._server.run([(PROCESSES, forgotten)])


class _Text:
    """An item's field of the report, recomputed only when the item has changed."""

    __slots__ = ("_made_of", "_pair")

    def __init__(self) -> None:
        self._made_of: tuple[Any, ...] | None = None
        self._pair = ("", "")

    def of(self, item: Item, clock: float) -> tuple[str, str]:
        parts: tuple[Any, ...] = item.owner_id, clock
        if isinstance(item, Hold):
            parts += item.count, item.lease, item.renewed, item.handed_over
        if parts != self._made_of:
            self._made_of, self._pair = parts, _entry(item, clock)
        return self._pair


class Stacks:
    """The requests to this process for the stacks of holders; ``wake`` wakes the thread that replies.

    A process that has reported a hold subscribes to its own channel. It writes the reply to a key that expires after
    half a minute: file, line and function of each call, but no values and no source.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._asked: deque[tuple[str, str]] = deque(maxlen=_MOST_ASKED)
        self.channels: dict[str, ListenerWaiter] = {}

    def listen(self, using: str) -> None:
        """Subscribe to requests on the server of an alias."""
        self.channels[using] = listener(using).call_at(stack_channel(client_id()), partial(self._receive, using))

    def _receive(self, using: str, message: str) -> None:
        # A list of the lock's key, its owner, and the name of the reply.
        if message:
            self._asked.append((using, message))
            self._wake()

    def answer(self) -> None:
        """Reply to all requests."""
        while self._asked:
            using, message = self._asked.popleft()
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # forged
                key, owner, request = map(str, json.loads(message))
                if (hold := _hold(key, owner)) is not None:
                    _write(using, stack_key(request), _lines(hold))


def shows_stack(hold: object) -> bool:
    """Whether this process shows the stack of a hold's owner."""
    return isinstance(hold, Hold) and get_settings(hold.lock.using).show_stacks


def _hold(key: str, owner: str) -> Hold | None:
    holds = (hold for hold in HOLDS.snapshot() if hold.lock.key == key and owner in (hold.owner_id, hold.hash_field))
    return next(filter(shows_stack, holds), None)


def _lines(hold: Hold) -> list[str]:
    if hold.owner.is_named:
        return [f"{hold.owner_id!r} is a name that does not belong to a thread or task."]
    return stack_of(hold.owner)[-MAX_CALLS:] or [f"{hold.caller_name!r} has ended, or is unknown."]


def _write(using: str, key: str, lines: list[str]) -> None:
    try:
        commands_to(using, "reports").run([(key, ("SET", key, json.dumps(lines), "PX", round(_KEEP_STACK * 1000)))])
    except SERVER_ERRORS as error:
        log(logger, logging.INFO, "The stack that an operator asked for was not written: %s", error)


class Reporter:
    """The thread that writes the reports of this process, one for each server."""

    def __init__(self) -> None:
        self.inbox: deque[Item] = deque()
        self.publishers: dict[str, Publisher] = {}
        self.recorder = Recorder()
        self.stacks = Stacks(self._wake)
        self._homes: dict[str, dict[str, str]] = {}
        self._event = threads.AutoResetEvent()
        self._instance = threads.SingleInstance()
        self._began = self._runs = self._stopped = False
        self._finishing: threads.AutoResetEvent | None = None
        self.wakes_at = math.inf

    def notify(self, item: Item) -> None:
        """Report a hold or a wait that a background thread has found."""
        self.inbox.append(item)
        self.recorder.noted = True
        if item.since + MIN_AGE < self.wakes_at:
            self._wake()

    def counted(self, is_event: bool) -> None:
        """Schedule the collection of counts: soon after a loss or a forced release, otherwise later."""
        recorder = self.recorder
        is_planned = self.wakes_at < math.inf  # False if an earlier call was interrupted before it woke the thread
        if not is_planned or not recorder.noted or (is_event and not recorder.urgent):
            recorder.noted = True
            recorder.urgent = recorder.urgent or is_event
            self._wake()

    def _wake(self) -> None:
        self._event.set()
        if not self._runs:
            self._began = True
            with contextlib.suppress(RuntimeError):  # interpreter exit, or no threads left
                threads.start(self._run, name="rlock-reporter")

    def stop(self) -> None:
        """End the thread, because the settings have changed."""
        self._stopped = True
        self._event.set()

    def finish(self, within: float) -> None:
        """At a clean exit, write the history, and delete the reports if the process holds nothing. Otherwise the
        reports stay until they expire."""
        if self._began:
            self._finishing = done = threads.AutoResetEvent()
            self._event.set()
            done.wait(within)

    def _run(self) -> None:
        if not self._instance.enter():
            return  # another thread already runs
        self._runs = True
        while not self._stopped:
            self._event.clear()  # before the round: what comes during it sets the event again
            self.wakes_at = monotonic() + MIN_AGE
            try:
                due = self.round(monotonic())
            except BaseException as error:  # noqa: BLE001 - otherwise reports would stop
                log(logger, logging.ERROR, "The process report failed; it is retried: %s", repr(error))
                due = monotonic() + _RETRY_PAUSE
            self.wakes_at = due
            # notify() does not interrupt a round, so an item that came too late for this round starts another one.
            if not self.inbox:
                self._event.wait(None if due == math.inf else due - monotonic())

    def round(self, now: float) -> float:
        """Write all reports that are due; returns when to call this again."""
        while self.inbox:
            item = self.inbox.popleft()
            for publisher in self._publishers_of(item.lock.using):
                publisher.add(item)
        if self._finishing is not None:
            self._take_back(now)
            return math.inf
        due = self.recorder.round(now)
        due = min([due, *(publisher.publish(now) for publisher in self._all_publishers())])
        self.stacks.answer()
        for publisher in self.publishers.values():
            if publisher.using not in self.stacks.channels and publisher.shows_stacks:
                self.stacks.listen(publisher.using)
        return due

    def _all_publishers(self) -> Iterable[Publisher]:
        for using in self.recorder.aliases:
            self._publishers_of(using)
        return self.publishers.values()

    def _publishers_of(self, using: str) -> list[Publisher]:
        homes = self._homes_of(using)
        for cache, server in homes.items():
            if cache not in self.publishers:
                self.publishers[cache] = Publisher(server, self.recorder)
            self.publishers[cache].aliases.add(using)
        return [self.publishers[cache] for cache in homes]

    def _homes_of(self, using: str) -> dict[str, str]:
        """The servers that get an alias's reports: CACHES alias or URL, and the alias through which to reach it."""
        known = self._homes.get(using)
        if known is None:
            known = self._homes[using] = _homes(using)
        return known

    def _take_back(self, now: float) -> None:
        self.recorder.look(now)
        for publisher in self._all_publishers():
            publisher.finish(now)
        if self._finishing is not None:
            self._finishing.set()


_handed_over: Owned[dict[Key, Hold]] = Owned("reports", dict)
"""Holds that this process has left to others. Nobody tells it of their ends, so they count until their leases end."""
_reporter: Owned[Reporter] = Owned("reports", Reporter, stop=Reporter.stop, has_identity=True)


def local_report(clock: float) -> dict[str, str]:
    """The report of this process as it would be written now, including the youngest holds and waits.

    ``clock`` is the server's time minus the monotonic time, in seconds.
    """
    given = [hold for hold in snapshot(_handed_over.value.values()) if _is_live(hold, monotonic())]
    items: list[Item] = [*given, *HOLDS.snapshot(), *WAITS.snapshot()]
    return describe_process(clock) | dict(_entry(item, clock) for item in items if _homes(item.lock.using))


def _is_live(item: Item, now: float) -> bool:
    if isinstance(item, Wait):
        return not item.over
    if item.handed_over:
        return now < item.deadline and _handed_over.value.get(item.key) is item
    return item in HOLDS and item.lost is None


def _homes(using: str) -> dict[str, str]:
    try:
        return {get_settings(server).cache: server for server in server_aliases(using)}
    except ImproperlyConfigured:
        return {}  # a test has restored its settings while it held a lock


def _entry(item: Hold | Wait, clock: float) -> tuple[str, str]:
    """The report's field for a hold or wait, and its JSON."""
    what = "wait" if isinstance(item, Wait) else "given" if item.handed_over else "hold"
    owner = item.hash_field
    document: dict[str, Any] = {
        "key": item.lock.key,
        "kind": item.lock.kind,
        "owner": owner,
        "by": item.key[-1],
        "since": round(item.since + clock, 3),
        "place": "handed over" if what == "given" else item.caller_name,
        "context": described_context(item.lock.using, item.context),
    }
    if isinstance(item, Hold):
        document |= {"count": item.count, "lease": item.lease, "renewed": item.renewed}
    return f"{what} {owner} {item.lock.key}", to_json(document)


def _notify(item: Item) -> None:
    if isinstance(item, Hold) and item.handed_over:
        _remember(item)
    _reporter.value.notify(item)


def _remember(hold: Hold) -> None:
    given = _handed_over.value
    given.pop(hold.key, None)
    given[hold.key] = hold  # as the last one
    for oldest in snapshot(given)[:-MAX_HANDED_OVER]:
        given.pop(oldest, None)


def _counted(is_event: bool) -> None:
    _reporter.value.counted(is_event)


def _finish(within: float) -> None:
    _reporter.value.finish(within)


def report_newcomers() -> None:
    """Report the locks that this process takes or waits for from now on."""
    NEWCOMERS.notify = _notify
    NEWCOMERS.counted = _counted


on_exit("reports", _finish)
