"""Keeps this process's waiters alive in their queues, and hands on locks whose holders died. Runs in rounds of the
alias's background thread.

A process sends one heartbeat for a lock, however many of its threads and tasks wait for it, and one script heartbeats
for many locks. While the process waits for few locks, it sends heartbeats for each as often as its waiters must be seen
alive. While it waits for many fair locks, it often checks whether all are still held, by one command for many locks,
and sends heartbeats for each less often, with a longer alive time. If the process then dies, each of its locks loses
one claim time, just as when it dies right after a heartbeat. No other kind has a longer alive time: its dead waiters
would keep a free lock from others.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._transport.calls import ScriptCall, run_sync
from django_rlock._transport.listener import ListenerWaiter
from django_rlock._transport.registry import background_driver, commands_to, listener
from django_rlock._transport.worker import RETRY, SLOWEST_TICK, BackgroundWorker, Schedule, worker
from django_rlock.locks.holds import NEWCOMERS, WAITS
from django_rlock.locks.kinds import Named, leave_javas_call
from django_rlock.locks.records import Wait
from django_rlock.settings import HEARTBEAT_SHARE, get_settings

T = TypeVar("T")

logger = logging.getLogger("django_rlock.heartbeats")

UNKNOWN, STILL_QUEUED, GRANTED, BESIDE_JAVA = 0, 1, 2, 3
"""The state of a process's longest waiter, as a heartbeat returns it: not known to the server, queued, granted, or
queued while a Java client holds the lock. For a kind without a queue "granted" is a free lock."""
MOST_PER_SECOND = 10.0
"""The maximum rate of heartbeats of a process on one alias; with more locks, each gets heartbeats less often."""
LONGEST_PAUSE = 80.0
"""The longest time between two heartbeats for a lock, in seconds."""
ENTRY_PAUSE = 0.6
"""The same while a Java client holds the lock, because the entry in Java's queue lives for two seconds
(``java_queue.lua``)."""
_LOOK_AT = 500
"""How many locks one command checks."""
_REGULAR = 0.8
"""A heartbeat planned sooner than this share of the pause was planned for the end of the holder's lease."""
_BEATEN_TOGETHER = 1 / 6
"""Locks that are due within this share of the shortest pause are handled in one round."""


class LockKey(NamedTuple):
    """The key by which waits are grouped."""

    key: str
    kind: str


class Group:
    """This process's waits for one lock, the longest first. ``lock`` is an object of that lock.

    ``heartbeat_at`` is when a heartbeat is due, ``entry_at`` when one is due for the entry in Java's queue (inf: there
    is none), and ``planned`` when the group is due in the heap, all in monotonic seconds. ``is_exact`` means that it
    must not be handled earlier, because the holder's lease ends then. ``lost_at`` is when the server last did not know
    the longest waiter. ``subscriptions`` are to the kind's ``outside_channels``, if the holder does not know the queue.
    """

    __slots__ = ("entry_at", "heartbeat_at", "is_exact", "lock", "lost_at", "planned", "subscriptions", "waits")

    def __init__(self, lock: Named) -> None:
        self.lock = lock
        self.waits: dict[int, Wait] = {}
        self.planned = math.inf
        self.heartbeat_at = self.entry_at = math.inf
        self.is_exact = False
        self.lost_at = 0.0
        self.subscriptions: list[ListenerWaiter] = []

    def alive(self) -> list[Wait]:
        """The waits that are not over."""
        for wait in [wait for wait in self.waits.values() if wait.over]:
            WAITS.remove(wait)  # an interrupted wait could not do this itself
            del self.waits[id(wait)]
        return list(self.waits.values())


class Heartbeats:
    """The waits of an alias, grouped by lock."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self._using = worker.using
        self.inbox: deque[Wait] = deque()
        self.hurried: deque[tuple[LockKey, float]] = deque()
        self._groups: dict[LockKey, Group] = {}
        self._due = Schedule[LockKey](self._is_planned)
        self._in_hand: dict[LockKey, Group] = {}
        self._ended: list[ScriptCall] = []

    def round(self, now: float) -> float:
        self._take_in(now)
        for key, group in self._in_hand.items():  # of a round that failed, or whose thread hung and was replaced
            self._plan(key, group, now)
        due = self._in_hand = self._collect(now)
        if due:
            run_sync(self._heartbeat(due, now))
        if self._in_hand is due:
            self._in_hand = {}
        if self._ended:
            run_sync(self._leave_javas())
        return self._due.first_due()

    def _take_in(self, now: float) -> None:
        for _ in range(len(self.inbox)):
            wait = self.inbox.popleft()
            # Most waits are shorter than a round, and cost only this look.
            if not wait.over:
                NEWCOMERS.notify(wait)
                if wait.heartbeat_at < math.inf:
                    self._join(wait, now)
        for _ in range(len(self.hurried)):
            key, within = self.hurried.popleft()
            if group := self._groups.get(key):
                group.heartbeat_at = min(group.heartbeat_at, now + within)
                self._plan(key, group, min(group.planned, group.heartbeat_at))

    def _join(self, wait: Wait, now: float) -> None:
        key = LockKey(wait.lock.key, wait.lock.kind)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(wait.lock)
        group.waits[id(wait)] = wait
        if wait.asked_at < group.lost_at:
            # The server may have lost the queue after this wait drew its ticket. The waits that the group had by then
            # were woken to take new tickets.
            wait.wake()
        if wait.outside and not group.subscriptions:
            lock, its = group.lock, listener(self._using)
            for channel in lock._kind.outside_channels(lock):
                group.subscriptions.append(its.call_at(channel, lambda _: heartbeat_soon(lock)))
        # The lease may end earlier than the group knows: the wait has just tried to take the lock.
        group.heartbeat_at = min(group.heartbeat_at, wait.heartbeat_at)
        is_exact = wait.heartbeat_at < now + _REGULAR * self._shortest_pause
        self._plan(key, group, min(group.planned, wait.heartbeat_at), is_exact)

    def _plan(self, key: LockKey, group: Group, at: float, is_exact: bool = False) -> None:
        if at != group.planned:
            group.planned = at
            group.is_exact = is_exact
            self._due.add(at, key)

    def _is_planned(self, at: float, key: LockKey) -> bool:
        """Whether this entry is still valid: its lock has waiters, and was not planned for another time since."""
        group = self._groups.get(key)
        return group is not None and group.planned == at

    def _collect(self, now: float) -> dict[LockKey, Group]:
        """The groups that are due now or soon."""
        due: dict[LockKey, Group] = {}
        if self._due.first_due() > now:
            return due
        not_yet = []
        while entry := self._due.take(now + self._shortest_pause * _BEATEN_TOGETHER):
            at, key = entry
            group = self._groups.get(key)
            if group is None:
                continue
            if at > now and group.is_exact:
                not_yet.append(entry)
                continue
            group.planned = math.inf
            if group.alive():
                due[key] = group
            else:
                del self._groups[key]
                if group.subscriptions:
                    self._ended.append(leave_javas_call(group.lock))
        for entry in not_yet:
            self._due.add(*entry)
        return due

    # --- asking the server -------------------------------------------------------------------------------------------

    async def _heartbeat(self, due: dict[LockKey, Group], now: float) -> None:
        overdue, others = due, dict[LockKey, Group]()
        # With many locks, most rounds only check whether their holders live: a heartbeat costs the server much more.
        if self._pause > self._shortest_pause:
            for key, group in due.items():
                if key.kind == "fair" and min(group.heartbeat_at, group.entry_at) > now:
                    others[key] = group
            overdue = {key: group for key, group in due.items() if key not in others}
        overdue |= self._find_free(others)
        for key in others.keys() - overdue.keys():
            self._plan(key, others[key], min(monotonic() + self._shortest_pause, others[key].heartbeat_at))
        await self._send_heartbeats(overdue)

    @property
    def _shortest_pause(self) -> float:
        return get_settings(self._using).waiter_alive_time * HEARTBEAT_SHARE

    @property
    def _pause(self) -> float:
        """The time between two heartbeats for the same lock, in seconds."""
        return max(self._shortest_pause, min(len(self._groups) / MOST_PER_SECOND, LONGEST_PAUSE))

    def _find_free(self, groups: dict[LockKey, Group]) -> dict[LockKey, Group]:
        """The locks that may be free: all locks that were checked together with a free one."""
        location = background_driver(self._using).location
        by_location: dict[object, list[LockKey]] = defaultdict(list)
        for key in groups:
            by_location[location(key.key)].append(key)
        parts = [part for same in by_location.values() for part in _sliced(same, _LOOK_AT)]
        # No script: one with so many keys costs the server several times as much.
        looks = [(part[0].key, ("EXISTS", *[each.key for each in part])) for part in parts]
        replies = zip(parts, commands_to(self._using, "background").try_all(looks), strict=True)
        free = [part for part, reply in replies if not isinstance(reply, Exception) and reply < len(part)]
        return {key: groups[key] for part in free for key in part}

    async def _send_heartbeats(self, groups: dict[LockKey, Group]) -> None:
        driver = background_driver(self._using)
        lines = [(key, group, waits) for key, group in groups.items() if (waits := group.alive())]
        # A script serves one kind; in a cluster, one slot.
        by_kind: dict[tuple[str, object], list[Any]] = defaultdict(list)
        for line in lines:
            by_kind[line[0].kind, driver.location(line[0].key)].append(line)
        parts = [
            part for same in by_kind.values() for part in _sliced(same, same[0][2][0].lock._kind.heartbeats_together)
        ]
        pause = self._pause
        calls = [
            part[0][2][0].lock._kind.heartbeat([(waits[0].lock, waits[0].asker) for _, _, waits in part], pause)
            for part in parts
        ]
        for part, reply in zip(parts, await driver.run_all(calls), strict=True):
            self._note(part, reply)

    def _note(self, part: Sequence[tuple[LockKey, Group, list[Wait]]], reply: Any) -> None:
        now = monotonic()
        if isinstance(reply, Exception) or len(reply) != 1 + 2 * len(part):
            log(logger, logging.INFO, "No heartbeat for lock %r: %s", part[0][0].key, reply)
            for key, group, waits in part:
                waits[0].wake()  # its own call keeps this process alive in the queue, or fails with the reason
                group.heartbeat_at = now + RETRY
                self._plan(key, group, group.heartbeat_at)
            return
        states = zip(reply[1::2], reply[2::2], strict=True)
        for (key, group, waits), (state, left_ms) in zip(part, states, strict=True):
            wake_who_must_ask(waits, state)
            if state == UNKNOWN:
                group.lost_at = now
            group.heartbeat_at = now + self._pause
            group.entry_at = now + ENTRY_PAUSE if state == BESIDE_JAVA else math.inf
            kind = group.lock._kind
            # The holder may die: then the lock is handed on by the heartbeat that comes as its lease ends.
            left = min(kind.pauses(group.lock, left_ms, 1)[1], self._shortest_pause)
            if state == BESIDE_JAVA:
                left = min(left, kind.java_poll)
            self._plan(key, group, now + left, is_exact=left < self._shortest_pause)

    async def _leave_javas(self) -> None:
        calls, self._ended = self._ended, []
        for call, reply in zip(calls, await background_driver(self._using).run_all(calls), strict=True):
            if isinstance(reply, Exception):  # the entry expires
                log(logger, logging.INFO, "Left no queue of Java's fair lock %r: %s", call.name, reply)

    def at_exit(self) -> None:
        """Leave Java's queues: a release of Java's would notify this process's entry instead of Java's waiters."""
        self._take_in(monotonic())
        self._ended += [leave_javas_call(group.lock) for group in self._groups.values() if group.subscriptions]
        self._groups.clear()
        if self._ended:
            run_sync(self._leave_javas())


def wake_who_must_ask(waits: Sequence[Wait], state: int) -> None:
    """Wake the waiters that must try again, after a heartbeat for the first of them."""
    if state == GRANTED:
        waits[0].wake()  # the message of its grant was lost
    elif state == UNKNOWN:
        for wait in waits:  # the server lost the queue, or considered this process dead: all take a new ticket
            wait.wake()


def expect(wait: Wait, now: float) -> None:
    """Arrange heartbeats for a wait that goes to sleep, and include it in the process's report."""
    its = worker(wait.lock.using)
    its.jobs[Heartbeats].inbox.append(wait)
    its.wake_by(min(wait.heartbeat_at, now + SLOWEST_TICK))
    if now > its.late_at:
        its.check(now)


def heartbeat_soon(lock: Named) -> None:
    """Beat for a lock in the next round, because it may have become free."""
    _hurry(lock, 0.0).wake()


def heartbeat_after(wait: Wait, taken: bool) -> None:
    """Beat soon for the other waiters of a lock that was granted to this wait: the grant shortened their alive time.

    Beat at once if it was not, and its entry in Java's queue would keep Java's waiters out.
    """
    in_javas = wait.outside and wait.lock._kind.java_poll < math.inf
    within = 0.0 if in_javas and not taken else wait.lock._settings.waiter_alive_time * HEARTBEAT_SHARE
    _hurry(wait.lock, within)


def _sliced(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[start : start + size] for start in range(0, len(things), size))


def _hurry(lock: Named, within: float) -> BackgroundWorker:
    its = worker(lock.using)
    its.jobs[Heartbeats].hurried.append((LockKey(lock.key, lock.kind), within))
    return its
