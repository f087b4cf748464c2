"""Every order of two and three clients' steps: no holder beside another or a writer, no live client waits for ever."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from django_rlock import FairLock, FencedLock, ReadLock, RLock, WriteLock
from django_rlock._transport.identity import Owner
from django_rlock.exceptions import LockLostError
from django_rlock.locks import BaseLock
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from tests.flows.ends import all_ended, all_served, finish
from tests.flows.exploring import LONG, explore
from tests.flows.stepping import KEY, LEASE, NAME, Action, Actor, Beater, Returner, Visitor, suspend
from tests.flows.worlds import World, meeting

FAIR, PLAIN, FENCED = FairLock(NAME), RLock(NAME), FencedLock(NAME)
R, W = ReadLock(NAME), WriteLock(NAME)
YIELDING, FIRST = ReadLock(NAME, prefer="writer"), WriteLock(NAME, prefer="writer")
PAIRS = {"fair": (FAIR, FAIR), "rlock": (PLAIN, PLAIN), "read": (R, W), "write": (W, W), "first": (YIELDING, FIRST)}
TRIOS = {
    "fair": (FAIR, FAIR, FAIR),
    "rlock": (PLAIN, PLAIN, PLAIN),
    "two writers": (W, W, R),
    "two readers": (R, R, W),
    "two readers, a writer who goes first": (YIELDING, YIELDING, FIRST),
    "two writers who go first": (FIRST, FIRST, YIELDING),
}
each_pair = pytest.mark.parametrize("crowd", PAIRS.values(), ids=PAIRS)
each_trio = pytest.mark.parametrize("crowd", TRIOS.values(), ids=TRIOS)


def check_of(crowd: Sequence[BaseLock], *results: str) -> Callable[[World], None]:
    """A check after a fault. No heartbeat has to repair anything for readers and writers, who have no queue."""
    return all_ended("served", *results) if crowd[0].kind in {"read", "write"} else finish


@pytest.mark.lengthy
@each_pair
@pytest.mark.parametrize("listening", [False, True], ids=["first wait", "later waits"])
def test_calls_and_replies(make_world, crowd, listening):
    """Each call in two steps: the server executes it, the reply arrives."""
    assert explore(meeting(make_world, *crowd, listening=listening, split=True), all_served) > 50


@pytest.mark.lengthy
@each_trio
@pytest.mark.parametrize("homes", [(1, 1, 1), (1, 1, 2), (1, 2, 3)], ids=["one process", "two", "three"])
def test_all_get_in(make_world, crowd, homes):
    assert explore(meeting(make_world, *crowd, homes=homes), all_served) > 50


def test_order_of_service(make_world):
    """The first one to get a ticket gets the lock first, and no newcomer overtakes the waiters."""

    def check(world: World) -> None:
        all_served(world)
        assert [name for name in world.served if name in world.tickets] == world.tickets

    def then(world: World) -> None:
        world.order_matters = True

    assert explore(meeting(make_world, *[FairLock(NAME)] * 3, then=then), check) > 100


@pytest.mark.lengthy
@each_pair
@pytest.mark.parametrize("split", [False, True], ids=["calls", "calls and replies"])
def test_cancelled_anywhere(make_world, crowd, split):
    """One of two is cancelled at any step; what it had sent may arrive at any later time, before the last clean-up."""
    build = meeting(make_world, *crowd, may={"cancel": 1}, split=split)
    assert explore(build, check_of(crowd, "cancelled")) > 50


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "crowd",
    [TRIOS["fair"], TRIOS["rlock"], (W, W, W), (YIELDING, FIRST, FIRST)],
    ids=["fair", "rlock", "write", "first"],
)
@pytest.mark.parametrize("cancelled", [0, 1], ids=["the other", "one of two"])
def test_cancelled_beside_another_of_its_process(make_world, crowd, cancelled):
    """A waiter that was woken and is cancelled before it retries passes the wake-up on; no heartbeat has to repair
    that. The two of one process are alike, so one of them is cancelled for both."""

    def then(world: World) -> None:
        world.cancels = cancelled

    build = meeting(make_world, *crowd, homes=(1, 2, 2), may={"cancel": 1}, then=then)
    assert explore(build, all_ended("served", "cancelled"), limit=20_000) > 100


@each_trio
@pytest.mark.parametrize("homes", [(1, 2, 1), (1, 2, 3)], ids=["two processes", "three"])
@pytest.mark.lengthy
def test_time_is_up_anywhere(make_world, crowd, homes):
    """A client that leaves passes on its wake-up, and lets those in who waited for it."""
    build = meeting(make_world, *crowd, homes=homes, may={"timeout": 2}, wait=5.0)
    assert explore(build, all_ended("served", "timeout"), limit=20_000) > 100


def test_beats_in_between_do_no_harm(make_world):
    """Heartbeats only wake waiters that may retry."""

    def then(world: World) -> None:
        world.actors = [each for actor in world.actors for each in (actor, Beater(world, actor.process, 1, split=True))]

    assert explore(meeting(make_world, *[FairLock(NAME)] * 2, then=then), all_served) > 100


@pytest.mark.parametrize("fault", ["lose", "kill"])
def test_a_beat_repairs(make_world, fault):
    """A wake-up is lost, or a process dies at any step: the heartbeats of the others get all waiters the lock."""

    def check(world: World) -> None:
        finish(world)
        assert all(actor.result == "served" for actor in world.actors if not actor.process.dead)

    assert explore(meeting(make_world, *[FairLock(NAME)] * 3, may={fault: 1}), check) > 100


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("crowd", "wait"),
    [
        *(pytest.param(crowd, None, id=f"{name}, waits") for name, crowd in PAIRS.items()),
        *(pytest.param(PAIRS[name], 5.0, id=f"{name}, gives up") for name in ("fair", "rlock")),
    ],
)
def test_one_command_is_sent_twice(make_world, crowd, wait):
    """Any command of one of two; the first copy is executed, and its reply lost, or it comes at any later time."""
    may = {"copy": 1, "timeout": 0 if wait is None else 1}
    assert explore(meeting(make_world, *crowd, may=may, wait=wait), check_of(crowd, "timeout")) > 50


@pytest.mark.parametrize(
    ("crowd", "fault"),
    [
        *(
            (crowd, fault)
            for crowd in (PAIRS["fair"], PAIRS["rlock"], (FENCED, FENCED))
            for fault in ("copy", "cancel")
        ),
        *((crowd, "copy") for crowd in ((R, W), (W, R))),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0].kind,
)
def test_it_comes_back_after_one_fault_in_a_long_hold(make_world, crowd, fault):
    """It chooses leases, re-enters, ends and starts again, beside another one. What it had sent may arrive at any later
    time, also while it has its next hold.
    """
    build = meeting(make_world, *crowd, may={fault: 1}, first=Returner)
    assert explore(build, check_of(crowd, "cancelled"), limit=20_000) > 100


class Insistent(Visitor):
    """Extends its hold until that succeeds, each time for longer."""

    async def _stay(self) -> None:
        with suppress(asyncio.CancelledError):
            await self._extend(LEASE / 2)
        await self._extend(2 * LEASE)
        await suspend("inside")

    async def _extend(self, lease: float) -> None:
        await self.lock._engine.extend(self.lock, self.driver, self.owner, lease)


def test_a_hold_is_extended_again_after_a_failure(kind, make_world):
    """The first extension may arrive at any later time; it does not shorten the lease of the second one."""
    build = meeting(make_world, *[kind(NAME)] * 2, may={"cancel": 1}, first=Insistent)
    assert explore(build, finish, limit=20_000) > 100


class Brief(Visitor):
    """Takes the lock for a quarter of a claim, and extends that to half of one."""

    lease = LONG["CLAIM_TIME"] / 4

    async def _stay(self) -> None:
        _, left = self.world.lease(KEY)
        assert left <= 1000 * Brief.lease, "the claim outlives the lease"
        await self.lock._engine.extend(self.lock, self.driver, self.owner, 2 * Brief.lease)
        await suspend("inside")


def test_one_command_of_a_short_hold_is_sent_twice(make_world):
    """A lease that is shorter than the claim ends when its owner says so, and no copy shortens a longer one."""
    build = meeting(make_world, *[FairLock(NAME)] * 2, may={"copy": 1}, first=Brief)
    assert explore(build, finish) > 100


class Calm(World):
    """The last actor's commands find the lock free; a copy may come at any time after them."""

    def actions(self) -> list[Action]:
        found = super().actions()
        if self.actors[-1].at == "done" or not self.client.exists(KEY):
            return found
        theirs = {("step", len(self.actors) - 1), ("obeyed twice", len(self.actors) - 1), ("arrive", 0)}
        return [action for action in found if action not in theirs]


def test_a_forced_release_of_a_free_lock_is_sent_twice(kind, make_world):
    """The server remembers it too: a copy that comes late frees no one's lock."""

    def build() -> World:
        world = make_world(Calm)
        world.may = {"copy": 1}
        world.actors = [Visitor(world, world.process(), kind(NAME)), operator(world, kind(NAME))]
        return world

    assert explore(build, finish) > 10


def operator(world: World, lock: BaseLock) -> Actor:
    """Frees the lock by force."""
    actor = Actor(world, world.process())
    actor.start(lock._engine.free_by_force(lock, actor.driver, Owner("operator"), None, ""))
    return actor


def test_a_forced_release_is_sent_twice(kind, make_world):
    """Two wait for a lock that is freed by force; a copy that comes late frees neither."""

    def then(world: World) -> None:
        world.client.hset(KEY, "another", 1)
        world.actors.append(operator(world, kind(NAME)))

    build = meeting(make_world, *[kind(NAME)] * 2, may={"copy": 1}, then=then)
    assert explore(build, finish, limit=20_000) > 100


class Forgetful(World):
    """The server comes back empty once, while one is inside."""

    def actions(self) -> list[Action]:
        return [*super().actions(), *([("forget", 0)] if self.may["forget"] and self.client.exists(KEY) else [])]

    def do(self, action: Action) -> None:
        if action[0] != "forget":
            super().do(action)
            return
        self.may["forget"] -= 1
        self.client.delete(KEY)


class Nested(Visitor):
    """Enters twice. When the inner release has returned, the server has its lock, or it knows that it was lost."""

    async def _visit(self, wait: float | None) -> str:
        try:
            await self.lock._engine.take(
                self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, LEASE)
            )
            await self.lock._engine.take(
                self.lock, self.driver, AcquireRequest(self.owner, self.driver.now(), wait, LEASE)
            )
            await suspend("inside")
            await self.lock._engine.release(self.lock, self.driver, self.owner)
            hold = HOLDS.get(self.lock, self.owner)
            assert hold is not None
            assert hold.lost or self.world.client.hexists(KEY, hold.owner_id), "it counts as held, and is not"
            await self.lock._engine.release(self.lock, self.driver, self.owner)
        except LockLostError:
            return "lost"
        return "served"


def test_an_inner_release_is_sent_twice_to_a_server_that_forgot(kind, make_world):
    def build() -> World:
        world = make_world(Forgetful)
        world.may = {"copy": 1, "forget": 1}
        world.actors = [Nested(world, world.process(), kind(NAME))]
        return world

    def check(world: World) -> None:
        assert [actor.result for actor in world.actors] in (["served"], ["lost"])

    assert explore(build, check) > 20
