"""A third driver, which suspends before every call and lets the test choose who goes next; and the actors that use it.

The flows are the real ones (take, wait, give back, heartbeat, renew) and so is the server; only time, threads and the
delivery of messages are the test's. See ``worlds`` and ``exploring``.
"""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django_rlock._transport import identity
from django_rlock._transport.calls import ScriptCall
from django_rlock._transport.identity import NamedOwner, Owner
from django_rlock._transport.worker import worker
from django_rlock.locks import BaseLock, heartbeats, watchdog
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.acquire import take_serialized as take
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.ownership import UNSETTLED
from django_rlock.locks.records import Wait

if TYPE_CHECKING:
    from tests.flows.worlds import World

LEASE = 1000.0
NAME = "stock:42"
KEY = f"rlock:{NAME}"

Action = tuple[str, int]


@types.coroutine
def suspend(why: str) -> Generator[str, Any, Any]:
    return (yield why)


class Process:
    """A client process: its identity, the channels it listens to, and what its background thread has to do."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.identity = identity._Process()
        self.identity.client_id = f"{number:036d}"
        self.identity.numbers = itertools.count(1000 * number)
        self.channels: set[str] = set()
        """Where it has listened before."""
        self.deferred: list[tuple[ScriptCall, float]] = []
        self.dead = False

    def waits(self, wait: Wait) -> bool:
        """Whether it is this process that waits."""
        waiter: Any = wait._waiter()
        return waiter.driver.process is self

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be this process."""
        before, identity._process = identity._process, self.identity
        try:
            yield
        finally:
            identity._process = before


class NamedHere(NamedOwner):
    """An owner with a name that several processes use. They share one table of holds here."""

    __slots__ = ()

    def __init__(self, name: str, process: Process) -> None:
        super().__init__(name)
        self.serial = f"{name} in {process.number}"


class Waiter:
    """Sleeps until the world says that it was woken, or that its time is up."""

    def __init__(self, driver: SteppingDriver, channel: str, token: str | None) -> None:
        self.driver = driver
        self.channel = channel
        self.token = token
        self.ticket = ""
        self.woken = False
        driver.world.waiters.append(self)

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        if await suspend("wait") == "timeout":
            self.driver.clock += timeout or 0
            return False
        self.woken = False
        return True

    def wake(self) -> None:
        self.woken = True

    def close(self, asked: bool = True) -> None:
        self.driver.world.waiters.remove(self)
        if (self.woken or not asked) and self.token is None:
            self.driver.world.pass_on(self.driver.process, self.channel)


class SteppingDriver:
    """One actor's connection to the world."""

    def __init__(self, world: World, process: Process, split: bool) -> None:
        self.world = world
        self.process = process
        self.split = split
        self.clock = 0.0
        self.reply: list[Any] = []

    def now(self) -> float:
        return self.clock

    def owner(self) -> Owner:
        raise AssertionError("the actors bring their owners")

    def at(self, using: str) -> SteppingDriver:
        return self

    def location(self, key: str) -> object:
        return None

    async def run(self, call: ScriptCall, until: float | None = None, undo: Any = None) -> list[Any]:
        call.sends += 1
        call.sent_at = self.clock
        self.world.under_way = call
        while await suspend("send") == "again":
            call.sends += 1
        self.reply = self.world.execute(call)
        if self.split:
            await suspend("reply")
        return self.reply

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return [await self.run(call) for call in calls]

    @property
    def channels(self) -> set[str]:
        return self.process.channels

    def listen_if_subscribed(self, channel: str, token: str | None) -> Waiter | None:
        return Waiter(self, channel, token) if channel in self.process.channels else None

    async def listen(self, channel: str, token: str | None, until: float | None = None) -> Waiter:
        waiter = Waiter(self, channel, token)
        try:
            await suspend("subscribe")
        except BaseException:
            waiter.close()
            raise
        self.process.channels.add(channel)
        return waiter

    async def sleep(self, seconds: float) -> None:
        """The pause before a retry after a grant that came too late. The other clients' steps decide what happens
        meanwhile, so it needs no time."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Actor:
    """A coroutine over a driver, where it stands, and how it ended."""

    visits = 0
    """Which of its holds its commands are about."""

    def __init__(self, world: World, process: Process, split: bool = False) -> None:
        self.world = world
        self.process = process
        self.driver = SteppingDriver(world, process, split)
        self.at = "start"
        self.call: ScriptCall | None = None
        self.copied = False
        self.result: Any = None

    def start(self, body: Coroutine[Any, Any, Any]) -> None:
        self.body = body

    def step(self, value: str | None = None, error: type[BaseException] | None = None) -> None:
        identity._process = self.process.identity
        self.world.driver = self.driver
        try:
            self.at = self.body.throw(error()) if error else self.body.send(value)
            if self.at == "send" and value != "again":
                self.call = self.world.under_way
        except StopIteration as end:
            self.at, self.result = "done", end.value
        except asyncio.CancelledError:
            self.at, self.result = "done", "cancelled"
        finally:
            self.world.collect_clean_up(self.process)

    def position(self) -> tuple[Any, ...]:
        """Where it stands, and the local state that its further steps depend on."""
        call = self.call and (self.call.script.name, self.call.args)
        # A waiter remembers its ticket, and its attempt remembers the last reply.
        reply = self.world.named(self.driver.reply[1 if self.at == "reply" else 3 :])
        waiter = self.waiter and (self.waiter.woken, self.world.named(self.waiter.ticket))
        local = self.world.named(self.local_state())
        return self.at, self.result, call, self.copied, reply, waiter, self.driver.clock, local

    def local_state(self) -> Any:
        return None

    def at_lines(self) -> list[Any]:
        """Where each of its coroutines is, and what they have in their simple variables."""
        return [
            (frame.f_code.co_qualname, frame.f_lasti, [each for each in frame.f_locals.items() if _is_simple(each[1])])
            for frame in self.frames()
        ]

    def local(self, name: str) -> Any:
        """A variable of one of its coroutines, if there is one of this name."""
        return next((frame.f_locals[name] for frame in self.frames() if name in frame.f_locals), None)

    def frames(self) -> Iterator[types.FrameType]:
        """Those of its coroutines, the outermost first."""
        body: Any = self.body
        while frame := getattr(body, "cr_frame", None):
            yield frame
            body = body.cr_await

    @property
    def waiter(self) -> Waiter | None:
        return next((each for each in self.world.waiters if each.driver is self.driver), None)


def _is_simple(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


class Visitor(Actor):
    """Takes the lock, holds it for a step, and releases it."""

    lease: float | None = LEASE

    def __init__(
        self,
        world: World,
        process: Process,
        lock: BaseLock,
        wait: float | None = None,
        split: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(world, process, split)
        with process.running():
            self.owner = Owner(f"visitor of {process.number}") if name is None else NamedHere(name, process)
        self.lock = lock
        self.start(self._visit(wait))

    def listen_before(self) -> None:
        """As where its process has waited for these locks before."""
        with self.process.running():
            self.process.channels |= set(filter(None, [part._kind.channel(part) for part in self.lock.parts]))

    def local_state(self) -> Any:
        waits = any(wait.key[-1] == self.owner.serial for wait in WAITS.snapshot())
        return waits, HOLDS.get(self.lock, self.owner) is None, self.owner.owner_id, [*UNSETTLED]

    async def _visit(self, wait: float | None) -> str:
        if not await take(self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, self.lease)):
            return "timeout"
        self.world.enter(self)
        try:
            await self._stay()
        finally:
            self.world.inside.remove(self)
            await self.lock._engine.release(self.lock, self.driver, self.owner)
        return "served"

    async def _stay(self) -> None:
        await suspend("inside")


class Returner(Visitor):
    """Chooses leases, the later the longer, enters again, and comes back with a new hold, also after a cancellation."""

    def local_state(self) -> Any:
        hold = HOLDS.get(self.lock, self.owner)
        return super().local_state(), self.visits, hold and (hold.count, hold.lease, hold.late_lease)

    async def _visit(self, wait: float | None) -> str:
        with suppress(asyncio.CancelledError):
            await super()._visit(wait)
        self.visits += 1
        return await super()._visit(wait)

    async def _stay(self) -> None:
        await self.lock._engine.extend(self.lock, self.driver, self.owner, LEASE / 2 + self.visits)
        await take(self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), None, 2 * LEASE))
        try:
            await self.lock._engine.extend(self.lock, self.driver, self.owner, 3 * LEASE)
        finally:
            await self.lock._engine.release(self.lock, self.driver, self.owner)
        await self.lock._engine.extend(self.lock, self.driver, self.owner, 4 * LEASE)
        await suspend("inside")


class Renewer(Actor):
    """The background thread of a process, which renews once what a visitor holds by then."""

    def __init__(self, world: World, process: Process, visitor: Visitor) -> None:
        super().__init__(world, process)
        self.visitor = visitor
        self.start(self._renew())

    def local_state(self) -> Any:
        return self.at_lines()

    async def _renew(self) -> str:
        now = self.visitor.driver.clock
        due = [each for each in HOLDS.of(self.visitor.owner) if each.renewed and not each.is_lost(now)]
        if not due:
            return "nothing to renew"
        await worker("default").jobs[watchdog.Renewals]._renew(due)
        return "renewed"


class Beater(Actor):
    """The background thread of a process, which heartbeats ``times`` times for those who wait in it."""

    def __init__(self, world: World, process: Process, times: int, split: bool = False) -> None:
        super().__init__(world, process, split)
        self.left = times
        self.start(self._heartbeat(times))

    def local_state(self) -> Any:
        return self.left

    async def _heartbeat(self, times: int) -> str:
        for self.left in reversed(range(times)):
            await suspend("idle")
            waits = [wait for wait in WAITS.snapshot() if self.process.waits(wait)]
            for name in {wait.lock.name: None for wait in waits}:
                await self._send_heartbeats([wait for wait in waits if wait.lock.name == name])
        return "done"

    async def _send_heartbeats(self, waits: list[Wait]) -> None:
        lock = waits[0].lock
        reply = await self.driver.run(lock._kind.heartbeat([(lock, waits[0].asker)], 0))
        heartbeats.wake_who_must_ask(waits, reply[1])
