"""Every order of the steps of those who take several locks at once, beside each other and beside single locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_rlock import FairLock, FencedLock, MultiLock, ReadLock, RLock, WriteLock
from django_rlock.locks import BaseLock
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.multi import AllOrNone
from django_rlock.locks.records import Hold
from tests.apart import ApartLock
from tests.flows.ends import all_served, finish, nothing_left
from tests.flows.exploring import explore
from tests.flows.stepping import LEASE, Process, Renewer, Visitor, suspend
from tests.flows.worlds import World

pytestmark = pytest.mark.lengthy

Kind = type[BaseLock]


class Guest(Visitor):
    """Takes one or more locks, holds them for a step, and releases all; renewed, unless it chooses its lease."""

    def __init__(
        self, world: World, process: Process, lock: BaseLock, lease: float | None = None, **options: Any
    ) -> None:
        self.lease = lease
        super().__init__(world, process, lock, **options)

    def local_state(self) -> Any:
        waits = [wait.lock.name for wait in WAITS.snapshot() if wait.owner_id == self.owner.owner_id]
        records = [HOLDS.get(part, self.owner) for part in self.lock.parts]
        return self.at_lines(), self._attempt(), waits, list(map(_known, records)), self.owner.owner_id

    def _attempt(self) -> Any:
        """What its attempt at all of them has."""
        attempt = self.local("attempt")
        if not isinstance(attempt, AllOrNone):
            return None
        failed = getattr(attempt.request, "failed", None)
        return [lock.name for lock in attempt.taken], [hold.key for hold in attempt.lent], failed and failed.lock.name


class Fiddler(Guest):
    """Touches one of its locks by itself: enters it again, chooses its lease, and gives it back once."""

    async def _stay(self) -> None:
        part = self.lock.parts[-1]
        await part._engine.take(part, self.driver, AcquireRequest(self.owner, self.driver.now(), None, 2 * LEASE))
        try:
            await part._engine.extend(part, self.driver, self.owner, 3 * LEASE)
        finally:
            await part._engine.release(part, self.driver, self.owner)
        await suspend("inside")


class Leaver(Guest):
    """Gives one of its locks back before the others."""

    async def _stay(self) -> None:
        first, *rest = self.lock.parts
        self.lock = MultiLock(*rest)
        await first._engine.release(first, self.driver, self.owner)
        await suspend("inside")


def _known(record: Hold | None) -> Any:
    if record is None:
        return None
    times = record.lease, record.deadline, record.runs_for, record.late_lease
    return record.owner_id, record.count, times, record.renewed, record.lost


# --- who comes -------------------------------------------------------------------------------------------------------

MEETINGS = {
    "two groups": ("ab", "ab"),
    "a group and a single lock": ("ab", "b"),
    "a group and two single locks": ("ab", "a", "b"),
    "groups that share one": ("ab", "bc"),
}
each_meeting = pytest.mark.parametrize("meeting", MEETINGS.values(), ids=MEETINGS.keys())
WAYS: dict[str, tuple[Kind, Kind, Kind]] = {
    "fair, together": (FairLock, FairLock, FairLock),
    "one after another": (ApartLock, ApartLock, ApartLock),
    "some together": (FairLock, RLock, ApartLock),
    "fenced and written, together": (FencedLock, WriteLock, RLock),
}
FAIR, ONE_BY_ONE, SOME, SIDES = WAYS.values()
each_way = pytest.mark.parametrize("kinds", WAYS.values(), ids=WAYS.keys())
both_ways = pytest.mark.parametrize("kinds", [SOME, SIDES], ids=["some together", "sides"])
each_pair = pytest.mark.parametrize(
    ("kinds", "meeting"),
    [
        pytest.param(kinds, meeting, id=f"{way}: {'-'.join(meeting)}")
        for way, kinds in WAYS.items()
        for meeting in [("ab", "b"), ("ab", "ab")]
        if len(meeting[1]) == 1 or kinds in {FAIR, SOME, SIDES}  # the others have many states and nothing new
    ],
)


def locks(names: str, kinds: tuple[Kind, ...]) -> BaseLock:
    made = [kinds["abc".index(name)](name) for name in names]
    return made[0] if len(made) == 1 else MultiLock(*made)


def guests(
    make_world: Any,
    meeting: tuple[str, ...],
    kinds: tuple[Kind, ...],
    first: type[Guest] = Guest,
    may: dict[str, int] | None = None,
    heard: bool = True,
    renewed_by_thread: bool = False,
    **options: Any,
) -> Callable[[], World]:
    def build() -> World:
        world: World = make_world()
        world.names = tuple(sorted(set("".join(meeting))))
        world.may = dict(may or {})
        for number, names in enumerate(meeting):
            guest = (Guest if number else first)(world, world.process(), locks(names, kinds), **options)
            if heard:
                guest.listen_before()
            world.actors.append(guest)
        if renewed_by_thread:
            world.actors.append(Renewer(world, world.processes[0], guest_of(world)))
        return world

    return build


def guest_of(world: World) -> Visitor:
    first = world.actors[0]
    assert isinstance(first, Visitor)
    return first


# --- what happens ----------------------------------------------------------------------------------------------------


@each_way
@each_meeting
def test_all_get_in(make_world, kinds, meeting):
    assert explore(guests(make_world, meeting, kinds), all_served, limit=20_000) > 30


@each_way
@pytest.mark.parametrize("heard", [False, True], ids=["first wait", "later waits"])
def test_calls_and_replies(make_world, kinds, heard):
    """Each call in two steps: the server executes it, the reply arrives."""
    build = guests(make_world, ("ab", "b"), kinds, heard=heard, split=True)
    assert explore(build, all_served, limit=20_000) > 50


@each_pair
def test_a_chosen_lease(make_world, kinds, meeting):
    """The leases of those that were taken first are made as long as the last one's."""
    assert explore(guests(make_world, meeting, kinds, lease=LEASE), all_served, limit=20_000) > 30


@each_pair
@pytest.mark.parametrize("lease", [None, LEASE], ids=["renewed", "chosen"])
def test_cancelled_anywhere(make_world, kinds, meeting, lease):
    build = guests(make_world, meeting, kinds, may={"cancel": 1}, lease=lease)
    assert explore(build, finish, limit=20_000) > 100


@each_pair
def test_one_command_is_sent_twice(make_world, kinds, meeting):
    """The first copy is executed, and its reply lost, or it comes at any later time."""
    build = guests(make_world, meeting, kinds, may={"copy": 1}, lease=LEASE)
    assert explore(build, finish, limit=20_000) > 100


@each_pair
def test_time_is_up_anywhere(make_world, kinds, meeting):
    """It gives up, or releases what it has and starts again."""

    def check(world: World) -> None:
        assert {actor.result for actor in world.actors} <= {"served", "timeout"}
        finish(world)
        nothing_left(world)

    build = guests(make_world, meeting, kinds, may={"timeout": 2}, wait=5.0)
    assert explore(build, check, limit=20_000) > 50


@pytest.mark.parametrize("meeting", [("ab", "ab"), ("ab", "b"), ("ab", "a")], ids="-".join)
def test_a_beat_repairs_what_a_dead_process_leaves(make_world, meeting):
    def check(world: World) -> None:
        finish(world)
        assert all(actor.result == "served" for actor in world.actors if not actor.process.dead)

    assert explore(guests(make_world, meeting, FAIR, may={"kill": 1}), check, limit=20_000) > 50


@both_ways
@pytest.mark.parametrize("first", [Fiddler, Leaver])
@pytest.mark.parametrize("fault", [{}, {"cancel": 1}, {"copy": 1}], ids=["no fault", "cancelled", "sent twice"])
def test_one_of_them_is_touched_alone(make_world, kinds, first, fault):
    """From then on, the locks that were taken together are held one by one."""
    build = guests(make_world, ("ab", "b"), kinds, first=first, may=fault)
    assert explore(build, finish if fault else all_served, limit=20_000) > 20


@both_ways
@pytest.mark.parametrize("first", [Guest, Fiddler])
@pytest.mark.parametrize(
    ("fault", "meeting"), [({}, ("ab", "a")), ({"copy": 1}, ("ab",))], ids=["no fault", "sent twice"]
)
def test_renewed_at_any_time(make_world, kinds, first, fault, meeting):
    """The background thread may be the first to ask for one of them by itself."""
    build = guests(make_world, meeting, kinds, first=first, may=fault, renewed_by_thread=True)
    assert explore(build, finish, limit=20_000) > 50


READERS: dict[str, tuple[tuple[str, Kind], ...]] = {
    "two that read": (("ab", ReadLock), ("bc", ReadLock)),
    "one that reads, one that writes": (("ab", ReadLock), ("bc", WriteLock)),
    "one that reads, a writer": (("ab", ReadLock), ("b", WriteLock)),
}


@pytest.mark.parametrize("meeting", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("fault", [{}, {"cancel": 1}, {"copy": 1}], ids=["no fault", "cancelled", "sent twice"])
def test_readers_of_one_member(make_world, meeting, fault):
    def build() -> World:
        world: World = make_world()
        world.names, world.may = ("a", "b", "c"), dict(fault)
        for names, kind in meeting:
            lock = locks(names, (FencedLock, kind, RLock))
            guest = Guest(world, world.process(), lock, lease=LEASE if fault else None)
            guest.listen_before()
            world.actors.append(guest)
        return world

    assert explore(build, finish if fault else all_served, limit=20_000) > 20
