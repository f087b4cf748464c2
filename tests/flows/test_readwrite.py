"""Every order of steps beside writers that read on or give up; ``test_interleavings`` has readers and writers, too."""

from __future__ import annotations

from typing import Any

import pytest

from django_rlock import ReadLock, WriteLock
from django_rlock._redis.keys import readwrite_channel
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from tests.flows.ends import all_served
from tests.flows.exploring import explore
from tests.flows.stepping import KEY, LEASE, NAME, Actor, Process, Visitor, suspend
from tests.flows.test_interleavings import FIRST, YIELDING, R, W
from tests.flows.worlds import World, meeting


class Staying(Visitor):
    """Takes the lock for good."""

    async def _visit(self, wait: float | None) -> str:
        assert await self.lock._engine.take(
            self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, LEASE)
        )
        return "served"


class SteppingDown(Visitor):
    """Writes, then reads, gives the write lock back, and reads on for a step, or for good."""

    def __init__(self, world: World, process: Process, for_good: bool = False) -> None:
        self.for_good = for_good
        super().__init__(world, process, WriteLock(NAME))

    async def _visit(self, wait: float | None) -> str:
        write, read = self.lock, ReadLock(NAME)
        assert await write._engine.take(write, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, LEASE))
        self.world.enter(self)
        assert await read._engine.take(read, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, LEASE))
        self.lock = read  # others may read from when the server has the command
        await write._engine.release(write, self.driver, self.owner)
        if self.for_good:
            return "served"
        await suspend("inside")
        self.world.inside.remove(self)
        await read._engine.release(read, self.driver, self.owner)
        return "served"

    def local_state(self) -> Any:
        held = tuple(HOLDS.get(side(NAME), self.owner) is not None for side in (ReadLock, WriteLock))
        return *super().local_state(), held


def add(world: World, actor: Actor) -> None:
    """As where its process has waited for this lock before."""
    actor.process.channels.add(readwrite_channel(KEY))
    world.actors.append(actor)


@pytest.mark.parametrize("crowd", [(R,), (W,), (YIELDING, FIRST)], ids=["reader", "writer", "both"])
def test_stepping_down(make_world, crowd):
    def then(world: World) -> None:
        add(world, SteppingDown(world, world.process()))

    assert explore(meeting(make_world, *crowd, homes=(1, 1), then=then), all_served) > 20


@pytest.mark.parametrize("crowd", [(R,), (R, R)], ids=["reader", "readers"])
def test_readers_get_in_when_a_writer_reads_on_for_good(make_world, crowd):
    def then(world: World) -> None:
        add(world, SteppingDown(world, world.process(), for_good=True))

    def check(world: World) -> None:
        assert [actor.result for actor in world.actors] == ["served"] * len(world.actors)

    assert explore(meeting(make_world, *crowd, homes=(1, 1), then=then), check) > 20


def test_readers_get_in_when_the_writer_that_goes_first_gives_up(make_world):
    """Another reader keeps the lock for good, so no one else's release wakes them."""

    def then(world: World) -> None:
        inside = Staying(world, world.process(), R)
        while inside.at != "done":
            inside.step()

    def check(world: World) -> None:
        writer, reader = world.actors
        assert (reader.result == "served") is (writer.result == "timeout"), (writer.at, reader.at)

    assert explore(meeting(make_world, FIRST, YIELDING, may={"timeout": 1}, then=then, wait=5.0), check) > 20
