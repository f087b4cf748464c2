"""A process whose lock calls are interrupted at every opcode in turn, each time at a later one.

    python -m tests.faults.opcodes <kind> <url> ... [--binding BINDING] [--first N] [--stride N] [--action ACTION ...]

A signal's handler may raise between any two opcodes of the main thread. A storm meets such places by chance; this
meets each of them once, the same ones in every run. After each interruption another thread must get the very lock,
another one must be woken by a release of the main thread, a third must be told in time who holds a lock that it does
not get, and a hold beside them must be renewed: none of them may wait for what the interrupted call has left. What
that call itself leaves, its thread sweeps up, as a task or a request does. With another ``--binding`` the main thread
runs a loop whose task makes the call, and another loop is woken. The loop ends, its task is cancelled, or it goes on.

What is left locked stays so; therefore the others are tried once after several interruptions. It prints a line of JSON
for each of these, one when the others went on, and a last one; it stops for ever where something does, and
``storm_process.Watched`` notices that.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import count
from types import CodeType, FrameType
from typing import Any

import redis

from tests.eventually import eventually
from tests.faults.opcode_bindings import BINDINGS, Threads
from tests.faults.opcode_watch import watch_opcodes
from tests.faults.storm import BRIEF, EXTENDED, KINDS, SHORT_LEASE, Renewal, is_swallowed, set_up, tell

ALL_KINDS = (*KINDS, "latch", "limited", "named")
ACTIONS = ("pair", "wait", "again", "extend", "timeout", "block", "second", "force", "leave")
IMPOSSIBLE = {
    "semaphore": {"again", "extend", "force", "leave"},
    "latch": {"again", "extend", "force", "leave"},
    "permits": {"again", "force", "leave"},
    "limited": {"leave"},
    "read": {"leave"},
    "write": {"leave"},
}
"""The actions that a kind does not have."""
HELD_BEFORE = {"again", "extend", "force", "leave"}
"""Actions on what the main thread has taken before."""
KEPT = 0.005
"""How long a lock stays taken that is left, in seconds."""
STANDS_STILL = 0.002
"""A thread that runs no opcode for so long waits, in seconds; on a slow machine it may not do so yet."""
TOGETHER = 20
"""Interruptions after which the others are tried."""
MISSES = 3
"""An action that was not interrupted in so many tries in a row has fewer opcodes; how many differs a little."""
BOUND = "PRECALL", "CALL", "NOT_TAKEN", "PUSH_EXC_INFO", "COPY", "POP_EXCEPT", "RERAISE"
SPARED = {opcode for name, opcode in dis.opmap.items() if name in BOUND}
"""Python looks for signals after a call, and neither before it, nor after a branch, nor where an exception is handled.
Raised before these opcodes, an exception would confuse the interpreter itself: argument names are left to the next
call, the handled exception to the thread. After a branch that is not taken, Python 3.14 has an opcode that does
nothing, and belongs to no ``try``.
"""
NODE_TIMEOUT = 1.0
"""How long a RedLock's node may take, in seconds: who is watched at every opcode takes long to read its reply."""
UNSEEN = 120.0
"""Waiters look for a missed wake-up after a share of this, in seconds: longer than a watcher is patient."""


class Aim:
    """Interrupts the main thread at its n-th opcode after ``begin``, wherever that is."""

    def __init__(self, interrupt: Callable[[], object], spares: Callable[[CodeType], bool] = lambda _: False) -> None:
        self._interrupt = interrupt
        self._spares = spares
        self.made = self.at = 0
        self.began = threading.Event()
        self.place = ""

    def rest(self) -> None:
        """Call it before each action for whose beginning another thread waits."""
        self.began.clear()

    def begin(self, at: int) -> None:
        self.made, self.at, self.place = 0, at, ""
        self.began.set()
        watch_opcodes(self._meet)

    def end(self) -> None:
        watch_opcodes(None)

    def until_it_stands_still(self) -> None:
        """Wait until the main thread waits, or its action has come to an end."""
        self.began.wait()
        before = -1
        while before != self.made:
            before = self.made
            time.sleep(STANDS_STILL)

    def _meet(self, frame: FrameType, has_called: bool) -> None:
        self.made += 1
        if self.made >= self.at and not self.place and not self._is_spared(frame, has_called):
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            self._interrupt()

    def _is_spared(self, frame: FrameType, has_called: bool) -> bool:
        """Whether no signal's exception comes there, or it would be dropped, or the frame is not the action's."""
        code = frame.f_code
        is_bound = not has_called and code.co_code[frame.f_lasti] in SPARED
        return is_bound or code in AROUND or self._spares(code) or is_swallowed(frame)


class Stage:
    """The threads: the main thread, which is interrupted, a hold that must stay renewed, and two other threads."""

    def __init__(
        self, kind: str, binding: Threads, is_loud: bool = False, prepare: Callable[[], object] = lambda: None
    ) -> None:
        from django_rlock import LockTimeoutError, signals
        from tests.faults.storm_kinds import renewed_subject, subject

        self._timed_out = LockTimeoutError
        self._sent = [each for each in vars(signals).values() if isinstance(each, signals.LockSignal) and is_loud]
        self._prepare = prepare
        self.binding = binding
        self.subject = partial(subject, kind)
        self.spare = self.subject("spare")
        self.kept = renewed_subject(kind, "kept")
        self.grant = self.kept.acquire()
        self.aim = Aim(binding.interrupt, binding.spares)
        self.other, self.another = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.left: list[Any] = []

    def interrupt(self, action: str, at: int) -> bool:
        """Interrupt an action at an opcode; returns whether it has so many."""
        for each in self._sent:
            each.disconnect(_hear)
            each.connect(_hear)  # Django forgets what receivers its senders had
        name = f"{action}:{at}"
        mine = self.subject(name)
        self.aim.rest()
        with self._holder(action, name, mine):
            interruption = self._strike(action, mine, at)
        if interruption is not None:
            mine.note_interrupted(interruption)
        del interruption  # its frames keep alive what was interrupted,
        gc.collect()  # and may be part of a circle
        mine.sweep()
        if action == "second":
            self._behind.result()
        self.left.append(mine)
        if len(self.left) == TOGETHER:
            self.see_others()
        return bool(self.aim.place)

    def _strike(self, action: str, mine: Any, at: int) -> BaseException | None:
        """What interrupted the action, if it has so many opcodes."""
        try:
            self.binding.run(self._play(action, mine, at))
        except self.binding.interrupted_by as interruption:
            return interruption
        finally:
            self.aim.end()
            tell(action=action, at=at, place=self.aim.place)
        return None

    async def _play(self, action: str, mine: Any, at: int) -> None:
        held = await self.binding.call(mine, "acquire") if action in HELD_BEFORE else None
        self._prepare()
        self.aim.begin(at)
        try:
            await getattr(self, f"_{action}")(mine, held)
        finally:
            self.aim.end()
        if held:
            await self.binding.call(mine, "give_back", held)

    def see_others(self) -> None:
        """Another thread gets each of the locks, is woken by the main thread, and has a block of its own time out."""
        while self.left:
            for block in self.left.pop().blocks_afterwards():
                self.other.submit(self.binding.enter_elsewhere, block).result()
        self.binding.run(self._wake())
        with _Holder(self.another, self.spare):
            self.other.submit(self._time_out).result()
        gc.freeze()  # so that collecting takes little time
        tell(others="go on")

    def live_on(self) -> None:
        """The hold that was there all the time is still renewed."""
        eventually(Renewal(lambda: self.kept.lease(self.grant)).seen, within=2 * SHORT_LEASE)
        self.kept.give_back(self.grant)

    # --- actions of the main thread ----------------------------------------------------------------------------------

    async def _pair(self, mine: Any, _: object) -> None:
        await self.binding.call(mine, "give_back", await self.binding.call(mine, "acquire"))

    _wait = _second = _again = _pair

    async def _extend(self, mine: Any, held: object) -> None:
        await self.binding.call(mine, "extend", held, EXTENDED)

    async def _force(self, mine: Any, _: object) -> None:
        await self.binding.call(mine, "force")
        await self.binding.call(mine, "acquire")

    async def _leave(self, mine: Any, held: object) -> None:
        await self.binding.call(mine, "leave", held, KEPT)
        await self.binding.call(mine, "acquire")

    async def _timeout(self, mine: Any, _: object) -> None:
        if grant := await self.binding.call(mine, "acquire", wait_time=BRIEF):
            await self.binding.call(mine, "give_back", grant)

    async def _block(self, mine: Any, _: object) -> None:
        with suppress(self._timed_out):
            await self.binding.enter(mine.brief_block())

    # --- the others --------------------------------------------------------------------------------------------------

    def _holder(self, action: str, name: str, mine: Any) -> AbstractContextManager[object]:
        """Who is inside meanwhile."""
        if action == "wait":
            return _Holder(self.other, mine, self.aim.until_it_stands_still)
        if action == "second":
            return _Holder(self.other, mine, partial(self._queue_behind, name, mine))
        return _Holder(self.other, mine) if action in {"timeout", "block"} else nullcontext()

    def _queue_behind(self, name: str, mine: Any) -> None:
        """Have another thread wait too. It gets what the main thread was woken for, if that is interrupted then."""
        self.aim.until_it_stands_still()
        self._behind = self.another.submit(self.binding.enter_elsewhere, mine.their_block())
        _until_it_waits(self._behind, name)

    async def _wake(self) -> None:
        grant = await self.binding.call(self.spare, "acquire")
        woken = self.other.submit(self.binding.enter_elsewhere, self.spare.their_block())
        _until_it_waits(woken, "spare")
        await self.binding.call(self.spare, "give_back", grant)
        woken.result()

    def _time_out(self) -> None:
        with suppress(self._timed_out):
            self.binding.enter_elsewhere(self.spare.brief_block())


EVENT_LOOP = asyncio.BaseEventLoop.run_forever
AROUND = {each.__code__ for each in (Aim.begin, Aim.end, Stage._play, watch_opcodes, EVENT_LOOP)}
"""What runs around an action. Since Python 3.14, asyncio takes its loop for running for ever after an exception at its
jump back (see ``test_jumps_back``), so that its thread could run no other one.
"""


def _hear(**_: object) -> None:
    """A receiver of signals."""


class _Holder:
    """Another thread that is inside, until something has happened or the block is left."""

    def __init__(self, thread: ThreadPoolExecutor, mine: Any, until: Callable[[], object] | None = None) -> None:
        self._inside, self._left = threading.Event(), threading.Event()
        self._until = until or self._left.wait
        self._held = thread.submit(self._hold, mine)

    def _hold(self, mine: Any) -> None:
        with mine.their_block():
            self._inside.set()
            self._until()

    def __enter__(self) -> None:
        while not self._inside.wait(1):
            if self._held.done():
                self._held.result()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._held.result()


def _until_it_waits(call: Future[Any], name: str) -> None:
    from django_rlock.locks.holds import WAITS

    while not (call.done() or any(wait.lock.name.startswith(name) for wait in WAITS.snapshot())):
        time.sleep(STANDS_STILL / 10)
    time.sleep(STANDS_STILL)  # mostly it sleeps by then; if not, it is woken early


def _wait_for_answers() -> None:
    """Let who asks for a holder stop where redis-py does."""
    from django_rlock.console import inspection

    inspection.READ_WITHIN = UNSEEN


def share_a_mutex(how: str) -> None:
    """Have all callers take a mutex that an interruption may leave locked, to see that this is noticed."""
    from django_rlock._transport.pool import Server

    mutex, take = threading.Lock(), Server.take_idle

    def take_alone(server: Server, now: float | None = None) -> Any:
        mutex.acquire()
        try:
            return take(server, now)
        finally:
            mutex.release()

    def take_within(server: Server, now: float | None = None) -> Any:
        with mutex:
            return take(server, now)

    Server.take_idle = {"alone": take_alone, "within": take_within}[how]  # type: ignore[assignment]


def cutter(urls: Sequence[str]) -> Callable[[], None]:
    """Returns what closes all connections for commands, at the servers' end, but not during a renewal. The interrupted
    thread leaves the background thread so little time that a renewal can take longer than passes between two cuts.
    """
    from django_rlock.locks.watchdog import Renewals

    clients = [redis.Redis.from_url(url) for url in urls]
    in_use, renew = threading.Lock(), Renewals._renew

    async def renew_uncut(renewals: Renewals, due: list[Any]) -> None:
        with in_use:
            await renew(renewals, due)

    def cut() -> None:
        with in_use:
            for client in clients:
                client.client_kill_filter(_type="normal", skipme=True)

    Renewals._renew = renew_uncut  # type: ignore[method-assign, assignment]
    return cut


def actions_of(kind: str) -> list[str]:
    """The actions that a kind has."""
    return [action for action in ACTIONS if action not in IMPOSSIBLE.get(kind, ())]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=ALL_KINDS)
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--cache", type=json.loads, help="the entry of CACHES as JSON, if there is no URL")
    parser.add_argument("--replica-acks", type=int, default=0)
    parser.add_argument("--binding", choices=BINDINGS, default="threads")
    parser.add_argument("--action", choices=ACTIONS, nargs="+", help="one or more (all)")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--loud", action="store_true", help="send all signals, each as if it were the first time")
    parser.add_argument("--cut", action="store_true", help="close the connections before each action")
    parser.add_argument("--mutex", choices=["alone", "within"], help="put a mutex in the way of all, to be found")
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    limits = {"WAITER_ALIVE_TIME": UNSEEN, "CLAIM_TIME": UNSEEN}
    if len(options.urls) > 1:
        limits["NODE_TIMEOUT"] = NODE_TIMEOUT
    set_up(options.urls, options.cache, options.replica_acks, **limits)
    _wait_for_answers()
    if options.mutex:
        share_a_mutex(options.mutex)
    try:
        prepare = cutter(options.urls) if options.cut else lambda: None
        interrupt_all(Stage(options.kind, BINDINGS[options.binding](), options.loud, prepare), options)
        tell(ended=True)
    except BaseException:  # noqa: BLE001 - the watcher reports it
        traceback.print_exc()
        os._exit(1)  # without waiting for threads that may have stopped
    os._exit(0)


def interrupt_all(stage: Stage, options: argparse.Namespace) -> None:
    """Interrupt all actions at each opcode of the stride."""
    for action in options.action or actions_of(options.kind):
        stage.interrupt(action, sys.maxsize)  # once in full, so that what is made on first use is there
        misses = 0
        for at in count(options.first, options.stride):
            misses = 0 if stage.interrupt(action, at) else misses + 1
            if misses == MISSES:
                break
    stage.see_others()
    stage.live_on()


if __name__ == "__main__":
    main()
