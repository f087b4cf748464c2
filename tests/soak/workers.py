"""A worker process: threads and tasks that acquire and release at random, and record what they had.

The process is one of ``tests.processes``, which runs the expressions that it is sent; see ``crew``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from django_rlock import CountDownLatch, LockLostError, LockNotOwnedError, PermitNotHeldError, RLockError, rlock
from django_rlock._transport.calls import run_sync
from tests.soak.control import NO_LOCKS
from tests.soak.grips import EXTENSIONS, KINDS, LEASES, ONE, Binding, Grip, Tasks, Threads, last_semaphore
from tests.soak.records import Log, now

MANY, FEW = (5, 10), (2, 3)
"""Threads and tasks of each process; there are few where nothing locks, because all of them overlap then."""
WAITS = (*(0, 0.02, 0.05, 0.1, 0.5) * 5, 2.0, 2.0, None)
"""Wait times to choose from, in seconds; None waits for ever."""
BRIEF, LONG = 0.02, 4.0
"""The longest time of most holds, and that of few, in seconds: longer than a lease."""
LOOKS_EVERY = 0.2
"""Seconds between two looks whether the hold is lost."""
IDLE = 0.005
"""Seconds between two turns, on average: machines have other things to do."""
LATCH_COUNT = 3
LATCH_WAIT = 10.0
_PR_SET_PDEATHSIG = 1


Action = Callable[[], Coroutine[Any, Any, None]]


class Actor:
    """A thread, or a task, that has one turn after another. ``doing`` says what it is at."""

    def __init__(self, name: str, chance: Random, binding: Binding, crew: Crew) -> None:
        self.name = name
        self.chance = chance
        self.binding = binding
        self.crew = crew
        self.doing = ""
        self.is_served = False
        self._turns = 0

    async def live(self) -> None:
        while not self.crew.last_turns.is_set():
            await self._turn(self._random_turn)
            await self.binding.sleep(self.chance.expovariate(1 / IDLE))

    async def have_last_turns(self) -> None:
        """Take everything once more, and wait for it as long as that may last."""
        for make in {**self.crew.kinds, "semaphore": last_semaphore}.values():
            await self._have(partial(self._take_at_last, make))
        await self._have(self._open_latch)
        self.is_served = True

    async def _take_at_last(self, make: Callable[[Random], Grip]) -> None:
        await self._take(make(self.chance), None, None, BRIEF)

    async def _have(self, action: Action) -> None:
        while not await self._turn(action):
            await self.binding.sleep(LOOKS_EVERY)

    async def _turn(self, action: Action) -> bool:
        """Do something with locks; whether none of them refused."""
        self._turns += 1
        try:
            await action()
        except RLockError as error:
            self.crew.met[type(error).__name__] += 1
            return False
        except Exception:  # noqa: BLE001 - no other error may come out of a lock
            self.crew.log.wrong(f"{self.doing}: {traceback.format_exc()}")
        return True

    async def _random_turn(self) -> None:
        dice = self.chance.random()
        if dice < 0.003:
            await self._force()
        elif dice < 0.01:
            await self._open_latch()
        elif dice < 0.10 and isinstance(self.binding, Tasks):
            await self._be_cancelled()
        else:
            await self._take_any()

    async def _take_any(self) -> None:
        grip = self.crew.kinds[self.chance.choice(list(self.crew.kinds))](self.chance)
        lasts = LONG if self.chance.random() < 0.003 else BRIEF
        await self._take(grip, self.chance.choice(WAITS), self.chance.choice(LEASES), self.chance.random() * lasts)

    async def _be_cancelled(self) -> None:
        turn = asyncio.create_task(self._take_any())
        turn.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where this task is cancelled
        await asyncio.wait({turn}, timeout=self.chance.random() * self.chance.choice((0.005, 0.1, 1.0)))
        turn.cancel()
        await asyncio.wait({turn})
        if not turn.cancelled() and (error := turn.exception()):
            raise error

    # --- a hold ------------------------------------------------------------------------------------------------------

    async def _take(
        self, grip: Grip, wait: float | None, lease: float | None, lasts: float, inner: bool = False
    ) -> None:
        self.doing = f"takes {grip.kind} {grip.names} since {now():.3f}"
        asked = now()
        if not await grip.acquire(self.binding, wait, lease):
            self.crew.met["not in time"] += 1
            return
        got = now()
        hold = self._note(grip, asked, got)
        if lasts > LONG / 4:
            self.crew.long_holds.add(hold)
        try:
            await self._be_inside(hold, grip, got + lasts, inner)
        finally:
            self.crew.long_holds.discard(hold)
            self.crew.log.write("leaving", id=hold, at=now())
            await self._give_back(hold, grip)

    def _note(self, grip: Grip, asked: float, got: float) -> str:
        hold = self.crew.new_id()
        lost, deadline, lease = grip.promise()
        token = None
        with contextlib.suppress(LockLostError):
            token = grip.token()
        self.crew.log.write(
            "got",
            id=hold,
            kind=grip.kind,
            place=grip.place,
            names=grip.names,
            mode=grip.mode,
            amount=grip.amount,
            limit=grip.limit,
            owner=f"{self.name}.{self._turns}",
            asked=asked,
            got=got,
            deadline=got if lost else deadline,
            lease=lease,
            token=token,
        )
        self.crew.met[f"got {grip.kind}"] += 1
        return hold

    async def _be_inside(self, hold: str, grip: Grip, until: float, inner: bool) -> None:
        self.doing = f"has {grip.kind} {grip.names} since {now():.3f}"
        while self._is_held(hold, grip) and (left := until - now()) > 0:
            dice = self.chance.random()
            if dice < 0.1 and grip.again:
                await self._enter_again(grip)
            elif dice < 0.2 and grip.extends:
                self.crew.log.write("changing", id=hold, at=now())
                await grip.extend(self.binding, self.chance.choice(EXTENSIONS))
            elif dice < 0.3 and not inner:
                other = self.crew.kinds[self.chance.choice(list(self.crew.kinds))](self.chance)
                await self._take(other, self.chance.choice((0, 0.1)), None, BRIEF * self.chance.random(), inner=True)
            else:
                await self.binding.sleep(min(left, LOOKS_EVERY))

    def _is_held(self, hold: str, grip: Grip) -> bool:
        """Ask the lock, and write down what it says."""
        at = now()
        lost, deadline, lease = grip.promise()
        if lost:
            self.crew.log.write("lost", id=hold, at=at)
        else:
            self.crew.log.write("seen", id=hold, at=at, deadline=deadline, lease=lease)
        return not lost

    async def _enter_again(self, grip: Grip) -> None:
        if await grip.acquire(self.binding, 0, self.chance.choice(LEASES)):
            try:
                await self.binding.sleep(BRIEF * self.chance.random())
            finally:
                await grip.release(self.binding)

    async def _give_back(self, hold: str, grip: Grip) -> None:
        was_lost = grip.tells and grip.is_lost()
        try:
            await grip.release(self.binding)
        except (LockLostError, LockNotOwnedError, PermitNotHeldError):
            # Losses in inner blocks are reported as well; that the lock was lost is what counts.
            self.crew.log.write("lost", id=hold, at=now())
            raise
        if was_lost:
            self.crew.log.wrong(f"The loss of {hold}, {grip.kind} {grip.names}, was not told when it was given back.")

    # --- other turns -------------------------------------------------------------------------------------------------

    async def _force(self) -> None:
        """As an operator does, whoever holds the lock."""
        grip = self.crew.kinds[self.chance.choice(list(self.crew.kinds))](self.chance)
        if grip.kind == "multi" or not hasattr(grip.lock, "force_release"):
            return
        name, freed = grip.names[0], self.crew.new_id()
        self.doing = f"frees {name}"
        self.crew.log.write("freeing", id=freed, deed="free by force", place=grip.place, name=name, began=now())
        lock = rlock(name, kind=grip.lock.kind, using=grip.place)
        await self.binding.call(lock, "force_release", reason="soak")
        self.crew.log.write("freed", id=freed, ended=now())

    async def _open_latch(self) -> None:
        """No waiter passes before it was counted down."""
        since = now()
        latch = CountDownLatch(f"latch:{self.crew.new_id()}", using=ONE)
        self.doing = f"opens {latch.name}"
        if not await self.binding.call(latch, "try_set_count", LATCH_COUNT):
            self.crew.log.wrong(f"{latch!r} was closed before it was made.", ONE, since)
        begun: list[float] = []
        delays = [self.chance.random() * 10 * BRIEF for _ in range(LATCH_COUNT)]

        async def count_down() -> None:
            await self.binding.sleep(delays[len(begun)])
            begun.append(now())
            with contextlib.suppress(RLockError):
                await self.binding.call(latch, "count_down")

        async def wait() -> None:
            with contextlib.suppress(RLockError):
                if await self.binding.call(latch, "wait", wait_time=LATCH_WAIT) and len(begun) < LATCH_COUNT:
                    self.crew.log.wrong(f"{latch!r} let one pass at {len(begun)} of {LATCH_COUNT}.", ONE, since)

        await self.binding.elsewhere(wait, *[count_down] * LATCH_COUNT)
        await self.binding.call(latch, "delete")


class Crew:
    """The actors of this process."""

    def __init__(self, name: str, seed: str, folder: Path, control: bool) -> None:
        self.name = name
        self.log = Log(folder, name)
        self.kinds = NO_LOCKS if control else KINDS
        self.met: Counter[str] = Counter()
        self.long_holds: set[str] = set()
        self.last_turns = threading.Event()
        self._numbers = iter(range(1 << 60))
        self._chance = Random(seed)
        threads, tasks = FEW if control else MANY
        bindings: list[Binding] = [*(Threads() for _ in range(threads)), *(Tasks() for _ in range(tasks))]
        self._actors = [
            Actor(f"{name}.{number}", Random(f"{seed}/{number}"), binding, self)
            for number, binding in enumerate(bindings)
        ]
        self._threads = [
            *(
                threading.Thread(target=self._run_thread, args=(actor,), daemon=True)
                for actor in self._actors[:threads]
            ),
            threading.Thread(target=self._run_loops, args=(self._actors[threads:],), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def new_id(self) -> str:
        return f"{self.name}/{next(self._numbers)}"

    def _run_thread(self, actor: Actor) -> None:
        run_sync(actor.live())
        run_sync(actor.have_last_turns())

    def _run_loops(self, actors: Sequence[Actor]) -> None:
        """One event loop after another; what its tasks are at when it ends is cancelled."""
        while not self.last_turns.is_set():
            asyncio.run(self._run_tasks(actors))
        asyncio.run(_all(actor.have_last_turns() for actor in actors))

    async def _run_tasks(self, actors: Sequence[Actor]) -> None:
        tasks = {asyncio.create_task(actor.live()) for actor in actors}
        lasts = self._chance.uniform(2, 10)
        ends = now() + lasts
        while now() < ends and not self.last_turns.is_set():
            await asyncio.wait(tasks, timeout=0.1)
        if self.last_turns.is_set() and self._chance.random() < 0.5:
            await asyncio.wait(tasks)  # else they are cancelled

    def served(self) -> list[str]:
        """What those are at who have not had their last turns yet."""
        waiting = [f"{actor.name} {actor.doing}" for actor in self._actors if not actor.is_served]
        return waiting or [str(thread) for thread in self._threads if thread.is_alive()]


async def _all(coroutines: Iterator[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*coroutines)


_crew: list[Crew] = []
"""The one of this process."""


def begin(
    name: str, seed: str, folder: str, settings: dict[str, Any], clocks: str | None = None, control: bool = False
) -> int:
    """Start all threads and tasks, by the clocks of a file; returns the pid."""
    from django.conf import settings as django_settings

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also while it is stopped
    if clocks is not None:
        ctypes.CDLL(None).use_clocks(clocks.encode())
    for option, value in settings.items():
        setattr(django_settings, option, value)
    stacks = (Path(folder) / f"{name}.stacks").open("w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    logger = logging.getLogger("django_rlock")
    logger.addHandler(logging.FileHandler(Path(folder) / f"{name}.log"))
    logger.propagate = False
    _crew.append(Crew(name, seed, Path(folder), control))
    return os.getpid()


def have_last_turns() -> None:
    _crew[0].last_turns.set()


def long_holds() -> int:
    """How many holds there are that are meant to last for longer than a second."""
    return len(_crew[0].long_holds)


def served() -> list[str]:
    return _crew[0].served()


def met() -> dict[str, int]:
    return _crew[0].met


def left() -> dict[str, Any]:
    """What this process has left when nothing is held or waited for any more."""
    from tests.soak.leaks import left_in_this_process

    return left_in_this_process()


def run(function: str, arguments: str) -> Any:
    """Call one of the functions above, by name, with arguments in JSON."""
    args, kwargs = json.loads(arguments)
    return globals()[function](*args, **kwargs)
