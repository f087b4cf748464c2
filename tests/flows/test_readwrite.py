"""Every order of readers' and writers' steps: no one holds the lock beside a writer, and no wake-up is lost, without
any heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_rlock import ReadLock, WriteLock
from django_rlock._redis.keys import readwrite_channel
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from tests.flows.ends import nothing_left
from tests.flows.exploring import explore
from tests.flows.stepping import KEY, LEASE, NAME, Actor, Process, Returner, Visitor, suspend
from tests.flows.worlds import World, meeting


class Staying(Visitor):
    """Takes the lock for good."""

    async def _visit(self, wait: float | None) -> str:
        assert await self.lock._engine.take(self.lock, self.driver, AcquireRequest(self.owner, wait, LEASE))
        return "served"


class SteppingDown(Visitor):
    """Writes, then reads, gives the write lock back, and reads on for a step, or for good."""

    def __init__(self, world: World, process: Process, for_good: bool = False) -> None:
        self.for_good = for_good
        super().__init__(world, process, WriteLock(NAME))

    async def _visit(self, wait: float | None) -> str:
        write, read = self.lock, ReadLock(NAME)
        assert await write._engine.take(write, self.driver, AcquireRequest(self.owner, wait, LEASE))
        self.world.enter(self)
        assert await read._engine.take(read, self.driver, AcquireRequest(self.owner, wait, LEASE))
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


def ended(*results: str, most: int = 9) -> Callable[[World], None]:
    """A check that all were served, but for as many as ``most`` that ended in another way, and that nothing is left."""

    def check(world: World) -> None:
        others = [actor.result for actor in world.actors if actor.result != "served"]
        assert len(others) <= most
        assert {*others} <= {*results}
        nothing_left(world)

    return check


all_served = ended()


def add(world: World, actor: Actor) -> None:
    """As where its process has waited for this lock before."""
    actor.process.channels.add(readwrite_channel(KEY))
    world.actors.append(actor)


R, W = ReadLock(NAME), WriteLock(NAME)
YIELDING, FIRST = ReadLock(NAME, prefer="writer"), WriteLock(NAME, prefer="writer")
each_crowd = pytest.mark.parametrize(
    "crowd",
    [(W, W, R), (R, R, W), (YIELDING, YIELDING, FIRST), (FIRST, FIRST, YIELDING)],
    ids=["two writers", "two readers", "two readers, a writer who goes first", "two writers who go first"],
)
each_pair = pytest.mark.parametrize("crowd", [(R, W), (W, W), (YIELDING, FIRST)], ids=["read", "write", "first"])


@pytest.mark.lengthy
@each_crowd
@pytest.mark.parametrize("homes", [(1, 1, 1), (1, 2, 3)], ids=["one process", "three"])
def test_all_get_in(make_world, crowd, homes):
    assert explore(meeting(make_world, *crowd, homes=homes), all_served) > 100


@pytest.mark.lengthy
@each_pair
@pytest.mark.parametrize("listening", [False, True], ids=["first wait", "later waits"])
def test_calls_and_replies(make_world, crowd, listening):
    """Each call in two steps: the server executes it, the reply arrives."""
    assert explore(meeting(make_world, *crowd, listening=listening, split=True), all_served) > 50


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


@each_crowd
def test_time_is_up_anywhere(make_world, crowd):
    """A client that leaves passes on its wake-up, and lets those in who waited for it."""
    build = meeting(make_world, *crowd, homes=(1, 2, 1), may={"timeout": 1}, wait=5.0)
    assert explore(build, ended("timeout", most=1)) > 100


@pytest.mark.lengthy
@each_pair
@pytest.mark.parametrize("split", [False, True], ids=["calls", "calls and replies"])
def test_cancelled_anywhere(make_world, crowd, split):
    """One of two is cancelled at any step; what it had sent may arrive at any later time, before the last clean-up."""
    assert explore(meeting(make_world, *crowd, may={"cancel": 1}, split=split), ended("cancelled", most=1)) > 50


@pytest.mark.parametrize("crowd", [(W, W, W), (FIRST, YIELDING, FIRST)], ids=["write", "first"])
def test_cancelled_beside_another_of_its_process(make_world, crowd):
    """A waiter that was woken and is cancelled before it retries passes the wake-up on."""
    build = meeting(make_world, *crowd, homes=(1, 2, 1), may={"cancel": 1})
    assert explore(build, ended("cancelled", most=1), limit=20_000) > 100


@each_pair
def test_one_command_is_sent_twice(make_world, crowd):
    """Any command of one of two; the first copy is executed, and its reply lost, or it comes at any later time."""
    assert explore(meeting(make_world, *crowd, may={"copy": 1}), all_served) > 50


@pytest.mark.parametrize("crowd", [(R, W), (W, R)], ids=["read", "write"])
def test_one_command_of_a_long_hold_is_sent_twice(make_world, crowd):
    """It chooses leases, enters again, ends and starts again, beside another one."""
    assert explore(meeting(make_world, *crowd, may={"copy": 1}, first=Returner), all_served, limit=20_000) > 100
