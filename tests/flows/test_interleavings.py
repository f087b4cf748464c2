"""Every order of two and three clients' steps: never two inside, and nobody who stays alive waits for ever."""

import pytest

from django_rlock import FairLock
from tests.flows.stepping import KEY, NAME, Beater, Visitor, World, explore


def all_served(world: World) -> None:
    """Everybody got in, without any repair, and nothing is left."""
    assert [actor.result for actor in world.actors if isinstance(actor, Visitor)] == ["served"] * len(world.served)
    assert [actor.at for actor in world.actors] == ["done"] * len(world.actors)
    nothing_left(world)


def nothing_left(world: World) -> None:
    assert not world.client.exists(KEY), world.client.hgetall(KEY)
    assert not world.client.exists(f"rlock_queue:{{{KEY}}}"), world.client.zrange(f"rlock_queue:{{{KEY}}}", 0, -1)


def finish(world: World) -> None:
    """With a beat whenever nothing else happens, everybody who is alive ends, and nothing is left."""
    for _ in range(12):
        while actions := world.actions():
            world.do(actions[0])
        if all(actor.at == "done" or actor.process.dead for actor in world.actors):
            break
        world.repair()
    assert all(actor.at == "done" or actor.process.dead for actor in world.actors), "somebody waits for ever"
    queue = world.client.zrange(f"rlock_queue:{{{KEY}}}", 0, -1)
    holders = world.client.hkeys(KEY)
    living = [each.identity.client_id.encode() for each in world.processes if not each.dead]
    assert not [name for name in (*queue, *holders) if name[:36] in living], (queue, holders)


@pytest.mark.parametrize("listening", [False, True], ids=["first wait", "later waits"])
def test_two_processes(kind, make_world, listening):
    """Each call in two steps: the server obeys, the reply arrives."""

    def build() -> World:
        world = make_world()
        for _ in range(2):
            visitor = Visitor(world, world.process(), kind(NAME), split=True)
            if listening:
                visitor.process.channels.add(visitor_channel(visitor))
            world.actors.append(visitor)
        return world

    assert explore(build, all_served) > 50


def visitor_channel(visitor: Visitor) -> str:
    from django_rlock.drivers import identity

    before, identity._process = identity._process, visitor.process.identity
    try:
        heard = visitor.lock.wake_up(visitor.owner.name)
        assert heard is not None
        return heard[0]
    finally:
        identity._process = before


def test_three_processes(kind, make_world):
    def build() -> World:
        world = make_world()
        for _ in range(3):
            visitor = Visitor(world, world.process(), kind(NAME))
            visitor.process.channels.add(visitor_channel(visitor))
            world.actors.append(visitor)
        return world

    assert explore(build, all_served) > 200


def test_two_threads_of_one_process_and_another(kind, make_world):
    def build() -> World:
        world = make_world()
        first, second = world.process(), world.process()
        world.actors = [Visitor(world, each, kind(NAME)) for each in (first, first, second)]
        for actor in world.actors:
            actor.process.channels.add(visitor_channel(actor))
        return world

    assert explore(build, all_served) > 200


def test_order_of_service(make_world):
    """Whoever got a ticket first is inside first, and no newcomer passes those who wait."""

    def build() -> World:
        world = make_world()
        world.order_matters = True
        for _ in range(3):
            visitor = Visitor(world, world.process(), FairLock(NAME))
            visitor.process.channels.add(visitor_channel(visitor))
            world.actors.append(visitor)
        return world

    def check(world: World) -> None:
        all_served(world)
        assert [name for name in world.served if name in world.tickets] == world.tickets

    assert explore(build, check) > 200


@pytest.mark.parametrize("split", [False, True], ids=["calls", "calls and replies"])
def test_cancelled_anywhere(kind, make_world, split):
    """One of two is cancelled at any step; what it had sent may arrive at any later time, before the last clean-up."""

    def build() -> World:
        world = make_world()
        world.may = {"cancel": 1}
        for _ in range(2):
            visitor = Visitor(world, world.process(), kind(NAME), split=split)
            visitor.process.channels.add(visitor_channel(visitor))
            world.actors.append(visitor)
        return world

    assert explore(build, finish) > 100


def test_time_is_up_anywhere(kind, make_world):
    def build() -> World:
        world = make_world()
        world.may = {"timeout": 2}
        for _ in range(3):
            visitor = Visitor(world, world.process(), kind(NAME), wait=5.0)
            visitor.process.channels.add(visitor_channel(visitor))
            world.actors.append(visitor)
        return world

    def check(world: World) -> None:
        assert {actor.result for actor in world.actors} <= {"served", "timeout"}
        assert [actor.at for actor in world.actors] == ["done"] * 3
        nothing_left(world)

    assert explore(build, check) > 200


def test_beats_in_between_do_no_harm(make_world):
    """Beats only ever wake somebody who may ask again."""

    def build() -> World:
        world = make_world()
        for _ in range(2):
            visitor = Visitor(world, world.process(), FairLock(NAME))
            visitor.process.channels.add(visitor_channel(visitor))
            world.actors += [visitor, Beater(world, visitor.process, 1, split=True)]
        return world

    assert explore(build, all_served) > 100


@pytest.mark.parametrize("fault", ["lose", "kill"])
def test_a_beat_repairs(make_world, fault):
    """A wake-up is lost, or a process dies at any step: the beats of the others bring everybody in."""

    def build() -> World:
        world = make_world()
        world.may = {fault: 1}
        for _ in range(3):
            visitor = Visitor(world, world.process(), FairLock(NAME))
            visitor.process.channels.add(visitor_channel(visitor))
            world.actors.append(visitor)
        return world

    def check(world: World) -> None:
        finish(world)
        assert all(actor.result == "served" for actor in world.actors if not actor.process.dead)

    assert explore(build, check) > 200
