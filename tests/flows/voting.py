"""Lets RedLock's real flows go where its model goes, over three databases that are its nodes, and compares the two."""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._redis.keys import NODE_KEY
from django_rlock._transport.identity import Owner
from django_rlock._transport.quorum import Quorum
from django_rlock._transport.quorum.nodes import OtherLists
from django_rlock._transport.quorum.votes import Answer, Count, Proposals, QuorumCall, Restarts
from django_rlock.exceptions import RLockError
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.redlock import RedLock, Release
from django_rlock.locks.watchdog import note_loss
from models import redlock
from models.redlock import NOBODY, Client, Name, State
from tests.flows.stepping import KEY, NAME, Process, Renewer, Visitor, suspend
from tests.flows.worlds import World

TICK = 200.0
"""Seconds: no stall of the machine lasts as long."""
LEASE = 3 * TICK
DRIFT = 0.01
NODE_TIMEOUT = 30.0
NODES = 3
_OBEYS = re.compile(r"node (\d+) obeys (\w+) of \((\d+), (\d+)\) late")
_COPIES = re.compile(r"a copy of client (\d+)'s (\w+) is on its way to node (\d+)")
_OF_NODE = re.compile(r"node (\d+) (loses|goes on)")
_OF_CLIENT = re.compile(r"client (\d+) (\w+)(?:.*?(\d+))?")


def options(url: str) -> dict[str, Any]:
    """The alias "default", whose nodes are databases of one server."""
    return {
        "NODES": [f"{url.partition('?')[0]}?db={number + 1}" for number in range(NODES)],
        "NODE_TIMEOUT": NODE_TIMEOUT,
        "WATCHDOG_TIMEOUT": LEASE,
        "QUARANTINE": LEASE,
        "CLOCK_DRIFT": DRIFT,
    }


def weigh(step: str) -> float:
    """How likely a step is, beside others: most owners get the lock, and hold it for a while."""
    if step == "a tick passes":
        return 0.5
    return 0.1 if "gives up" in step or "its data" in step or "older data" in step or "does not hear" in step else 1.0


class Model(redlock.RedLock):
    """Its lease is that of ``options``, in ticks; its nodes have numbers here."""

    lease = 3

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        return self._steps(state)

    def counted(self, ticks: int) -> int:
        return ticks


class Node:
    """A database of the suite's server: scripts are executed there when the walk says so."""

    def __init__(self, client: Any, number: int) -> None:
        self.client = client
        self.run_id = f"node{number}"
        self._nonces = iter(range(10**6))
        self._replication = client.info("replication")["master_replid"]
        known = {"known": self.run_id, "kept": int(1000 * LEASE)}
        client.hset(NODE_KEY, mapping={"mark": "?", "replication": self._replication, **known})

    @property
    def is_marked(self) -> bool:
        return bool(self.client.hget(NODE_KEY, "replication") == self._replication.encode())

    def execute(self, call: QuorumCall) -> list[Any]:
        arguments = call.args if call.fresh is None else (*call.args, call.fresh)
        nonce = next(self._nonces)
        reply: list[Any] = self.client.eval(call.script.source, len(call.keys), *call.keys, nonce, *arguments)
        return reply

    def lose_data(self) -> None:
        self.client.flushdb()

    def go_back(self) -> None:
        """Come back with an older state of the data: before the lock was taken, under another replication id."""
        marks = self.client.hgetall(NODE_KEY)
        self.client.flushdb()
        if marks:
            self.client.hset(NODE_KEY, mapping=marks | {b"replication": "a former one"})

    def tick(self) -> None:
        left = int(self.client.pttl(KEY)) - int(1000 * TICK)
        if left > 1000:
            self.client.pexpire(KEY, left)
        else:
            self.client.delete(KEY)

    @property
    def left(self) -> int:
        """How many ticks are left of the lease."""
        return math.ceil(max(int(self.client.pttl(KEY)), 0) / 1000 / TICK)


class WalkSession:
    """A session in which the walk decides which node executes what when, and which reply arrives."""

    def __init__(self, driver: StepwiseQuorum) -> None:
        self.driver = driver
        self.pending: list[deque[QuorumCall]] = [deque() for _ in range(NODES)]
        self.answers: deque[Answer] = deque()

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.pending[node].append(call)

    def deliver(self, number: int, hear: bool = True) -> None:
        """Let a node execute what it was sent first, and bring the reply."""
        node = self.driver.servers[number]
        call = self.pending[number].popleft()
        reply: Any = node.execute(call)
        self.driver.restarts.meet(number, node.run_id)
        self.answers.append(Answer(number, call, reply if hear else RedisTimeoutError("did not reply in time")))

    def deliver_releases(self) -> None:
        """Let all nodes release; what was sent before does not reach them."""
        for number, calls in enumerate(self.pending):
            while calls and not isinstance(calls[0], Release):
                calls.popleft()
            if calls:
                self.deliver(number)

    async def listen(self, count: Count, until: float) -> None:
        while True:
            while self.answers:
                if count(self.answers.popleft()):
                    return
            if not any(self.pending):
                return
            await suspend("listen")

    def end_by(self, until: float) -> None:
        """Here it ends when the walk has let the nodes reply."""

    async def __aenter__(self) -> Self:
        self.driver.current = self
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class StepwiseQuorum(Quorum):
    """The real quorum over such sessions; ``restarts`` is what its process knows of the nodes."""

    def __init__(self, nodes: list[Node], process: Process, restarts: Restarts) -> None:
        super().__init__("default", self, self, self.at)
        self.servers = nodes
        self.nodes = self
        self.process = process
        self.restarts = restarts
        self.names = [str(number) for number in range(NODES)]
        self.timeout = NODE_TIMEOUT
        self.proposals = Proposals()
        self.note_lists = OtherLists("default", NODES).note
        self.lost_connections = False
        self.clock = 0.0
        self.current: WalkSession

    def now(self) -> float:
        return self.clock

    def owner(self) -> Owner:
        raise AssertionError("the actors bring their owners")

    def at(self, using: str) -> Self:
        return self

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        raise AssertionError("the actors call nothing that blocks")

    def session(self) -> WalkSession:
        return WalkSession(self)

    def send_later(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """The walk has nodes release when the model does."""

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("each attempt is the model's")


class Walker(Visitor):
    """Takes the lock once when it is told to, as often as it is told to."""

    def __init__(self, world: Any, process: Process, nodes: list[Node]) -> None:
        super().__init__(world, process, RedLock(NAME, fencing=False))
        self.driver: Any = StepwiseQuorum(nodes, process, Restarts(tuple("012"), LEASE, DRIFT))
        self.step()

    @property
    def left(self) -> int:
        """For how many ticks it counts its hold as running."""
        hold = HOLDS.get(self.lock, self.owner)
        return 0 if hold is None else math.ceil((hold.deadline - self.driver.clock) / TICK)

    async def _visit(self, wait: float | None) -> str:
        while True:
            await suspend("idle")
            with suppress(RLockError, asyncio.CancelledError):
                if await self.lock._engine.take(self.lock, self.driver, AcquireRequest(self.owner, 0, None, once=True)):
                    await suspend("inside")
                    await self.lock._engine.release(self.lock, self.driver, self.owner)


class Walk:
    """Walkers, one for each client of the model, and what of theirs may still come to the nodes."""

    def __init__(self, world: World, clients: list[Any], walkers: int) -> None:
        self.nodes = [Node(client, number) for number, client in enumerate(clients)]
        self.walkers = [Walker(world, world.process(), self.nodes) for _ in range(walkers)]
        world.actors = [*self.walkers]
        self.world = world
        self.renewers: dict[int, Any] = {}
        self.late: dict[tuple[str, Name, int], QuorumCall] = {}
        self.owner_ids: dict[Name, str] = {}
        self._asked: dict[int, QuorumCall] = {}

    def do(self, step: str, before: State, after: State) -> None:
        """Do what the model does by a step from a state to another one."""
        self.after = after
        if step == "a tick passes":
            self._tick()
        elif late := _OBEYS.fullmatch(step):
            number, what, at, used = late.groups()
            self.nodes[int(number)].execute(self.late.pop((what, (int(at), int(used)), int(number))))
        elif copied := _COPIES.fullmatch(step):
            at, what, number = copied.groups()
            client = before.clients[int(at)]
            self.late[what, (int(at), client.number), int(number)] = self._asked[int(at)]
        elif found := _OF_NODE.match(step):
            node = self.nodes[int(found[1])]
            node.lose_data() if found[2] == "loses" else node.go_back()
        else:
            found = _OF_CLIENT.match(step)
            assert found, step
            at, verb, number = found.groups()
            getattr(self, f"_{verb}")(int(at), before.clients[int(at)], *filter(None, [number]))
        for walker in self.walkers:
            walker.process.deferred.clear()

    def _actor(self, at: int, client: Client) -> Any:
        return self.renewers[at] if client.doing == redlock.RENEWING else self.walkers[at]

    # --- the servers -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for node in self.nodes:
            node.tick()
        for actor in (*self.walkers, *self.renewers.values()):
            actor.driver.clock += TICK * (1 + 2 * DRIFT)  # the slowest server ends a lease later
        for at, walker in enumerate(self.walkers):
            hold = HOLDS.get(walker.lock, walker.owner)
            if walker.at == "inside" and hold and note_loss(hold, walker.driver.clock):
                self._end_renewal(at)
                walker.step()

    # --- the clients -------------------------------------------------------------------------------------------------

    def _begins(self, at: int, client: Client) -> None:
        walker = self.walkers[at]
        walker.step()
        self._asked[at] = walker.driver.current.pending[0][0]
        self.owner_ids[at, client.number] = str(self._asked[at].args[0])

    def _renews(self, at: int, client: Client) -> None:
        walker = self.walkers[at]
        renewer: Any = Renewer(self.world, walker.process, walker)
        self.renewers[at] = renewer
        renewer.driver = StepwiseQuorum(self.nodes, walker.process, walker.driver.restarts)
        renewer.driver.clock = walker.driver.clock
        renewer.step()
        self._asked[at] = renewer.driver.current.pending[0][0]

    def _hears(self, at: int, client: Client, number: str, hear: bool = True) -> None:
        actor = self._actor(at, client)
        assert actor.at == "listen", "it has heard enough"
        actor.driver.current.deliver(int(number), hear)
        actor.step()
        if self.after.clients[at].doing == redlock.IDLE:  # granted too late
            self._release(at, client, actor)

    _is = _hears

    def _does(self, at: int, client: Client, number: str) -> None:
        self._hears(at, client, number, hear=False)

    def _ends(self, at: int, client: Client) -> None:
        assert self.renewers[at].at == "done"
        self._end_renewal(at)

    def _end_renewal(self, at: int) -> None:
        if renewer := self.renewers.pop(at, None):
            renewer.body.close()

    def _has(self, at: int, client: Client, again_at: str = "") -> None:
        self._release(at, client, self.renewers[at], again_at)
        self._end_renewal(at)
        self.walkers[at].step()

    def _releases(self, at: int, client: Client, again_at: str = "") -> None:
        self.walkers[at].step()
        self._release(at, client, self.walkers[at], again_at)

    def _gives(self, at: int, client: Client, again_at: str = "") -> None:
        walker = self.walkers[at]
        if any(isinstance(call, Release) for calls in walker.driver.current.pending for call in calls):
            self._release(at, client, walker, again_at)
            return
        walker.step(error=asyncio.CancelledError)
        undo = [call for call, _ in walker.process.deferred if isinstance(call, Release)]
        assert undo, "nothing undoes the attempt"
        for node in self.nodes:
            node.execute(undo[0])
        self._note_copy(at, client, undo[0], again_at)

    def _release(self, at: int, client: Client, actor: Any, again_at: str = "") -> None:
        session = actor.driver.current
        releases = [call for call in session.pending[0] if isinstance(call, Release)]
        assert releases, "nothing releases the nodes"
        self._note_copy(at, client, releases[0], again_at)
        session.deliver_releases()
        actor.step()

    def _note_copy(self, at: int, client: Client, release: QuorumCall, again_at: str) -> None:
        if again_at:
            self.late[redlock.RELEASE, (at, client.number), int(again_at)] = release

    # --- what both must agree on -------------------------------------------------------------------------------------

    def compare(self, state: State) -> None:
        for node, expected in zip(self.nodes, state.nodes, strict=True):
            holders = [] if expected.holder == NOBODY else [self.owner_ids[expected.holder].encode()]
            assert (node.client.hkeys(KEY), node.left) == (holders, expected.left)
            assert node.is_marked == (expected.mark >= 0)
        for walker, client in zip(self.walkers, state.clients, strict=True):
            assert walker.at == _AT[client.doing], (walker.at, client)
            if walker.at == "inside":
                assert walker.left == client.left


_AT = {redlock.IDLE: "idle", redlock.ASKING: "listen", redlock.INSIDE: "inside", redlock.RENEWING: "inside"}
"""Where a walker is while the model's client does something."""
