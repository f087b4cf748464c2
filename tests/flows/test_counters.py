"""Every order of the steps of two who wait for a permit or a latch, and of one who frees it: no wake-up is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_rlock import CountDownLatch, PermitExpirableSemaphore, Semaphore
from django_rlock._redis.keys import latch_channel, requests_key, semaphore_channel
from django_rlock.locks import counters, semaphore
from django_rlock.locks.holds import WAITS
from django_rlock.locks.options import UNSET
from tests.flows.exploring import explore
from tests.flows.stepping import KEY, NAME, Actor, Process, Visitor, suspend
from tests.flows.worlds import World


@pytest.fixture
def same_ids(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Restarts the numbers from which permits are made, so that runs can be compared."""

    def start_anew() -> None:
        ids = itertools.count(1)
        counters._answered.clear()
        # Not for all: what a thread in the background takes would be another one each time.
        monkeypatch.setattr(semaphore, "os", SimpleNamespace(urandom=lambda size: next(ids).to_bytes(size)))

    return start_anew


@pytest.fixture
def same_names(same_ids: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The same where it does not matter which requests the server may forget early: it has no part in who is woken."""
    monkeypatch.setattr(semaphore, "note_answered", lambda *_: None)
    return same_ids


class Numbers(World):
    """A world in which at most one may hold a permit."""

    def enter(self, actor: Visitor) -> None:
        assert not self.inside, "two inside at once"
        self.inside.append(actor)

    def state(self) -> tuple[Any, ...]:
        return *super().state(), tuple(self.client.zrange(requests_key(KEY), 0, -1))


class Asking(Visitor):
    """Waits for a permit, holds it for a step, and releases it; or waits for a latch."""

    def __init__(self, world: World, process: Process, counter: Any) -> None:
        super().__init__(world, process, counter)
        self.driver.owner = lambda: self.owner  # type: ignore[method-assign]
        channel = latch_channel if isinstance(counter, CountDownLatch) else semaphore_channel
        process.channels.add(channel(KEY))

    def local_state(self) -> Any:
        return len(WAITS.snapshot())

    async def _visit(self, wait: float | None) -> str:
        counter: Any = self.lock
        if isinstance(counter, CountDownLatch):
            assert await counter._wait(self.driver, UNSET)
            return "served"
        more: tuple[Any, ...] = ({},) if isinstance(counter, Semaphore) else (None, False, {})
        taken = await counter._acquire(self.driver, 1, True, UNSET, *more)
        self.world.enter(self)
        try:
            await suspend("inside")
        finally:
            self.world.inside.remove(self)
            release = counter._give if isinstance(counter, Semaphore) else counter._release
            await release(self.driver, 1 if taken is True else taken)
        return "served"


class Freeing(Actor):
    """Adds a permit, or counts a latch down."""

    def __init__(self, world: World, process: Process, counter: Any) -> None:
        super().__init__(world, process)
        if isinstance(counter, CountDownLatch):
            self.start(counter._count_down(self.driver))
        else:
            self.start(counter._add_permits(self.driver, 1))


each_counter = pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(Semaphore, 0, b"1"), (PermitExpirableSemaphore, 0, b"1"), (CountDownLatch, 1, None)],
    ids=["semaphore", "permits", "latch"],
)


def two_and_one(make_world: Any, start_anew: Callable[[], None], kind: Any, before: int, fault: str) -> Any:
    """Makes worlds in which two wait for what one frees, with one fault."""

    def build() -> World:
        start_anew()
        world: World = make_world(Numbers)
        world.client.set(KEY, before)
        world.may = {fault: 1}
        waiting, freeing = world.process(), world.process()
        world.actors = [Asking(world, waiting, kind(NAME)) for _ in range(2)]
        world.actors.append(Freeing(world, freeing, kind(NAME)))
        return world

    return build


def is_free(after: bytes | None) -> Callable[[World], None]:
    """A check that all have ended, at most one of them as it was cancelled, and of the number that is left."""

    def check(world: World) -> None:
        assert [actor.at for actor in world.actors] == ["done"] * 3
        assert [actor.result for actor in world.actors].count("cancelled") <= 1
        assert world.client.get(KEY) == after

    return check


@each_counter
def test_cancelled_anywhere(make_world, same_names, kind, before, after):
    """One of the two is cancelled at any step: when it was just woken, too. The other one gets in."""
    build = two_and_one(make_world, same_names, kind, before, "cancel")
    assert explore(build, is_free(after), limit=20_000) > 50


@each_counter
def test_one_command_is_sent_twice(make_world, same_ids, kind, before, after):
    """Any command of the three; the first copy is executed, and its reply lost, or it comes at any later time."""
    build = two_and_one(make_world, same_ids, kind, before, "copy")
    assert explore(build, is_free(after), limit=20_000) > 50
