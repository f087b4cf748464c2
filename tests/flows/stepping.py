"""A third driver, which suspends before every call and lets the test choose who goes next.

The flows are the real ones (take, wait, give back, beat) and so is the server; only time, threads and the delivery of
messages are the test's. ``explore`` runs every order of the actors' steps, as far as they lead to different states.
"""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Self

import pytest
import redis

from django_rlock.drivers import background, identity
from django_rlock.drivers.base import EVERYBODY, ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.locks import BaseLock, flows, holds, watchdog
from django_rlock.locks.holds import HOLDS, WAITS

LEASE = 1000.0
NAME = "stock:42"
KEY = f"rlock:{NAME}"

_STATE = """
local lock = redis.call('hgetall', KEYS[1])
return {lock, redis.call('zrange', KEYS[2], 0, -1), redis.call('zrange', KEYS[3], 0, -1)}
"""


@types.coroutine
def _suspend(why: str) -> Generator[str, Any, Any]:
    return (yield why)


class Process:
    """A client process: its identity, the channels it listens to, and what its background thread has to do."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.identity = identity._Process()
        self.identity.client_id = f"{number:036d}"
        self.identity.numbers = itertools.count(1000 * number)
        self.channels: set[str] = set()
        self.deferred: list[tuple[ScriptCall, float]] = []
        self.dead = False


class Waiter:
    """Sleeps until the world says that it was woken, or that its time is up."""

    def __init__(self, driver: SteppingDriver, channel: str, token: str | None) -> None:
        self.driver = driver
        self.channel = channel
        self.token = token
        self.woken = False
        driver.world.waiters.append(self)

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        if await _suspend("wait") == "timeout":
            self.driver.clock += timeout or 0
            return False
        self.woken = False
        return True

    def wake(self) -> None:
        self.woken = True

    def close(self) -> None:
        self.driver.world.waiters.remove(self)
        if self.woken and self.token is None:
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

    def check_caller(self) -> None:
        pass

    def owner(self) -> Owner:
        raise AssertionError("the actors bring their owners")

    def at(self, using: str) -> SteppingDriver:
        return self

    def place(self, key: str) -> object:
        return None

    async def run(self, call: ScriptCall, until: float | None = None) -> list[Any]:
        call.sends += 1
        call.sent_at = self.clock
        self.world.under_way = call
        await _suspend("send")
        self.reply = self.world.execute(call)
        if self.split:
            await _suspend("reply")
        return self.reply

    def take(self, call: ScriptCall, until: float | None, undo: Any) -> Coroutine[Any, Any, list[Any]]:
        return self.run(call, until)

    def overhear(self, channel: str, token: str | None) -> Waiter | None:
        return Waiter(self, channel, token) if channel in self.process.channels else None

    async def listen(self, channel: str, token: str | None) -> Waiter:
        waiter = Waiter(self, channel, token)
        try:
            await _suspend("subscribe")
        except BaseException:
            waiter.close()
            raise
        self.process.channels.add(channel)
        return waiter

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the kinds tested here are woken")

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Actor:
    """A coroutine over a driver, where it stands, and how it ended."""

    def __init__(self, world: World, process: Process, split: bool = False) -> None:
        self.world = world
        self.process = process
        self.driver = SteppingDriver(world, process, split)
        self.at = "start"
        self.call: ScriptCall | None = None
        self.result: Any = None

    def start(self, body: Coroutine[Any, Any, Any]) -> None:
        self.body = body

    def step(self, value: str | None = None, error: type[BaseException] | None = None) -> None:
        identity._process = self.process.identity
        self.world.running = self.process
        try:
            self.at = self.body.throw(error()) if error else self.body.send(value)
            if self.at == "send":
                self.call = self.world.under_way
        except StopIteration as end:
            self.at, self.result = "done", end.value
        except asyncio.CancelledError:
            self.at, self.result = "done", "cancelled"

    def position(self) -> tuple[Any, ...]:
        """Where it stands, and the local state that its further steps depend on."""
        call = self.call and (self.call.script.name, self.call.args)
        reply = self.driver.reply[1:] if self.at == "reply" else None
        waiter = self.waiter and self.waiter.woken
        return self.at, self.result, call, repr(reply), waiter, self.driver.clock, self.local_state()

    def local_state(self) -> Any:
        return None

    @property
    def waiter(self) -> Waiter | None:
        return next((each for each in self.world.waiters if each.driver is self.driver), None)


class Visitor(Actor):
    """Takes the lock, is inside for a step, and gives it back."""

    def __init__(
        self, world: World, process: Process, lock: BaseLock, wait: float | None = None, split: bool = False
    ) -> None:
        super().__init__(world, process, split)
        before, identity._process = identity._process, process.identity
        self.owner = Owner(f"visitor of {process.number}", lambda: True)
        identity._process = before
        self.lock = lock
        self.start(self._visit(wait))

    def local_state(self) -> Any:
        waits = any(wait.owner == self.owner.name for wait in WAITS.snapshot())
        return waits, HOLDS.get(self.lock, self.owner) is None, self.owner.name

    async def _visit(self, wait: float | None) -> str:
        if await self.lock._take(self.driver, self.owner, wait, LEASE) is not None:
            return "timeout"
        self.world.enter(self)
        try:
            await _suspend("inside")
        finally:
            self.world.inside.remove(self)
            await self.lock._give_back(self.driver, self.owner)
        return "served"


class Beater(Actor):
    """The background thread of a process, which beats ``times`` times for those who wait in it."""

    def __init__(self, world: World, process: Process, times: int, split: bool = False) -> None:
        super().__init__(world, process, split)
        self.left = times
        self.start(self._beat(times))

    def local_state(self) -> Any:
        return self.left

    async def _beat(self, times: int) -> str:
        for self.left in reversed(range(times)):
            await _suspend("idle")
            mine = [wait for wait in WAITS.snapshot() if wait.owner.startswith(self.process.identity.client_id)]
            if mine:
                reply = await self.driver.run(mine[0].lock.beat_call(mine[0].owner))
                watchdog.note_beat(mine, reply, self.driver.now())
        return "done"


Action = tuple[str, int]


class World:
    """The server, the messages on their way, the actors, and the faults that the test allows."""

    def __init__(self, client: redis.Redis, listener: redis.client.PubSub) -> None:
        self.client = client
        self.listener = listener
        self.actors: list[Actor] = []
        self.waiters: list[Waiter] = []
        self.inside: list[Actor] = []
        self.messages: list[tuple[Process, str, str]] = []
        self.late: list[ScriptCall] = []
        self.processes: list[Process] = []
        self.running: Process | None = None
        self.under_way: ScriptCall | None = None
        self.nonces = itertools.count()
        self.tickets: list[str] = []
        self.served: list[str] = []
        self.order_matters = False
        self.may: dict[str, int] = {}
        client.flushdb()
        HOLDS.clear()
        WAITS.clear()

    def process(self) -> Process:
        self.processes.append(Process(len(self.processes) + 1))
        return self.processes[-1]

    # --- the server --------------------------------------------------------------------------------------------------

    def execute(self, call: ScriptCall) -> list[Any]:
        """Run a call on the server, and put the messages that it published on their way."""
        nonce = str(next(self.nonces))
        arguments = [*call.keys, nonce, *map(str, call.args)]
        try:
            reply: Any = self.client.evalsha(call.script.sha, len(call.keys), *arguments)
        except redis.exceptions.NoScriptError:
            reply = self.client.eval(call.script.source, len(call.keys), *arguments)
        assert reply[0] == nonce.encode()
        self._collect_messages()
        self._note_ticket(call, reply)
        return reply

    def _collect_messages(self) -> None:
        self.listener.ping("done")  # its answer comes behind all that was published before
        while (message := self.listener.get_message(timeout=5)) is None or message["type"] != "pong":
            if message is not None and message["type"] == "pmessage":
                channel, text = message["channel"].decode(), message["data"].decode()
                self.messages += [(each, channel, text) for each in self.processes if channel in each.channels]

    def _note_ticket(self, call: ScriptCall, reply: list[Any]) -> None:
        waits = call.script.name == "fair_acquire" and reply[1] != b"OK" and call.args[-1] != 0
        if waits and call.args[0] not in self.tickets:
            self.tickets.append(str(call.args[0]))

    def enter(self, actor: Visitor) -> None:
        assert not self.inside, "two inside at once"
        self.inside.append(actor)
        hold = HOLDS.get(actor.lock, actor.owner)
        assert hold is not None
        self.served.append(hold.owner)

    def wake(self, process: Process, channel: str, text: str) -> None:
        line = [each for each in self.waiters if each.driver.process is process and each.channel == channel]
        exact = [each for each in line if each.token == text]
        in_turn = exact or [each for each in line if each.token is None]
        for waiter in [*in_turn[:1], *(each for each in line if each.token == EVERYBODY)]:
            waiter.wake()

    def pass_on(self, process: Process, channel: str) -> None:
        for waiter in self.waiters:
            if (waiter.driver.process, waiter.channel, waiter.token) == (process, channel, None):
                waiter.wake()
                return

    # --- what can happen next ----------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for number, actor in enumerate(self.actors):
            if actor.at == "done" or actor.process.dead:
                continue
            if actor.at != "wait" or (actor.waiter and actor.waiter.woken):
                found.append(("step", number))
            if actor.at == "wait" and self.may.get("timeout"):
                found.append(("timeout", number))
            if isinstance(actor, Visitor) and self.may.get("cancel") and actor.at not in {"start", "inside"}:
                found.append(("cancel", number))
                if actor.at == "send":
                    found.append(("cancel, late", number))
            if isinstance(actor, Visitor) and self.may.get("kill"):
                found.append(("kill", number))
        found += [("deliver", 0)] if self.messages else []
        found += [("lose", 0)] if self.messages and self.may.get("lose") else []
        found += [("arrive", 0)] if self.late else []
        for each in self.processes:
            # What is to come a second later comes when all that was under way has arrived.
            if each.deferred and not each.dead and not (self.late and each.deferred[0][1]):
                found.append(("defer", each.number))
        return found

    def do(self, action: Action) -> None:
        kind, number = action
        if kind in self.may:
            self.may[kind] -= 1
        match kind:
            case "step":
                self.actors[number].step()
            case "timeout":
                self.actors[number].step("timeout")
            case "cancel" | "cancel, late":
                self._cancel(self.actors[number], late=kind != "cancel")
            case "kill":
                self._kill(self.actors[number])
            case "deliver":
                process, channel, text = self.messages.pop(0)
                self.wake(process, channel, text)
            case "lose":
                self.messages.pop(0)
            case "arrive":
                self.execute(self.late.pop(0))
            case "defer":
                self.execute(self.processes[number - 1].deferred.pop(0)[0])

    def _cancel(self, actor: Actor, late: bool) -> None:
        if late:
            self.may["cancel"] -= 1
            assert actor.call is not None
            self.late.append(actor.call)
        actor.step(error=asyncio.CancelledError)

    def _kill(self, actor: Actor) -> None:
        """Nothing of it runs any more; its lease and its alive time end before the others look again."""
        actor.process.dead = True
        self.inside = [each for each in self.inside if each.process is not actor.process]
        client = actor.process.identity.client_id
        self.client.zrem(f"rlock_alive:{{{KEY}}}", client)
        holders: Any = self.client.hkeys(KEY)
        if any(owner.decode().startswith(client) for owner in holders):
            self.client.delete(KEY)

    def state(self) -> tuple[Any, ...]:
        """What the future depends on."""
        server = self.client.eval(_STATE, 3, KEY, f"rlock_queue:{{{KEY}}}", f"rlock_alive:{{{KEY}}}")
        return (
            tuple(each.position() for each in self.actors),
            repr(server),
            tuple((process.number, *rest) for process, *rest in self.messages),
            tuple((each.dead, tuple(call.args for call, _ in each.deferred)) for each in self.processes),
            tuple(call.args for call in self.late),
            tuple(self.may.items()),
            tuple(self.served) if self.order_matters else (),
        )

    def repair(self) -> None:
        """A beat of each process that is alive, as it comes every few seconds."""
        for process in self.processes:
            if not process.dead:
                beater = Beater(self, process, 1)
                while beater.at != "done":
                    beater.step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What is still suspended must not clean up on the server of the next run.
        self.execute = lambda call: [b"", 0]  # type: ignore[method-assign]
        self.inside = [actor for actor in self.actors for _ in range(2)]
        for actor in self.actors:
            while True:
                try:
                    actor.body.throw(GeneratorExit())
                except BaseException:  # noqa: BLE001 - it has ended
                    break


def explore(build: Callable[[], World], check: Callable[[World], None], limit: int = 4000) -> int:
    """Run every order of steps until nothing can happen any more, then ``check``; answers how many states there are."""
    seen: set[Any] = set()
    todo: list[tuple[Action, ...]] = [()]
    while todo:
        path = todo.pop()
        with build() as world:
            try:
                for action in path:
                    world.do(action)
                while (state := world.state()) not in seen:
                    seen.add(state)
                    assert len(seen) <= limit, "more states than this test has time for"
                    actions = world.actions()
                    if not actions:
                        check(world)
                        break
                    todo += [(*path, other) for other in actions[1:]]
                    path = (*path, actions[0])
                    world.do(actions[0])
            except BaseException as error:
                error.add_note("After: " + ", ".join(f"{kind} {number}" for kind, number in path))
                raise
    return len(seen)


@pytest.fixture
def make_world(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Makes worlds on the suite's server, one after the other; what the flows defer goes to the last of them."""
    worlds: list[World] = []
    client = redis.Redis.from_url(_url(redis_client), protocol=2)
    listener = client.pubsub()
    listener.psubscribe("*")

    def make(kind: type[World] = World) -> World:
        worlds[:] = [kind(client, listener)]
        return worlds[0]

    def defer(_using: str, call: ScriptCall, until: float, after: float = 0.0) -> None:
        worlds[0].running.deferred.append((call, after))  # type: ignore[union-attr]

    monkeypatch.setattr(flows, "defer", defer)
    monkeypatch.setattr(holds, "defer", defer)
    monkeypatch.setattr(background, "wake_by", lambda due: None)
    monkeypatch.setattr(background, "_jobs", [])
    monkeypatch.setattr(identity, "_process", identity._process)
    yield make
    HOLDS.clear()
    WAITS.clear()
    listener.close()
    client.close()


def _url(client: redis.Redis) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}?db=0"
