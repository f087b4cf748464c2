"""RedLock's own coroutines under a clock, a network and crashes that a seed decides.

The engine, the quorum driver, the calls, the holds and the watchdog's renewal are the real ones; nodes are those of
``model``. Whatever suspends hands the scheduler the time it wants to be woken at. A failure names its seed, and
``RLOCK_SEED=<seed> pytest tests/redlock -k <test>`` runs that one alone.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest import mock

from redis.exceptions import ConnectionError as RedisConnectionError

from django_rlock._redis import scripts
from django_rlock._redis.scripts import ABSENT
from django_rlock._transport.identity import Owner
from django_rlock._transport.quorum import Quorum
from django_rlock._transport.quorum.nodes import OtherLists
from django_rlock._transport.quorum.votes import (
    AHEAD,
    Answer,
    Count,
    NodeDownError,
    Proposals,
    QuorumCall,
    Restarts,
)
from django_rlock._transport.worker import AGAIN_AFTER
from django_rlock.exceptions import RLockError
from django_rlock.locks import acquire, ownership, release, watchdog
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.kinds import RENEW
from django_rlock.locks.records import Hold
from django_rlock.locks.redlock import Acquire, AcquireAgain, Bump, RedLock, Release, Renew
from django_rlock.locks.watchdog import note_loss
from tests.background import no_threads
from tests.redlock.model import Node

NAME = "x"
MARGIN = 1e-9
QUARANTINE_SHARE = 1.0
BRIEF = 4
LEASING = Acquire, AcquireAgain, Release, Renew


class BrokenError(AssertionError):
    """A property does not hold."""


@dataclass(frozen=True)
class Setting:
    """What happens in a scenario. Times are seconds, shares are probabilities.

    ``brief`` is how many clients have leases, and a quarantine, of a quarter of ``lease``.
    ``wild`` is the share of proposed tokens that are nonsense, ``singles`` how often a second someone takes a node
    alone, by a fenced lock of the same name.
    """

    nodes: int = 5
    clients: int = 3
    lasts: float = 2.5
    lease: float = 1.0
    timeout: float = 0.05
    clock_drift: float = 0.01
    rate_error: float = 0.005
    skew: float = 1.0
    delay: float = 0.002
    slow: float = 0.02
    slow_delay: float = 0.3
    loss: float = 0.01
    copies: float = 0.01
    crashes: float = 0.0
    durable: bool = False
    blackouts: float = 0.0
    returns: float = 0.0
    outage: float = 0.3
    cuts: float = 0.0
    pauses: float = 0.0
    longest_pause: float = 2.0
    steps: float = 0.0
    stepping: int = 0
    longest_step: float = 5.0
    back: bool = False
    fencing: bool = True
    renewed: float = 0.5
    longest_hold: float = 0.8
    longest_rest: float = 0.2
    wait: float | None = 1.0
    kills: float = 0.0
    again: float = 0.0
    restless: bool = False
    evicts: bool = False
    brief: int = 0
    wild: float = 0.0
    singles: float = 0.0


class World:
    """One scenario. ``now`` is true time, which no one in it can read."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.seed = seed
        self.setting = setting
        self.random = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.nodes = [SimNode(self, number) for number in range(setting.nodes)]
        self.clients = [Client(self, number) for number in range(setting.clients)]
        self.log: list[tuple[Any, ...]] = []
        self.sent: list[tuple[Client, int, QuorumCall]] = []
        self.acquired = 0
        self.bodies: set[Coroutine[Any, Any, Any]] = set()
        self.running: Client | None = None
        self.finished: list[tuple[float, float, int]] = []
        self.tokens: dict[str, int] = {}
        self.bumped: dict[str, set[int]] = {}
        self.proposed: list[int] = []
        self.agreed = 0

    @property
    def running_client(self) -> Client:
        assert self.running is not None
        return self.running

    def at(self, time: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (max(time, self.now), next(self.order), what))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, what = heapq.heappop(self.events)
            what()
        self.now = until

    def end(self) -> None:
        """Close what still runs, which must not clean up in another world."""
        for client in self.clients:
            client.dead = True
        while self.bodies:
            with suppress(RLockError):
                self.bodies.pop().close()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def travel_time(self) -> float:
        setting = self.setting
        if self.chance(setting.slow):
            return self.random.uniform(0, setting.slow_delay)
        return setting.delay * self.random.uniform(0.5, 2)

    # --- what happens by itself --------------------------------------------------------------------------------------

    def plan_faults(self) -> None:
        setting = self.setting
        for rate, fault in (
            (setting.crashes, self._crash),
            (setting.cuts, self._cut),
            (setting.pauses, self._pause),
            (setting.steps, self._step),
            (setting.blackouts, self._black_out),
            (setting.returns, self._fail_over_and_back),
            (setting.singles, self._take_one),
        ):
            time = self.random.expovariate(rate) if rate else math.inf
            while time < setting.lasts:
                self.at(time, fault)
                time += self.random.expovariate(rate)

    def _crash(self) -> None:
        node = self.random.choice(self.nodes)
        node.go_down(self.random.uniform(0, self.setting.outage))

    def _black_out(self) -> None:
        for node in self.nodes:
            node.go_down(self.random.uniform(0, self.setting.outage))

    def _fail_over_and_back(self) -> None:
        self.random.choice(self.nodes).model.fail_over_and_back()

    def _cut(self) -> None:
        client, node = self.random.choice(self.clients), self.random.choice(self.nodes)
        node.cut_until[client] = self.now + self.random.uniform(0, 1)

    def _pause(self) -> None:
        sleepers: list[Client | SimNode] = [*self.clients, *self.nodes]
        sleeper = self.random.choice(sleepers)
        sleeper.paused_until = max(sleeper.paused_until, self.now + self.random.uniform(0, self.setting.longest_pause))

    def _step(self) -> None:
        node = self.nodes[self.random.randrange(self.setting.stepping)]
        node.offset += self.random.uniform(-1, 0 if self.setting.back else 1) * self.setting.longest_step
        if self.setting.evicts and self.chance(0.3):
            marks = node.model.marks
            node.model.forget()
            node.model.marks = marks  # they are not among what is evicted

    def _take_one(self) -> None:
        node = self.random.choice(self.nodes)
        if not node.down:
            node.take_alone(f"single {next(self.order)}")

    # --- properties --------------------------------------------------------------------------------------------------

    def note_inside(self, client: Client, hold: Hold) -> None:
        """P1: at no time do two believe that they hold the lock."""
        self.log.append(("inside", self.now, client.number, hold.token))
        others = [each for each in self.clients if each is not client and each.believes]
        if others:
            raise BrokenError(f"two inside at {self.now:.4f}: {client.number} and {[each.number for each in others]}")

    def note_token(self, client: Client, began: float, token: int) -> None:
        """P9: tokens rise with the acquisitions."""
        for _, ended, other in self.finished:
            if token == other or (ended < began and token < other):
                raise BrokenError(f"token {token} of {client.number} after {other}")
        self.finished.append((began, self.now, token))


class SimNode:
    """A node in the world: its clock, and whether it can be reached."""

    def __init__(self, world: World, number: int) -> None:
        setting = world.setting
        self.world = world
        self.number = number
        self.rate = 1 + world.random.uniform(-1, 1) * setting.rate_error
        self.offset = world.random.uniform(1e6, 1e6 + setting.skew)
        self.paused_until = 0.0
        self.down = False
        self.cut_until: dict[Client, float] = {}
        self.granted: dict[str, int] = {}
        self.model = Node(self.clock, setting.durable)
        self.model.give_vote()  # it has been up for a while
        self.model.longest = round(1000 * setting.lease)

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def take_alone(self, owner: str) -> None:
        """What FencedLock's script does."""
        if self.model.run(scripts.LOCK_STATE, (owner,))[1] == ABSENT:
            self.granted[owner] = self.model._next_token()
            self.model._hold(owner, 1, 20)

    def go_down(self, outage: float) -> None:
        if not self.down:
            self.down = True
            self.world.at(self.world.now + outage, self.come_up)

    def come_up(self) -> None:
        self.down = False
        self.model.restart()

    def is_cut(self, client: Client) -> bool:
        return self.world.now < self.cut_until.get(client, 0.0)

    def has_open(self, link: str | None) -> bool:
        """Whether a connection is new, or was made since the node has started."""
        return link is None or link == self.model.run_id

    def receive(
        self, call: QuorumCall, script: Any, args: tuple[Any, ...], session: SimSession, link: str | None
    ) -> None:
        world = self.world
        if self.is_cut(session.client):
            return
        if self.down:
            self.answer(call, session, NodeDownError("refused"))
        elif world.now < self.paused_until:
            world.at(self.paused_until, lambda: self.receive(call, script, args, session, link))
        elif not self.has_open(link):
            self.answer(call, session, RedisConnectionError("reset"))
        else:
            reply = self.model.run(script, args)
            if isinstance(call, Acquire) and reply[0] == b"OK":
                self.granted.setdefault(args[0], reply[1])
            self.answer(call, session, [b"", *reply], self.model.run_id if link is None else None)

    def answer(self, call: QuorumCall, session: SimSession, reply: Any, run_id: str | None = None) -> None:
        world = self.world
        if not world.chance(world.setting.loss):
            for _ in range(2 if world.chance(world.setting.copies) else 1):
                world.at(world.now + world.travel_time(), lambda: self._arrive(call, session, reply, run_id))

    def _arrive(self, call: QuorumCall, session: SimSession, reply: Any, run_id: str | None) -> None:
        if not self.is_cut(session.client):
            if isinstance(reply, Exception):
                session.client.links.pop(self.number, None)
            if run_id is not None:
                session.client.meet(self.number, run_id)
            session.arrive(Answer(self.number, call, reply))


@types.coroutine
def suspend(until: float, inbox: SimSession | None = None) -> Iterator[Any]:
    """Sleep until a time of the client's clock, or until an answer comes."""
    yield until, inbox


class SimSession:
    """A session over the simulated network, which keeps no order."""

    def __init__(self, driver: SimDriver) -> None:
        self.driver = driver
        self.client = driver.client
        self.answers: deque[Answer] = deque()
        self.sleeper: Callable[[], None] | None = None
        self.until = 0.0
        self.closed = False

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        world, setting = self.client.world, self.client.world.setting
        script, args = call.script, call.args if call.fresh is None else (*call.args, call.fresh)
        if call not in self.client.calls:
            self.client.calls.add(call)
            self.client.last_sent[type(call)] = self.driver.now()
        for number in nodes:
            world.sent.append((self.client, number, call))
            node, link = world.nodes[number], self.client.links.get(number)
            if not world.chance(setting.loss):
                for _ in range(2 if world.chance(setting.copies) else 1):
                    world.at(
                        world.now + world.travel_time(),
                        lambda node=node, link=link: node.receive(call, script, args, self, link),  # type: ignore[misc]
                    )

    def arrive(self, answer: Answer) -> None:
        if self.closed:
            self.client.hear_late(answer)
            return
        self.answers.append(answer)
        if self.sleeper is not None:
            self.sleeper()

    async def listen(self, count: Count, until: float) -> None:
        self.until = until
        while (answer := await self.receive()) is not None:
            if count(answer):
                return

    def end_by(self, until: float) -> None:
        self.until = until

    async def receive(self) -> Answer | None:
        while not self.answers:
            if self.driver.now() >= self.until:
                return None
            await suspend(self.until, self)
        if self.driver.now() > self.until:
            return None
        answer = self.answers.popleft()
        if isinstance(answer.call, Acquire) and not isinstance(answer.reply, Exception) and answer.reply[1] == b"OK":
            self.client.grants.setdefault(answer.call, {}).setdefault(answer.node, self.driver.now())
        if isinstance(answer.call, Bump) and not isinstance(answer.reply, Exception) and answer.reply[1] == 1:
            self.client.world.bumped.setdefault(str(answer.call.args[0]), set()).add(answer.node)
        return answer

    async def __aenter__(self) -> SimSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


class SimDriver(Quorum):
    """The package's quorum, over means that are the simulator's. Nothing subscribes: waiters try again."""

    channels = ()
    lost_connections = False

    def __init__(self, client: Client) -> None:
        super().__init__("default", self, self, lambda _: self)
        self.client: Client = client
        setting = client.world.setting
        self.nodes = self
        self.names = [str(number) for number in range(setting.nodes)]
        self.timeout = setting.timeout
        self.restarts = Restarts(tuple(self.names), client.lease * QUARANTINE_SHARE, setting.clock_drift)
        self.proposals: Proposals = SimProposals(client)
        self.note_lists = OtherLists("sim", setting.nodes).note

    def now(self) -> float:
        return self.client.clock()

    async def sleep(self, seconds: float) -> None:
        await suspend(self.now() + seconds)

    def owner(self) -> Owner:
        raise AssertionError("the clients bring their owners")

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        raise AssertionError("the clients call nothing that blocks")

    def session(self) -> SimSession:
        return SimSession(self)

    def send_later(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        self.client.start(self._reap(undo, set(nodes), self.now() + undo.lease))

    async def _reap(self, undo: QuorumCall, nodes: set[int], until: float) -> None:
        while nodes and self.now() < until:
            async with self.session() as session:
                session.send(undo, nodes)
                session.until = self.now() + self.timeout
                while (answer := await session.receive()) is not None:
                    if not isinstance(answer.reply, Exception):
                        nodes.discard(answer.node)
            await self.sleep(0.5)


class SimProposals(Proposals):
    """The real ones, and those of clients whose clock is wrong, or that have lost their mind."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client

    def next(self, now: float) -> int:
        world = self.client.world
        proposal = super().next(now)
        if world.setting.wild and world.chance(world.setting.wild):
            proposal = self._nonsense(proposal)
        world.proposed.append(proposal)
        return proposal

    def _nonsense(self, proposal: int) -> int:
        pick = self.client.world.random
        guesses = [
            proposal + pick.randrange(AHEAD),
            proposal + pick.randrange(10 * AHEAD),
            proposal - pick.randrange(10 * AHEAD),
            pick.choice(self.client.world.proposed or [0]),
            pick.choice([-1, 1, 2**53 - 1, 2**53, 2**63 - 1, 10**30]),
        ]
        return pick.choice(guesses)


class Client:
    """A process with one thread that takes the lock again and again, and a background thread."""

    def __init__(self, world: World, number: int) -> None:
        setting = world.setting
        self.world = world
        self.number = number
        self.rate = 1 + world.random.uniform(-1, 1) * setting.rate_error
        self.offset = world.random.uniform(0, 1000)
        self.paused_until = 0.0
        self.dead = False
        self.owner = Owner(f"client {number}")
        is_brief = number < setting.brief
        self.lease = setting.lease / BRIEF if is_brief else setting.lease
        using = "brief" if is_brief else "sim"
        self.lock = RedLock(NAME, using=using, fencing=setting.fencing)
        self.driver: Any = SimDriver(self)
        self.hold: Hold | None = None
        self.inside = False
        self.left_to_lease: set[str] = set()
        self.calls: set[QuorumCall] = set()
        self.last_sent: dict[type[QuorumCall], float] = {}
        self.grants: dict[QuorumCall, dict[int, float]] = {}
        self.links: dict[int, str] = {}

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def wall(self) -> float:
        """A clock that is set back and forth; nothing should read it."""
        return self.offset + self.rate * self.world.now + 3 * math.sin(self.number + 5 * self.world.now)

    def true_time(self, local: float) -> float:
        return (local - self.offset) / self.rate

    @property
    def believes(self) -> bool:
        """Whether it may work under the lock now."""
        return self.inside and self.hold is not None and not self.hold.is_lost(self.clock())

    def meet(self, node: int, run_id: str) -> None:
        """A new connection says which process of a node it leads to; the node does not say it again."""
        self.links[node] = run_id
        self.driver.restarts.meet(node, run_id)

    def hear_late(self, answer: Answer) -> None:
        """A reply that no one waits for any more."""

    # --- scheduling --------------------------------------------------------------------------------------------------

    def start(self, body: Coroutine[Any, Any, Any]) -> None:
        self._step(body)

    def _step(self, body: Coroutine[Any, Any, Any]) -> None:
        world = self.world
        world.bodies.add(body)
        if self.dead:
            world.bodies.discard(body)
            body.close()
            return
        if world.now < self.paused_until:
            world.at(self.paused_until, lambda: self._step(body))
            return
        world.running = self
        try:
            until, session = body.send(None)
        except StopIteration:
            world.bodies.discard(body)
            return
        woken = False

        def wake() -> None:
            nonlocal woken
            if not woken:
                woken = True
                if session is not None:
                    session.sleeper = None
                world.at(world.now, lambda: self._step(body))

        if session is not None:
            session.sleeper = wake
        if until < math.inf:
            due = self.true_time(until)
            # A clock that was set back must not stop the time.
            world.at(due + MARGIN if due > world.now else world.now + 0.001, wake)

    # --- what it does ------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        setting, pick = self.world.setting, self.world.random
        while self.world.now < setting.lasts:
            await suspend(self.clock() + pick.uniform(0, setting.longest_rest))
            await self.visit(pick.uniform(0, setting.longest_hold), renewed=self.world.chance(setting.renewed))

    async def visit(self, stay: float, renewed: bool = True) -> bool:
        """Take the lock, stay, give it back; returns whether it got in."""
        lock, driver = self.lock, self.driver
        began, asked = self.world.now, self.clock()
        lease = None if renewed else self.lease
        try:
            if not await lock._engine.take(
                lock, driver, AcquireRequest(self.owner, driver.now(), self.world.setting.wait, lease)
            ):
                return False
        except RLockError:
            return False
        self.enter(began, asked)
        assert self.hold is not None
        try:
            if renewed:
                self.start(self.renew(self.hold))
            if self.world.chance(self.world.setting.again):
                await self.visit_again(stay / 2)
            await suspend(self.clock() + stay)
        finally:
            self.inside = False
        if self.hold.is_lost(self.clock()) and not renewed:
            self.left_to_lease.add(self.hold.owner_id)
        with suppress(RLockError):
            await lock._engine.release(lock, driver, self.owner)
        return True

    async def visit_again(self, stay: float) -> None:
        with suppress(RLockError):
            await self.lock._engine.take(
                self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), 1.0, self.lease)
            )
            await suspend(self.clock() + stay)
            await self.lock._engine.release(self.lock, self.driver, self.owner)

    def enter(self, began: float, asked: float) -> None:
        world = self.world
        self.hold = hold = HOLDS.get(self.lock, self.owner)
        assert hold is not None
        self.inside = True
        world.acquired += 1
        self.check_hold(hold)
        self.check_grants(hold)
        if not self.believes:
            self.inside = False
            return
        world.note_inside(self, hold)
        if hold.token is not None:
            self.check_voters(hold, hold.token)
            world.note_token(self, began, hold.token)
            world.tokens[hold.owner_id] = hold.token
            world.agreed += hold.owner_id not in world.bumped
        if world.chance(world.setting.kills):
            self.dead = True

    async def renew(self, hold: Hold) -> None:
        """The watchdog's part for one hold."""
        while hold in HOLDS and not note_loss(hold, now := self.clock()):
            if now >= hold.renew_at():
                before = hold.deadline
                await self.renew_now(hold)
                self.check_renewal(hold, before)
            again = max(watchdog._next_look(hold, self.clock()), self.clock() + 0.001)
            # Other holds may call it in between.
            await suspend(min(again, self.clock() + 0.01) if self.world.setting.restless else again)

    async def renew_now(self, hold: Hold) -> None:
        call = hold.lock._kind.lease(hold.lock, hold.owner_id, hold.lease, RENEW)
        lease = hold.lease
        (reply,) = await self.driver.run_all([call])
        watchdog.note_renewal(hold, lease, call, reply, self.clock())

    def check_hold(self, hold: Hold) -> None:
        """P2: it is valid no longer than its lease less the drift, from before the first byte was sent."""
        sent_at = max(time for kind, time in self.last_sent.items() if kind in LEASING)
        if hold.deadline > sent_at + hold.lease * (1 - self.world.setting.clock_drift) - 0.002 + MARGIN:
            raise BrokenError(f"valid for {hold.deadline - sent_at} s from the first command, of {hold.lease}")

    def check_grants(self, hold: Hold) -> None:
        """P3, P4: a quorum of different nodes granted this very attempt, in time."""
        call = next(reversed(self.grants))
        grants = [node for node, time in self.grants[call].items() if time <= call.sent_at + self.driver.timeout]
        if call.args[0] != hold.owner_id or len(grants) < len(self.driver.names) // 2 + 1:
            raise BrokenError(f"acquired as {hold.owner_id} with the grants of {grants} for {call.args[0]!r}")

    def check_voters(self, hold: Hold, token: int) -> None:
        """P9: no node that counts on from a token has drawn a higher one for it."""
        voters = self.world.bumped.get(hold.owner_id, ())
        drawn = {number: self.world.nodes[number].granted[hold.owner_id] for number in voters}
        if max(drawn.values(), default=0) > token:
            raise BrokenError(f"the token {token} was voted for by nodes that had drawn {drawn}")

    def check_renewal(self, hold: Hold, before: float) -> None:
        """P2, P8: a renewal prolongs, but brings nothing back that may have been seen as lost."""
        if hold.deadline < before:
            raise BrokenError("a renewal shortened the lease")
        if hold.deadline > before:
            self.check_hold(hold)
            if self.clock() >= before:
                raise BrokenError("a renewal brought a lost lock back")

    def clean_up(self, call: QuorumCall, until: float, again: bool) -> None:
        self.start(self._clean_up(call, until, again))

    async def _clean_up(self, call: QuorumCall, until: float, again: bool) -> None:
        gap = AGAIN_AFTER
        while True:
            try:
                await self.driver.run(call, self.clock())
            except RLockError:
                if self.clock() >= until:
                    return
                await suspend(self.clock() + 0.5)
            else:
                if not again or self.clock() >= until:
                    return
                await suspend(self.clock() + gap)
                gap *= 2


@contextmanager
def simulated(settings: Any, setting: Setting, seed: int) -> Iterator[World]:
    """A world in which the package's background work is the simulator's."""
    options = {
        "sim": {
            "NODES": [f"redis://node{number}" for number in range(setting.nodes)],
            "NODE_TIMEOUT": setting.timeout,
            "WATCHDOG_TIMEOUT": setting.lease,
            "CLOCK_DRIFT": setting.clock_drift,
            "KEY_PREFIX": "",
        }
    }
    if setting.brief:
        options["brief"] = {**options["sim"], "WATCHDOG_TIMEOUT": setting.lease / BRIEF}
    if getattr(settings, "RLOCK", None) != options:
        settings.RLOCK = options
    world = World(seed, setting)

    def clean_up(_using: str, call: Any, until: float, again: bool = False) -> None:
        world.running_client.clean_up(call, until, again)

    state = random.getstate()
    random.seed(seed)
    patches: list[Any] = [
        *[mock.patch.object(each, "clean_up", clean_up) for each in (acquire, release, ownership, watchdog)],
    ]
    logging.disable(logging.CRITICAL)
    try:
        for patch in patches:
            patch.start()
        with no_threads():
            yield world
    finally:
        world.end()
        HOLDS.clear()
        WAITS.clear()
        for patch in patches:
            patch.stop()
        logging.disable(logging.NOTSET)
        random.setstate(state)


def play(settings: Any, setting: Setting, seed: int, check: Callable[[World], None] | None = None) -> World:
    """Run one scenario to its end."""
    with simulated(settings, setting, seed) as world:
        world.plan_faults()
        for client in world.clients:
            client.start(client.work())
        world.run(setting.lasts + 4)
        if check is not None:
            check(world)
    return world


def sweep(settings: Any, setting: Setting, seeds: Iterable[int], check: Callable[[World], None] | None = None) -> int:
    """Play a scenario for each seed; returns how often the lock was acquired. RLOCK_SEED names one seed to replay."""
    chosen = os.environ.get("RLOCK_SEED")
    acquired = 0
    for seed in seeds if chosen is None else [int(chosen)]:
        try:
            acquired += play(settings, setting, seed, check).acquired
        except BaseException as error:
            error.add_note(f"Replay it with RLOCK_SEED={seed}; the setting was {setting}.")
            raise
    return acquired


def first_broken(
    settings: Any, setting: Setting, seeds: Iterable[int], check: Callable[[World], None] | None = None
) -> int | None:
    """The first seed of which a scenario breaks a property."""
    for seed in seeds:
        try:
            play(settings, setting, seed, check)
        except BrokenError:
            return seed
    return None


def check_order(world: World) -> None:
    """P9: where two have had the same node, their tokens are in the order in which they had it."""
    for node in world.nodes:
        owners = [name for name in node.granted if counts_on(node, name)]
        tokens = [world.tokens.get(name) or node.granted[name] for name in owners]
        if any(token >= later for token, later in pairwise(tokens)):
            raise BrokenError(f"node {node.number} belonged to {list(zip(owners, tokens, strict=True))}")


def counts_on(node: SimNode, name: str) -> bool:
    """Whether a node has counted on from an owner's token while it belonged to that owner; a fenced lock's always."""
    world, drawn = node.world, node.granted[name]
    return name.startswith("single") or drawn == world.tokens.get(name) or node.number in world.bumped.get(name, ())


def check_undone(world: World) -> None:
    """P5: every attempt that failed, and every hold that ended, was undone on all nodes."""
    told: dict[str, set[int]] = {}
    for _, node, call in world.sent:
        if isinstance(call, Release) and call.args[1] == 0:
            told.setdefault(str(call.args[0]), set()).add(node)
    for client in world.clients:
        for call in client.calls:
            name = str(call.args[0])
            if (
                isinstance(call, Acquire)
                and name not in client.left_to_lease
                and len(told.get(name, ())) < world.setting.nodes
            ):
                raise BrokenError(f"{name} was undone on {told.get(name, set())} only")
