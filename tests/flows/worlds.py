"""The world of a test of flows: the server, the messages on their way, the actors, and what may go wrong."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import redis

from django_rlock import ReadLock
from django_rlock._redis.keys import fair_keys, queue_key, writers_key
from django_rlock._transport.calls import EVERYBODY, ScriptCall
from django_rlock._transport.worker import CleanUps, worker
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.mutex import NAMED_CALLS
from django_rlock.locks.ownership import UNSETTLED
from tests.eventually import PATIENCE
from tests.flows.stepping import NAME, Action, Actor, Beater, Process, SteppingDriver, Visitor, Waiter

_STATE = """
local all = {}
for i = 1, #KEYS, 4 do
    local is_number = redis.call('type', KEYS[i]).ok == 'string'
    all[#all + 1] = is_number and redis.call('get', KEYS[i]) or redis.call('hgetall', KEYS[i])
    for each = i + 1, i + 3 do
        all[#all + 1] = redis.call('zrange', KEYS[each], 0, -1)
    end
end
return all
"""


class Late(NamedTuple):
    """A call that the server obeys late, with its nonce, and the hold of its sender that it is about."""

    call: ScriptCall
    nonce: str
    sender: Actor
    visit: int


class World:
    """The server, the messages on their way, the actors, and the faults that the test allows: ``may`` is how often each
    may happen. ``names`` are those of the locks.
    """

    names: tuple[str, ...] = (NAME,)
    cancels: int | None = None
    """The only actor that may be cancelled; None: any."""

    def __init__(self, client: redis.Redis, listener: redis.client.PubSub) -> None:
        self.client: Any = client
        self.listener = listener
        self.actors: list[Actor] = []
        self.waiters: list[Waiter] = []
        self.inside: list[Visitor] = []
        self.messages: list[tuple[Process, str, str]] = []
        self.late: list[Late] = []
        self.processes: list[Process] = []
        self.driver: SteppingDriver | None = None
        self.under_way: ScriptCall | None = None
        self.nonces = itertools.count()
        self.tickets: list[str] = []
        self.drawn: dict[str, str] = {}
        self.served: list[str] = []
        self.order_matters = False
        self.may: dict[str, int] = {}
        client.flushdb()
        HOLDS.clear()
        WAITS.clear()
        NAMED_CALLS.forget()
        UNSETTLED.clear()
        worker("default").jobs[CleanUps].clear()

    @property
    def keys(self) -> list[str]:
        return [f"rlock:{name}" for name in self.names]

    def process(self) -> Process:
        self.processes.append(Process(len(self.processes) + 1))
        return self.processes[-1]

    # --- the server --------------------------------------------------------------------------------------------------

    def execute(self, call: ScriptCall, nonce: str | None = None) -> list[Any]:
        """Run a call on the server, and put the messages that it published on their way."""
        nonce = nonce or str(next(self.nonces))
        arguments = [*call.keys, nonce, *call.args]
        reply: Any = self.client.evalsha(call.script.sha, len(call.keys), *arguments)
        if reply == nonce.encode():
            reply = [reply, call.script.usual[0]]
        assert reply[0] == nonce.encode()
        for channel, text in self.client.remembered("messages", self._published):
            self.messages += [(each, channel, text) for each in self.processes if channel in each.channels]
        self._note_ticket(call, reply)
        return reply

    def _published(self) -> list[tuple[str, str]]:
        """Channels and texts of what was published since the last time."""
        found: list[tuple[str, str]] = []
        self.listener.ping("done")  # the reply comes behind all that was published before
        while (message := self.listener.get_message(timeout=PATIENCE)) is None or message["type"] != "pong":
            if message is not None and message["type"] == "pmessage":
                found.append((message["channel"].decode(), message["data"].decode()))
        return found

    def _note_ticket(self, call: ScriptCall, reply: list[Any]) -> None:
        if call.script.name == "fair_acquire" and len(reply) > 2 and reply[3]:
            member = str(call.args[0])
            self.drawn[reply[3].decode()] = f"{member}'s ticket {sum(member in name for name in self.drawn.values())}"
            if member not in self.tickets:
                self.tickets.append(member)

    def named(self, value: object) -> str:
        """A text in which tickets, which are times, are called by whose and his how many they are."""
        text = repr(value)
        for ticket, name in self.drawn.items():
            text = text.replace(ticket, name)
        return text

    def enter(self, actor: Visitor) -> None:
        assert all(_may_go_together(each.lock, actor.lock) for each in self.inside), "two inside at once"
        self.inside.append(actor)
        records = [HOLDS.get(part, actor.owner) for part in actor.lock.parts]
        assert all(records)
        self.served += [record.owner_id for record in records[:1] if record]

    def wake(self, process: Process, channel: str, text: str) -> None:
        line = [each for each in self.waiters if each.driver.process is process and each.channel == channel]
        ticket, _, token = text.partition(" ")
        exact = [each for each in line if each.token == token]
        in_order = exact or [each for each in line if each.token is None]
        for waiter in [*in_order[:1], *(each for each in line if each.token == EVERYBODY)]:
            waiter.ticket = ticket
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
            found += self._faults_of(number, actor)
            if actor.at != "wait" or (actor.waiter and actor.waiter.woken):
                found.append(("step", number))
            if actor.at == "wait" and self.may.get("timeout"):
                found.append(("timeout", number))
        found += [("deliver", 0)] if self.messages else []
        found += [("lose", 0)] if self.messages and self.may.get("lose") else []
        found += [("arrive", 0)] if self.late else []
        for each in self.processes:
            # A clean-up that is due a second later comes when everything under way has arrived.
            if each.deferred and not each.dead and not (self.late and each.deferred[0][1]):
                found.append(("defer", each.number))
        return found

    def _faults_of(self, number: int, actor: Actor) -> Iterator[Action]:
        may_cancel = self.may.get("cancel") and self.cancels in {None, number}
        if isinstance(actor, Visitor) and may_cancel and actor.at not in {"start", "inside"}:
            yield "cancel", number
            if actor.at == "send":
                yield "cancel, late", number
        if actor.at == "send" and self.may.get("copy"):
            yield "obeyed twice", number
            yield "obeyed late", number
        if isinstance(actor, Visitor) and self.may.get("kill"):
            yield "kill", number

    def do(self, action: Action) -> None:
        kind, number = action
        if kind in self.may:
            self.may[kind] -= 1
        match kind:
            case "step":
                self.actors[number].step()
            case "timeout":
                self.actors[number].step("timeout")
            case "deliver":
                self.wake(*self.messages.pop(0))
            case "lose":
                self.messages.pop(0)
            case "arrive":
                self._arrive(self.late.pop(0))
            case "defer":
                self.execute(self.processes[number - 1].deferred.pop(0)[0])
            case _:
                self._strike(kind, self.actors[number])

    def _strike(self, kind: str, actor: Actor) -> None:
        match kind:
            case "cancel" | "cancel, late":
                self._cancel(actor, late=kind != "cancel")
            case "obeyed twice" | "obeyed late":
                self._copy(actor, late=kind == "obeyed late")
            case "kill":
                self._kill(actor)

    def _copy(self, actor: Actor, late: bool) -> None:
        """Its connection breaks, and it sends the command again: the server has executed the first one, or will."""
        self.may["copy"] -= 1
        assert actor.call is not None
        actor.copied = True
        if late:
            self._keep(actor)
        else:
            self.execute(actor.call)
        actor.step("again")

    def _keep(self, actor: Actor) -> None:
        """Keep what it sends for later."""
        assert actor.call is not None
        self.late.append(Late(actor.call, str(next(self.nonces)), actor, actor.visits))

    def _arrive(self, late: Late) -> None:
        """Obey a call late. Where its sender has gone on, it shortens no lease: a longer one was chosen since. And it
        leaves the sender's next hold as it is.
        """
        before = [self.lease(key) for key in self.keys]
        self.execute(late.call, late.nonce)
        sender = late.sender
        if not self.inside or (sender.at == "send" and sender.call is late.call):
            return
        is_next = sender in self.inside and sender.visits != late.visit and not sender.owner.is_named
        for key, (owners, left) in zip(self.keys, before, strict=True):
            owners_now, left_now = self.lease(key)
            assert not set(owners or ()) - set(owners_now or ()), "a late copy freed the lock"
            if owners_now == owners:
                assert left_now > left - 100_000, "a late copy shortened the lease"
                assert not is_next or left_now < left + 100_000, "a late copy prolonged the next hold's lease"

    def lease(self, key: str) -> tuple[Any, int]:
        """Who has a lock, and for how many ms yet."""
        owners = self.client.hkeys(key) if self.client.type(key) == b"hash" else None
        return owners, self.client.pttl(key)

    def _cancel(self, actor: Actor, late: bool) -> None:
        if late:
            self.may["cancel"] -= 1
            self._keep(actor)
        actor.step(error=asyncio.CancelledError)

    def _kill(self, actor: Actor) -> None:
        """Nothing of it runs any more; its lease and its alive time end before the others look again."""
        actor.process.dead = True
        self.inside = [each for each in self.inside if each.process is not actor.process]
        client = actor.process.identity.client_id
        for key in self.keys:
            self.client.zrem(fair_keys(key)[2], client)
            if any(owner.decode().startswith(client) for owner in self.client.hkeys(key)):
                self.client.delete(key)

    def state(self) -> tuple[Any, ...]:
        """What the future depends on."""
        keys = [each for key in self.keys for each in (key, queue_key(key), fair_keys(key)[2], writers_key(key))]
        server = self.client.eval(_STATE, len(keys), *keys)
        return (
            tuple(each.position() for each in self.actors),
            repr(server),
            self.named([(process.number, *rest) for process, *rest in self.messages]),
            tuple((each.dead, tuple(map(_meaning, each.deferred))) for each in self.processes),
            tuple((*_meaning(late), late.visit) for late in self.late),
            tuple(self.may.items()),
            tuple(self.served) if self.order_matters else (),
        )

    def collect_clean_up(self, process: Process) -> None:
        """What the flows of a process have left to its background thread."""
        inbox = worker("default").jobs[CleanUps].inbox
        while inbox:
            call, _, gap = inbox.popleft()
            process.deferred.append((call, 0.0))
            if gap:
                process.deferred.append((call, gap))

    def repair(self) -> None:
        """A heartbeat of each process that is alive, as it comes every few seconds."""
        for process in self.processes:
            if not process.dead:
                beater = Beater(self, process, 1)
                while beater.at != "done":
                    beater.step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Coroutines that are still suspended must not clean up on the server of the next run.
        self.execute = lambda call, nonce=None: [b"", 0]  # type: ignore[method-assign]
        self.inside = [actor for actor in self.actors if isinstance(actor, Visitor) for _ in range(2)]
        for actor in self.actors:
            while True:
                try:
                    actor.body.throw(GeneratorExit())
                except BaseException:  # noqa: BLE001 - it has ended
                    break


def _may_go_together(one: BaseLock, other: BaseLock) -> bool:
    """Whether two locks have no name in common but those that both read."""
    names = {part.name for part in one.parts} & {part.name for part in other.parts}
    return all(isinstance(part, ReadLock) for part in (*one.parts, *other.parts) if part.name in names)


def _meaning(entry: tuple[ScriptCall, *tuple[Any, ...]]) -> tuple[Any, ...]:
    """What the server gets by a call that comes later."""
    call, *_ = entry
    return call.script.name, call.keys[0], call.args


def meeting(
    make_world: Callable[[], World],
    *locks: BaseLock,
    homes: Sequence[int] = (1, 2, 3),
    may: dict[str, int] | None = None,
    listening: bool = True,
    first: type[Visitor] = Visitor,
    then: Callable[[World], object] = lambda _: None,
    **options: Any,
) -> Callable[[], World]:
    """Makes worlds with a visitor of each lock, the first one of another kind perhaps, in processes with these numbers.
    All have listened before. ``then`` adds to such a world.
    """

    def build() -> World:
        world = make_world()
        used = homes[: len(locks)]
        processes = {number: world.process() for number in sorted({*used})}
        for number, (lock, home) in enumerate(zip(locks, used, strict=True)):
            visitor = (Visitor if number else first)(world, processes[home], lock, **options)
            world.actors.append(visitor)
            if listening:
                visitor.listen_before()
        then(world)
        world.may = dict(may or {})
        return world

    return build
