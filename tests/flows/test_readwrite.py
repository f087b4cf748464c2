"""Every order of readers' and writers' steps: no one holds the lock beside a writer, and no wake-up is lost, without
any heartbeat."""

from __future__ import annotations

from typing import Any

import pytest

from django_rlock import ReadLock, WriteLock
from django_rlock._redis.keys import readwrite_channel, writers_key
from django_rlock.locks import BaseLock
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from tests.flows.exploring import explore
from tests.flows.stepping import KEY, LEASE, NAME, Actor, Process, Returner, Visitor, suspend
from tests.flows.worlds import World


class Sharing(World):
    """A world in which several readers may hold the lock."""

    def enter(self, actor: Visitor) -> None:
        locks = [each.lock for each in (actor, *self.inside)]
        assert all(isinstance(lock, ReadLock) for lock in locks) or not self.inside, "not alone"
        self.inside.append(actor)

    def state(self) -> tuple[Any, ...]:
        return *super().state(), tuple(self.client.zrange(writers_key(KEY), 0, -1))


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


def all_served(world: World) -> None:
    assert [actor.result for actor in world.actors] == ["served"] * len(world.actors)
    nothing_left(world)


def nothing_left(world: World) -> None:
    left = [key for key in world.client.scan_iter() if not key.startswith(b"rlock_settled:")]
    assert not left, left


def visitors(world: World, *locks: BaseLock, processes: int = 9, **options: Any) -> World:
    homes = [world.process() for _ in range(min(processes, len(locks)))]
    for number, lock in enumerate(locks):
        add(world, Visitor(world, homes[number % len(homes)], lock, **options))
    return world


def add(world: World, actor: Actor) -> None:
    """As where its process has waited for this lock before."""
    actor.process.channels.add(readwrite_channel(KEY))
    world.actors.append(actor)


R, W = ReadLock(NAME), WriteLock(NAME)
YIELDING, FIRST = ReadLock(NAME, prefer="writer"), WriteLock(NAME, prefer="writer")
CROWDS = {
    "two writers, a reader": (W, W, R),
    "two readers, a writer": (R, R, W),
    "two readers, a writer who goes first": (YIELDING, YIELDING, FIRST),
    "two writers who go first, a reader": (FIRST, FIRST, YIELDING),
}
each_crowd = pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS.keys())


@each_crowd
@pytest.mark.parametrize("processes", [1, 3])
def test_all_get_in(make_world, crowd, processes):
    def build() -> World:
        return visitors(make_world(Sharing), *crowd, processes=processes)

    assert explore(build, all_served) > 100


@pytest.mark.parametrize("crowd", [(R, W), (W, W), (YIELDING, FIRST)], ids=["read", "write", "first"])
@pytest.mark.parametrize("listening", [False, True], ids=["first wait", "later waits"])
def test_calls_and_replies(make_world, crowd, listening):
    """Each call in two steps: the server executes it, the reply arrives."""

    def build() -> World:
        world = visitors(make_world(Sharing), *crowd, split=True)
        for process in world.processes:
            if not listening:
                process.channels.clear()
        return world

    assert explore(build, all_served) > 50


@pytest.mark.parametrize("crowd", [(R,), (W,), (YIELDING, FIRST)], ids=["reader", "writer", "both"])
def test_stepping_down(make_world, crowd):
    def build() -> World:
        world = visitors(make_world(Sharing), *crowd, processes=1)
        add(world, SteppingDown(world, world.process()))
        return world

    assert explore(build, all_served) > 20


@pytest.mark.parametrize("crowd", [(R,), (R, R)], ids=["reader", "readers"])
def test_readers_get_in_when_a_writer_reads_on_for_good(make_world, crowd):
    def build() -> World:
        world = visitors(make_world(Sharing), *crowd, processes=1)
        add(world, SteppingDown(world, world.process(), for_good=True))
        return world

    def check(world: World) -> None:
        assert [actor.result for actor in world.actors] == ["served"] * len(world.actors)

    assert explore(build, check) > 20


def test_readers_get_in_when_the_writer_that_goes_first_gives_up(make_world):
    """Another reader keeps the lock for good, so no one else's release wakes them."""

    def build() -> World:
        world = visitors(make_world(Sharing), FIRST, YIELDING, wait=5.0)
        inside = Staying(world, world.process(), R)
        while inside.at != "done":
            inside.step()
        world.may = {"timeout": 1}
        return world

    def check(world: World) -> None:
        writer, reader = world.actors
        assert (reader.result == "served") is (writer.result == "timeout"), (writer.at, reader.at)

    assert explore(build, check) > 20


@each_crowd
def test_time_is_up_anywhere(make_world, crowd):
    """A client that leaves passes on its wake-up, and lets those in who waited for it."""

    def build() -> World:
        world = visitors(make_world(Sharing), *crowd, processes=2, wait=5.0)
        world.may = {"timeout": 1}
        return world

    def check(world: World) -> None:
        assert sorted(actor.result for actor in world.actors) in [["served"] * 3, ["served", "served", "timeout"]]
        nothing_left(world)

    assert explore(build, check) > 100


@pytest.mark.parametrize("crowd", [(R, W), (W, W), (YIELDING, FIRST)], ids=["read", "write", "first"])
@pytest.mark.parametrize("split", [False, True], ids=["calls", "calls and replies"])
def test_cancelled_anywhere(make_world, crowd, split):
    """One of two is cancelled at any step; what it had sent may arrive at any later time, before the last clean-up."""

    def build() -> World:
        world = visitors(make_world(Sharing), *crowd, split=split)
        world.may = {"cancel": 1}
        return world

    def check(world: World) -> None:
        assert {actor.result for actor in world.actors} <= {"served", "cancelled"}
        assert [actor.at for actor in world.actors] == ["done"] * 2
        nothing_left(world)

    assert explore(build, check) > 50


@pytest.mark.parametrize("crowd", [(W, W, W), (FIRST, YIELDING, FIRST)], ids=["write", "first"])
def test_cancelled_beside_another_of_its_process(make_world, crowd):
    """A waiter that was woken and is cancelled before it retries passes the wake-up on."""

    def build() -> World:
        world = visitors(make_world(Sharing), *crowd, processes=2)
        world.may = {"cancel": 1}
        return world

    def check(world: World) -> None:
        assert {actor.result for actor in world.actors} <= {"served", "cancelled"}
        assert [actor.at for actor in world.actors] == ["done"] * 3
        nothing_left(world)

    assert explore(build, check, limit=20_000) > 100


@pytest.mark.parametrize("crowd", [(R, W), (W, W), (YIELDING, FIRST)], ids=["read", "write", "first"])
def test_one_command_is_sent_twice(make_world, crowd):
    """Any command of one of two; the first copy is executed, and its reply lost, or it comes at any later time."""

    def build() -> World:
        world = visitors(make_world(Sharing), *crowd)
        world.may = {"copy": 1}
        return world

    assert explore(build, all_served) > 50


@pytest.mark.parametrize("crowd", [(R, W), (W, R)], ids=["read", "write"])
def test_one_command_of_a_long_hold_is_sent_twice(make_world, crowd):
    """It chooses leases, enters again, ends and starts again, beside another one."""

    def build() -> World:
        world = make_world(Sharing)
        world.may = {"copy": 1}
        mine, *others = crowd
        add(world, Returner(world, world.process(), mine))
        for other in others:
            add(world, Visitor(world, world.process(), other))
        return world

    assert explore(build, all_served, limit=20_000) > 100
