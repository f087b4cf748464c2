"""A waiter that believes the message of its grant, under every order of steps: with messages that are delayed, lost,
repeated and left over, with processes that are paused, cancelled and killed, with a failover that loses a write, and
with a server that comes back empty.

Wherever a hold counts as running, its owner stands in the lock on the server, for longer than that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_rlock import FairLock
from django_rlock._redis.keys import fair_keys, queue_key
from django_rlock._transport.calls import ScriptCall
from django_rlock.exceptions import LockLostError
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from tests.flows.exploring import LONG, explore
from tests.flows.stepping import KEY, NAME, Action, Process, Renewer, Visitor
from tests.flows.worlds import World

A_WHILE = 0.6 * LONG["CLAIM_TIME"]
"""How long all are paused, in seconds: once leaves too little of a claim to be believed, twice nothing."""
SLACK = 60.0
"""Seconds that a machine may take for one order of steps."""
GOES_ON = {"step", "deliver", "arrive", "defer", "listen anew"}
"""What happens by itself in the end."""
QUEUE, MARKS = queue_key(KEY), fair_keys(KEY)[2]


class Truster(Visitor):
    """Takes the lock with a renewed lease, ``visits`` times, and counts how often it believed a message."""

    def __init__(self, world: HandOffs, process: Process, visits: int = 1, **options: Any) -> None:
        self.visits = visits
        self.asked_since = True
        super().__init__(world, process, FairLock(NAME), **options)
        self.listen_before()

    @property
    def hold(self) -> Hold | None:
        """What it holds, unless that is lost."""
        hold = HOLDS.get(self.lock, self.owner)
        return hold if hold is not None and not hold.is_lost(self.driver.clock) else None

    def local_state(self) -> Any:
        hold = HOLDS.get(self.lock, self.owner)
        held = hold and (hold.count, hold.runs_for, hold.deadline, hold.lost, hold.renewed)
        return super().local_state(), self.visits, self.asked_since, held

    async def _visit(self, wait: float | None) -> str:
        results = []
        while self.visits:
            self.visits -= 1
            results.append(await self._visit_once(wait))
        return ", ".join(results)

    async def _visit_once(self, wait: float | None) -> str:
        if not await self.lock._engine.take(
            self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, None)
        ):
            return "timeout"
        self.world.enter(self)
        outcome = "served"
        try:
            await self._stay()
        finally:
            self.world.inside.remove(self)
            try:
                await self.lock._engine.release(self.lock, self.driver, self.owner)
            except LockLostError:
                outcome = "lost"
        return outcome


class HandOffs(World):
    """Time passes for all, messages are repeated, processes seem dead, a failover loses the last write, a restart all
    writes."""

    believed = 0
    """How many holds were taken without asking, in all orders."""
    before: tuple[Any, ...] = ()
    """What the replica has: all but the last write."""
    deaf: frozenset[int] = frozenset()
    """The processes that have yet to listen to the new primary."""

    # --- what must hold ----------------------------------------------------------------------------------------------

    def enter(self, actor: Visitor) -> None:
        assert isinstance(actor, Truster)
        hold = actor.hold
        assert hold is not None, "it entered with a hold that had ended"
        if actor.asked_since:
            assert not [each for each in self.inside if each.asked_since and each.hold], "two inside at once"  # type: ignore[attr-defined]
        HandOffs.believed += hold.is_unconfirmed
        self.inside.append(actor)
        self.served.append(hold.owner_id)

    def do(self, action: Action) -> None:
        kind, _ = action
        if kind in {"pass", "repeat", "miss", "failover", "restart", "listen anew"}:
            if kind in self.may:
                self.may[kind] -= 1
            self._happen(*action)
        else:
            super().do(action)
        for actor in self.inside:
            if (hold := actor.hold) and actor.asked_since:  # type: ignore[attr-defined]
                self._check(hold, actor.driver.clock)

    def _check(self, hold: Hold, now: float) -> None:
        owners, left_ms = self.lease(KEY)
        assert owners == [hold.owner_id.encode()], "it counts as held, and the server knows nothing of it"
        assert left_ms / 1000 > hold.deadline - now - SLACK, "it counts as held for longer than the server keeps it"

    # --- what may happen ---------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        found = super().actions()
        found += [("pass", 0)] if self.may.get("pass") else []
        found += [("repeat", 0)] if self.may.get("repeat") and self.messages else []
        found += [("failover", 0)] if self.may.get("failover") and self.before else []
        found += [("restart", 0)] if self.may.get("restart") and self.client.exists(KEY) else []
        if self.may.get("miss"):
            found += [("miss", each.number) for each in self.processes if each.identity.client_id in self._marks()]
        found += [("listen anew", number) for number in sorted(self.deaf)]
        return found

    def _happen(self, kind: str, number: int) -> None:
        match kind:
            case "pass":
                self._pass()
            case "repeat":
                self.wake(*self.messages[0])
                self.messages.append(self.messages[0])
            case "miss":
                self.client.zrem(MARKS, self.processes[number - 1].identity.client_id)
            case "failover":
                self._fail_over()
            case "restart":
                self.before = (None, 0, (), ())
                self._fail_over()
            case "listen anew":
                self.deaf -= {number}
                for waiter in self.waiters:
                    if waiter.driver.process.number == number:
                        waiter.ticket = ""
                        waiter.wake()

    def _pass(self) -> None:
        """All are paused for a while; the server's clock goes on."""
        for actor in self.actors:
            actor.driver.clock += A_WHILE
        left = int(self.client.pttl(KEY)) - int(1000 * A_WHILE)
        if left > 0:
            self.client.pexpire(KEY, left)
        else:
            self.client.delete(KEY)
        for mark in self._marks():
            self.client.zincrby(MARKS, -1000 * A_WHILE, mark)

    def _fail_over(self) -> None:
        """A replica takes over that lacks the last write. What the old primary sent may come until the end, as over a
        connection to a node that served the slot before.
        """
        lock, left, queue, marks = self.before
        self.client.delete(KEY, QUEUE, MARKS)
        if lock:
            self.client.hset(KEY, mapping=lock)
            self.client.pexpire(KEY, left)
        for key, members in ((QUEUE, queue), (MARKS, marks)):
            if members:
                self.client.zadd(key, dict(members))
        self.before = ()
        self.deaf = frozenset(each.number for each in self.processes)
        for actor in self.actors:
            if isinstance(actor, Truster):
                actor.asked_since = False

    def execute(self, call: ScriptCall, nonce: str | None = None) -> list[Any]:
        if self.may.get("failover"):
            self.before = (
                self.client.hgetall(KEY), self.client.pttl(KEY),
                self.client.zrange(QUEUE, 0, -1, withscores=True), self.client.zrange(MARKS, 0, -1, withscores=True),
            )  # fmt: skip
        for actor in self.actors:
            if isinstance(actor, Truster) and actor.call is call and actor.at == "send":
                actor.asked_since = True
        return super().execute(call, nonce)

    def _marks(self) -> list[str]:
        marks: Any = self.client.zrange(MARKS, 0, -1)
        return [mark.decode() for mark in marks]

    def state(self) -> tuple[Any, ...]:
        lock, left, queue, marks = self.before or (None, 0, (), ())
        replica = lock, _about(left), [member for member, _ in queue], [mark for mark, _ in marks]
        return super().state(), _about(int(self.client.pttl(KEY))), repr(replica), self.deaf


def _about(left_ms: int) -> int:
    return round(left_ms / 1000 / SLACK * 3)


def finish(world: World) -> None:
    """With heartbeats, and with the end of leases that no one holds, all who are alive end, and nothing is left."""
    assert isinstance(world, HandOffs)
    for _ in range(12):
        while actions := [action for action in world.actions() if action[0] in GOES_ON]:
            world.do(actions[0])
        if all(actor.at == "done" or actor.process.dead for actor in world.actors):
            break
        if not any(actor.hold for actor in world.actors if isinstance(actor, Truster)):
            world.client.delete(KEY)
        world.repair()
    assert all(actor.at == "done" or actor.process.dead for actor in world.actors), "a client waits for ever"
    queue: Any = world.client.zrange(QUEUE, 0, -1)
    living = [each.identity.client_id.encode() for each in world.processes if not each.dead]
    assert not [name for name in queue if name[:36] in living], queue


def worlds(make_world: Any, may: dict[str, int], visits: tuple[int, ...], **options: Any) -> Callable[[], World]:
    def build() -> World:
        world: HandOffs = make_world(HandOffs)
        world.may = dict(may)
        world.actors = [Truster(world, world.process(), each, **options) for each in visits]
        return world

    HandOffs.believed = 0
    return build


def test_nothing_goes_wrong(make_world):
    def check(world: World) -> None:
        assert [actor.result for actor in world.actors] == ["served, served", "served", "served"]
        finish(world)

    explore(worlds(make_world, {}, (2, 1, 1)), check, limit=20_000)
    assert HandOffs.believed > 20


@pytest.mark.parametrize(
    ("may", "visits"),
    [
        ({"lose": 1}, (2, 1)), ({"miss": 1}, (2, 1)), ({"kill": 1}, (2, 1)), ({"cancel": 1}, (1, 1)),
        ({"copy": 1}, (1, 1)), ({"copy": 1, "pass": 1}, (1, 1)), ({"repeat": 1}, (2, 2)),
        ({"repeat": 1, "pass": 1}, (2, 2)), ({"repeat": 1, "cancel": 1}, (2, 1)),
        ({"pass": 2}, (2, 1)), ({"pass": 2, "miss": 1}, (1, 1)),
        ({"restart": 1}, (2, 1)),
        ({"failover": 1}, (2, 1)), ({"failover": 1, "repeat": 1}, (1, 1)), ({"failover": 1, "pass": 1}, (1, 1)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.lengthy
def test_faults(make_world, may, visits):
    explore(worlds(make_world, may, visits), finish, limit=50_000)
    assert HandOffs.believed > 0


def test_paused_before_a_reply(make_world):
    """The server has executed the command, and the lease runs."""
    explore(worlds(make_world, {"pass": 2}, (1, 1), split=True), finish, limit=50_000)


def test_time_is_up_anywhere(make_world):
    explore(worlds(make_world, {"timeout": 1, "repeat": 1}, (2, 1), wait=5.0), finish, limit=20_000)
    assert HandOffs.believed > 5


@pytest.mark.thorough  # what it counts comes late
def test_its_renewal_makes_a_lease_of_it(make_world):
    visitors = worlds(make_world, {"pass": 2}, (1, 1))

    def build() -> World:
        world = visitors()
        world.actors += [Renewer(world, actor.process, actor) for actor in world.actors if isinstance(actor, Truster)]
        return world

    def check(world: World) -> None:
        finish(world)
        renewed.update(actor.result for actor in world.actors if isinstance(actor, Renewer))

    renewed: set[str] = set()
    explore(build, check, limit=20_000)
    assert "renewed" in renewed
    assert HandOffs.believed > 5
