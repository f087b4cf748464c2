"""A process whose main thread is interrupted hundreds of times inside acquire and release, as by a soft time limit.

    python -m tests.faults.storm <kind> <url> ... [--interruptions N] [--company pair|crowd] [--without-hiredis]

Meanwhile other threads, and an event loop, take the same lock and another one all the time, and a hold of a few
seconds must be renewed. It prints a line of JSON now and then, which says that it goes on, and a last one that says
what it saw; then it waits for the end of its input. It is a process of its own because the signals would hit the test
runner too, and because it may stop for ever: ``storm_process`` watches it.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import itertools
import json
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from tests.eventually import eventually

KINDS = ("fair", "rlock", "spin", "fenced", "read", "write", "multi", "redlock", "semaphore", "permits")
COUNTERS = KINDS[-2:]
COMPANIES = {"pair": ("thread",), "crowd": ("thread", "thread", "loop")}
"""Who takes the same lock beside the interrupted thread."""
LINE_EVERY = 50
"""Interruptions between two lines, upon which connections are cut."""
SILENCE = 5.0
"""How long it prints no line at most while it goes on, in seconds: a machine may be busy."""
SOONEST, LATEST = 0.00003, 0.006
"""When an action is interrupted, in seconds after it began: as likely before as after a few tenths of a millisecond."""
MOST_SPARED = 20
"""Each place of an action is interrupted at least once in this many times."""
SWEEP_EVERY = 5
"""Rounds; holds that are left in between keep the others waiting and connections in use."""
LEASE = 120.0
"""Of what is taken in the storm, in seconds: what only the end of a lease frees is stopped, to whoever watches."""
SHORT_LEASE = 3.0
"""Of the holds that must be renewed, in seconds."""
EXTENDED = 100.0
"""What a lease is extended to, in seconds."""
BRIEF = 0.002
"""A wait that mostly comes to nothing, in seconds."""
ROUNDS_AFTERWARDS = 3
"""What each of the others has to be served after the last interruption."""


class Interruption(KeyboardInterrupt):
    """As Ctrl-C, or a server's abort. It ends an event loop, unlike other exceptions."""


class SoftLimitError(Exception):
    """As Celery's SoftTimeLimitExceeded, which ``except Exception`` catches."""


class Storm:
    """Interrupts actions of the main thread by a signal, each of them once at most.

    ``strike`` is what the signal's handler does: it raises.
    """

    def __init__(self, strike: Callable[[], object]) -> None:
        self.raised = 0
        self._strike = strike
        self._armed = False
        self._met: Counter[tuple[CodeType, int]] = Counter()
        signal.signal(signal.SIGALRM, self._handle)

    def over(self, action: Callable[[], object]) -> None:
        """Run an action, and interrupt it at a random time unless it ends before."""
        try:
            self._armed = True
            strike_within(SOONEST, LATEST)
            action()
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, _signal: int, frame: FrameType | None) -> None:
        if not self._armed:
            return
        if self._spares(frame):
            strike_within(SOONEST, 10 * SOONEST)
            return
        self._armed = False
        self.raised += 1
        self._strike()

    def _spares(self, frame: FrameType | None) -> bool:
        """Whether to strike later: a place is spared the more, the more often it was met.

        Nearly all the time goes by in a few calls of the system.
        """
        if frame is None or is_swallowed(frame):
            return True
        place = frame.f_code, frame.f_lasti
        self._met[place] += 1
        return random.random() * min(self._met[place], MOST_SPARED) > 1


SWALLOWING = {"__del__", "_when_dropped", "_remove", "gc_callback"}
"""A finalizer, our guards and a weak set's callback, Hypothesis's callback of the garbage collector."""


def is_swallowed(frame: FrameType | None) -> bool:
    """Whether Python would drop an exception that is raised in a frame: what garbage collection or an end calls."""
    while frame is not None:
        if frame.f_code.co_name in SWALLOWING or is_weak_callback(frame.f_code):
            return True
        frame = frame.f_back
    return False


def is_weak_callback(code: CodeType) -> bool:
    return code.co_name == "remove" and code.co_filename == weakref.__file__


def strike() -> None:
    raise random.choice((Interruption, SoftLimitError))


def strike_within(soonest: float, latest: float) -> None:
    # Again and again: one that comes after Python looked for signals, and before a call of the system waits, is not
    # seen before that call ends.
    signal.setitimer(signal.ITIMER_REAL, soonest * (latest / soonest) ** random.random(), LATEST)


class Victim:
    """What the main thread does to its locks."""

    def __init__(self, kind: str) -> None:
        from tests.faults.storm_kinds import renewed_subject, subject

        self.shared = subject(kind, "shared")
        self.taken = subject(kind, "taken")
        self.kept = renewed_subject(kind, "kept")
        self.next = renewed_subject(kind, "next")
        self.outer = subject(kind, "outer") if self.shared.again else None
        self.granted = self.disowned = 0
        self.actions = [self.block, self.attempt, self.give_up_soon, self.ask_for_taken]
        if self.shared.leased:
            self.actions += [self.extend]
        if self.outer:
            self.actions += [self.nest, self.enter_outer]

    def hold(self) -> None:
        """Take what is held through it all."""
        self.kept_grant = self.kept.acquire()
        if self.outer:
            self.outer.acquire()

    def kept_lease(self) -> float:
        return self.kept.lease(self.kept_grant)

    def give_back(self) -> None:
        self.kept.give_back(self.kept_grant)
        if self.outer:
            self.outer.give_back(True)

    def block(self) -> None:
        with self.shared.block():
            pass

    def attempt(self) -> None:
        self._try(blocking=False)

    def give_up_soon(self) -> None:
        self._try(wait_time=BRIEF)

    def _try(self, **options: Any) -> None:
        from django_rlock import LockUnavailableError

        # There is no time to outlast connections that are cut twice.
        with suppress(LockUnavailableError):
            if grant := self.shared.acquire(**options):
                self.shared.give_back(grant)

    def extend(self) -> None:
        grant = self.shared.acquire()
        self.shared.extend(grant, EXTENDED)
        self.shared.give_back(grant)

    def nest(self) -> None:
        with self.shared.block():
            self.attempt()

    def enter_outer(self) -> None:
        assert self.outer
        with self.outer.block():
            pass

    def ask_for_taken(self) -> None:
        from django_rlock import LockUnavailableError

        with suppress(LockUnavailableError):
            self.granted += bool(self.taken.acquire(blocking=False))

    def sweep(self) -> None:
        self.shared.sweep()
        if self.outer:
            self.outer.sweep(down_to=1)
            self.disowned += not self.outer.owned()


class Company:
    """Others who take the shared lock, and another one, all the time: threads, and a task in a loop of a thread."""

    def __init__(self, kind: str, members: Sequence[str]) -> None:
        from tests.faults.storm_kinds import subject

        self.shared = subject(kind, "shared")
        self.other = subject(kind, "other")
        self._done = False
        self._inside = 0
        self._served: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        bodies = {"thread": self._take_turns, "loop": lambda number: asyncio.run(self._take_turns_in_loop(number))}
        self._threads = [
            threading.Thread(target=self._guarded, args=(bodies[member], number), daemon=True)
            for number, member in enumerate(members)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done = True
        for thread in self._threads:
            thread.join()

    def go_on(self) -> None:
        """Wait until each has been served a few times more; raise what one of them raised."""
        with suppress(queue.Empty):
            while True:
                self._raise(self._served.get(block=False))
        served: Counter[int | BaseException] = Counter()
        while any(served[number] < ROUNDS_AFTERWARDS for number, _ in enumerate(self._threads)):
            served[self._raise(self._served.get())] += 1

    @staticmethod
    def _raise(item: int | BaseException) -> int:
        if isinstance(item, BaseException):
            raise item
        return item

    def _guarded(self, body: Callable[[int], object], number: int) -> None:
        try:
            body(number)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._served.put(error)

    def _take_turns(self, number: int) -> None:
        while not self._done:
            with self.shared.their_block():
                self._be_inside(number)
            with self.other.their_block():
                pass

    async def _take_turns_in_loop(self, number: int) -> None:
        while not self._done:
            async with self.shared.their_block():
                self._be_inside(number)
            async with self.other.their_block():
                pass

    def _be_inside(self, number: int) -> None:
        self._inside += 1
        assert self._inside == 1 or not self.shared.exclusive
        self._served.put(number)
        self._inside -= 1


class BackgroundWorker:
    """A thread that stays in a block."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self._inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()
        self._inside.wait()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join()

    def _stay(self) -> None:
        with self._block:
            self._inside.set()
            self._leave.wait()


class Renewal:
    """Watches a short lease being renewed; ``left`` returns its remaining time."""

    def __init__(self, left: Callable[[], float]) -> None:
        self._left = left
        self._before = left()

    def seen(self) -> bool:
        """Whether the lease has become longer since the last check."""
        before, self._before = self._before, self._left()
        return self._before > before + SHORT_LEASE / 10


def rage(storm: Storm, victim: Victim, interruptions: int, losses: Sequence[str]) -> None:
    """Interrupt so often, and until the kept hold was renewed meanwhile; say now and then that it goes on.

    It ends when something was lost.
    """
    renewal, renewed, told, told_at = Renewal(victim.kept_lease), False, 0, time.monotonic()
    for number in itertools.count(1):
        try:
            storm.over(random.choice(victim.actions))
        except (Interruption, SoftLimitError) as error:
            victim.shared.note_interrupted(error)
        if number % SWEEP_EVERY == 0:
            victim.sweep()
        if time.monotonic() > told_at + SILENCE:
            told_at = time.monotonic()
            tell(rounds=number)
        if storm.raised >= told + LINE_EVERY:
            told = storm.raised
            tell(raised=told)
            renewed = renewal.seen() or renewed
        if losses or (storm.raised >= interruptions and renewed):
            break
    victim.sweep()


def live_on(victim: Victim) -> None:
    """The interrupted thread's hold is still renewed, and so is its next one."""
    grant = victim.next.acquire()
    for renewal in Renewal(victim.kept_lease), Renewal(lambda: victim.next.lease(grant)):
        eventually(renewal.seen, within=2 * SHORT_LEASE)
    victim.next.give_back(grant)
    with victim.shared.block():
        pass


def left() -> dict[str, list[str]]:
    """The names of the locks that this process takes for held or waited for."""
    from django_rlock.locks.holds import HOLDS, WAITS

    return {
        "holds": [hold.lock.name for hold in HOLDS.snapshot()],
        "waits": [wait.lock.name for wait in WAITS.snapshot()],
    }


def weather(kind: str, company: str, interruptions: int) -> dict[str, Any]:
    """All of it; what it saw that must not be."""
    from django_rlock.signals import lock_lost

    losses: list[str] = []
    lock_lost.connect(lambda lock, reason, **_: losses.append(f"{lock.name}: {reason}"), weak=False)
    storm, victim, others = Storm(strike), Victim(kind), Company(kind, COMPANIES[company])
    tell(begun=True)
    victim.hold()
    worker = BackgroundWorker(victim.taken.their_block())
    others.start()
    rage(storm, victim, interruptions, losses)
    tell(raised=storm.raised)
    if losses:
        return {"lost": losses}
    others.go_on()
    tell(others="go on")
    live_on(victim)
    tell(victim="lives on")
    others.stop()
    worker.leave()
    victim.give_back()
    gc.collect()  # an interrupted wait may be part of a circle
    with suppress(AssertionError):
        eventually(lambda: not any(left().values()), within=10)
    return {"granted": victim.granted, "disowned": victim.disowned, "lost": losses, **left()}


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201


def set_up(
    urls: Sequence[str], cache: Mapping[str, Any] | None = None, replica_acks: int = 0, **options: float
) -> None:
    """Django with the locks on one server, or where a cache is, or RedLock's on several; the alias "short" has short
    leases.
    """
    import django
    from django.conf import settings

    place: dict[str, Any] = {"CACHE": "default", "REPLICA_ACKS": replica_acks}
    if len(urls) > 1:
        place = {"NODES": urls, "QUARANTINE": 0}
    settings.configure(
        SECRET_KEY="not a secret",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_rlock"],
        CACHES={"default": cache or {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": urls[0]}},
        RLOCK={
            "default": {**place, "WATCHDOG_TIMEOUT": LEASE, **options},
            "short": {**place, "WATCHDOG_TIMEOUT": SHORT_LEASE},
        },
    )
    django.setup()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--interruptions", type=int, default=600)
    parser.add_argument("--company", choices=COMPANIES, default="crowd")
    parser.add_argument("--without-hiredis", action="store_true")
    options = parser.parse_args()
    faulthandler.enable()  # shows where all threads stand when a signal ends the process: a crash's, or SIGABRT
    faulthandler.register(signal.SIGUSR1)
    if options.without_hiredis:
        sys.modules["hiredis"] = None  # type: ignore[assignment]
    set_up(options.urls)
    try:
        tell(seen=weather(options.kind, options.company, options.interruptions))
    except BaseException:  # noqa: BLE001 - the watcher reports it
        traceback.print_exc()
        os._exit(1)  # without waiting for threads that may have stopped
    sys.stdin.read()  # until the watcher has looked at the server: nothing is cleaned up by ending


if __name__ == "__main__":
    main()
