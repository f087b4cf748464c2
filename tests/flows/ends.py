"""Checks of a world in which nothing can happen any more."""

from __future__ import annotations

from collections.abc import Callable

from django_rlock._redis.keys import queue_key
from tests.faults.storm_process import STAYS
from tests.flows.stepping import Visitor
from tests.flows.worlds import World


def all_served(world: World) -> None:
    """All got the lock, without any repair, and nothing is left."""
    assert [actor.result for actor in world.actors if isinstance(actor, Visitor)] == ["served"] * len(world.served)
    assert [actor.at for actor in world.actors] == ["done"] * len(world.actors)
    nothing_left(world)


def all_ended(*results: str) -> Callable[[World], None]:
    """A check that all have ended, each with one of these results, and that nothing is left."""

    def check(world: World) -> None:
        ends = [(actor.result, actor.at) for actor in world.actors]
        assert all(result in results and at == "done" for result, at in ends), ends
        nothing_left(world)

    return check


def nothing_left(world: World) -> None:
    left = [key for key in world.client.scan_iter() if not STAYS.match(key.decode())]
    assert not left, left


def finish(world: World) -> None:
    """With a heartbeat whenever nothing else happens, all live actors end, and nothing is left."""
    for _ in range(12):
        while actions := world.actions():
            world.do(actions[0])
        if all(actor.at == "done" or actor.process.dead for actor in world.actors):
            break
        world.repair()
    assert all(actor.at == "done" or actor.process.dead for actor in world.actors), "one waits for ever"
    nothing_of_the_living(world)


def nothing_of_the_living(world: World) -> None:
    """A process that was killed may leave something until its lease ends, others nothing."""
    living = [each.identity.client_id for each in world.processes if not each.dead]
    for key in world.keys:
        names = [*world.client.zrange(queue_key(key), 0, -1), *world.client.hkeys(key)]
        assert not [name for name in names if name[:36].decode() in living], (key, names)
