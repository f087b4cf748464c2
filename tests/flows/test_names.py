"""Every order of steps of owners with a name, beside others and in two processes: no command that comes late or twice,
and none of the other process, ends or shortens what counts as held.

Two faults are known and left out: a late copy of a last release frees the next hold of the name, and what a late
acquire takes after the hold ends with its lease only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_rlock import FairLock, ReadLock, RLock, WriteLock
from django_rlock._redis.keys import readwrite_channel, readwrite_keys
from django_rlock.exceptions import LockLostError
from django_rlock.locks import BaseLock
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.acquire import take_serialized as take
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from tests.flows import ends
from tests.flows.exploring import explore
from tests.flows.stepping import KEY, LEASE, NAME, Action, Actor, Process, Returner, Visitor, suspend
from tests.flows.worlds import World

OWNER = "order-7"
SLACK = 60.0
"""Seconds that a machine may take for one order of steps."""
KINDS = [RLock, FairLock, ReadLock, WriteLock]


class Names(World):
    """After each step the server has what counts as held, for as long as it counts."""

    shared = False
    """Whether two processes use the name: the first one that leaves frees the lock for both."""

    def __init__(self, *args: Any) -> None:
        self.freed: set[Hold] = set()
        super().__init__(*args)

    def enter(self, actor: Visitor) -> None:
        if self.shared:
            self.inside.append(actor)
        else:
            super().enter(actor)

    def do(self, action: Action) -> None:
        super().do(action)
        for actor in self.inside:
            hold = HOLDS.get(actor.lock, actor.owner)
            if hold is not None and not hold.is_lost(actor.driver.clock):
                self._check(hold, actor.driver.clock)

    def _check(self, hold: Hold, now: float) -> None:
        if hold.hash_field.encode() not in self.client.hkeys(KEY):
            assert self.shared, "it counts as held, and the server knows nothing of it"
            self.freed.add(hold)
        if hold not in self.freed:
            assert self._left(hold) > hold.deadline - now - SLACK, "it counts as held for longer than it is kept"

    def _left(self, hold: Hold) -> float:
        """How long the server keeps a hold, in seconds. Each hold of a reader has a key of its own."""
        names = [KEY]
        if hold.lock.kind == "read":
            names = [f"{readwrite_keys(KEY)[1]}:{hold.owner_id}:rwlock_timeout:{n}" for n in range(1, hold.count + 1)]
        return max(int(self.client.pttl(name)) for name in names) / 1000

    def _faults_of(self, number: int, actor: Actor) -> Iterator[Action]:
        for action in super()._faults_of(number, actor):
            if action[0] != "obeyed late" or not _is_last_release(actor):
                yield action

    def state(self) -> tuple[Any, ...]:
        leases = [round(int(self.client.pttl(key)) / 1000 / SLACK) for key in sorted(self.client.keys())]
        return *super().state(), tuple(leases), len(self.freed)


def _is_last_release(actor: Actor) -> bool:
    call = actor.call
    return call is not None and call.script.name.endswith("_release") and call.args[1] == 0


class Sharer(Visitor):
    """Uses the lock under the name; another process may free it meanwhile."""

    def __init__(self, world: World, process: Process, lock: BaseLock, lease: float) -> None:
        self.lease = self.asks = lease
        super().__init__(world, process, lock, name=OWNER)

    def local_state(self) -> Any:
        hold = HOLDS.get(self.lock, self.owner)
        return super().local_state(), hold and (hold.count, hold.lease, hold.lost)

    async def _visit(self, wait: float | None) -> str:
        try:
            return await super()._visit(wait)
        except LockLostError:
            return "lost"

    async def _stay(self) -> None:
        await self.lock._engine.extend(self.lock, self.driver, self.owner, 2 * self.asks)
        await take(self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), None, self.asks))
        await self.lock._engine.release(self.lock, self.driver, self.owner)
        await suspend("inside")


def add(world: World, actor: Visitor) -> None:
    """As where its process has waited for this lock before."""
    actor.listen_before()
    actor.process.channels.add(readwrite_channel(KEY))
    world.actors.append(actor)


def finish(world: World) -> None:
    """All end, and nothing is left but what a lease ends, for which no one stands."""
    while not world.inside and any(field.startswith(OWNER.encode()) for field in world.client.hkeys(KEY)):
        world.client.delete(KEY)
        for actor in world.actors:
            if actor.at == "wait":
                actor.step("timeout")  # it sleeps no longer than the lease that it knows of
        go_on(world)
    ends.finish(world)


def go_on(world: World) -> None:
    while actions := world.actions():
        world.do(actions[0])


@pytest.mark.parametrize("kind", KINDS)
def test_one_command_is_sent_twice(make_world, kind):
    """It chooses leases, enters again, ends and starts again, beside another owner."""

    def build() -> World:
        world = make_world(Names)
        world.may = {"copy": 1}
        add(world, Returner(world, world.process(), kind(NAME), name=OWNER))
        add(world, Visitor(world, world.process(), WriteLock(NAME) if kind is ReadLock else kind(NAME)))
        return world

    assert explore(build, finish, limit=20_000) > 100


@pytest.mark.lengthy
@pytest.mark.parametrize("may", [{}, {"copy": 1}], ids=["once", "twice"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_use_the_name(make_world, kind, may):
    """One asks for a long lease, one for a short lease."""

    def build() -> World:
        world = make_world(Names)
        world.shared, world.may = True, dict(may)
        add(world, Sharer(world, world.process(), kind(NAME), LEASE))
        add(world, Sharer(world, world.process(), kind(NAME), LEASE / 4))
        return world

    assert explore(build, finish, limit=20_000) > 50
