"""Lets the real flows go where the model of the fair lock goes, and compares the two after each step."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django_rlock import FairLock
from django_rlock._redis.keys import queue_key
from django_rlock._transport.calls import ScriptCall
from django_rlock.exceptions import LockLostError
from django_rlock.locks.acquire import AcquireRequest
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.watchdog import note_loss
from models import fairlock
from models.fairlock import NOBODY, Client, Name, State
from tests.flows.stepping import KEY, NAME, Process, Renewer, Visitor, suspend
from tests.flows.worlds import World

TICK = 200.0
"""Seconds: no stall of the machine lasts as long."""
OPTIONS = {"WATCHDOG_TIMEOUT": 2 * TICK, "CLAIM_TIME": 2 * TICK, "WAITER_ALIVE_TIME": 5 * TICK}
_OBEYS = re.compile(r"the server obeys (\w+) of \((\d+), (\d+)\)")
_OF_CLIENT = re.compile(r"client (\d+) (\w+) ?(\w*)")


def weigh(step: str) -> float:
    """How likely a step is, beside others: most owners get the lock, and hold it for a while."""
    return 0.3 if step == "a tick passes" else 0.03 if step.endswith(("gives up", "dies")) else 1.0


class Model(fairlock.FairLock):
    """Its times are those of ``OPTIONS``, in ticks."""

    lease = renewed = claim = 2


class Walker(Visitor):
    """Takes the lock when it is told to, as often as it is told to."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process, FairLock(NAME), split=True)
        self.listen_before()
        self.step()

    @property
    def left(self) -> float:
        """For how many ticks it counts its hold as running."""
        hold = HOLDS.get(self.lock, self.owner)
        return 0 if hold is None else (hold.deadline - self.driver.clock) / TICK

    async def _visit(self, wait: float | None) -> str:
        while True:
            await suspend("idle")
            with suppress(LockLostError):
                await self._visit_until_cancelled()

    async def _visit_until_cancelled(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.lock._engine.take(self.lock, self.driver, AcquireRequest(self.owner, None, None))
            await suspend("inside")
            await self.lock._engine.release(self.lock, self.driver, self.owner)


class Walk:
    """Walkers, one for each client of the model, and what of theirs is on its way to the server."""

    def __init__(self, world: World, clients: int) -> None:
        self.world = world
        self.walkers = [Walker(world, world.process()) for _ in range(clients)]
        world.actors = [*self.walkers]
        self.renewers: dict[str, Renewer] = {}
        self.late: dict[tuple[str, str], ScriptCall] = {}
        """Commands of a flow that has given up since, by what and owner id."""
        self.undone: dict[str, ScriptCall] = {}
        self.owner_ids: dict[Name, str] = {}

    def do(self, step: str, before: State) -> None:
        """Do what the model does by a step from a state."""
        if obeyed := _OBEYS.fullmatch(step):
            what, at, number = obeyed.groups()
            self._obey(what, (int(at), int(number)))
        elif step == "a tick passes":
            self._tick()
        elif step == "a heartbeat hands the lock on":
            head = self.client.zrange(queue_key(KEY), 0, 0)[0].decode()
            lock = self.walkers[0].lock
            self.world.execute(lock._kind.heartbeat([(lock, head)], 0))
        else:
            found = _OF_CLIENT.fullmatch(step)
            assert found, step
            at, verb, what = found.groups()
            act: Callable[..., None] = getattr(self, f"_{verb}")
            act(int(at), before.clients[int(at)], *filter(None, [what]))
        self._collect()

    @property
    def client(self) -> Any:
        return self.world.client

    # --- the server --------------------------------------------------------------------------------------------------

    def _obey(self, what: str, name: Name) -> None:
        owner_id = self.owner_ids[name]
        if what == "undo":
            if call := self.undone.get(owner_id):
                self.world.execute(call)
        elif call := self.late.pop((what, owner_id), None):
            self.world.execute(call)
        elif what == "renew":
            self.renewers[owner_id].step()
        else:
            self.walkers[name[0]].step()

    def _tick(self) -> None:
        left = int(self.client.pttl(KEY)) - int(1000 * TICK)
        if left > 1000:
            self.client.pexpire(KEY, left)
        else:
            self.client.delete(KEY)
        for actor in (*self.walkers, *self.renewers.values()):
            actor.driver.clock += TICK
        for walker in self.walkers:
            hold = HOLDS.get(walker.lock, walker.owner)
            if walker.at == "inside" and hold:
                with walker.process.running():
                    ended = note_loss(hold, walker.driver.clock)
                    self.world.collect_clean_up(walker.process)
                if ended:
                    walker.step()

    def _collect(self) -> None:
        for walker in self.walkers:
            self.world.collect_clean_up(walker.process)
            for call, _ in walker.process.deferred:
                self.undone[str(call.args[0])] = call
            walker.process.deferred.clear()

    # --- the clients -------------------------------------------------------------------------------------------------

    def _asks(self, at: int, client: Client) -> None:
        walker = self.walkers[at]
        walker.step()
        self.owner_ids[at, client.number + 1] = walker.owner.owner_id

    def _renews(self, at: int, client: Client) -> None:
        walker = self.walkers[at]
        renewer = Renewer(self.world, walker.process, walker)
        renewer.driver.clock, renewer.driver.split = walker.driver.clock, True
        renewer.step()
        self.renewers[self.owner_ids[at, client.number]] = renewer

    def _releases(self, at: int, client: Client) -> None:
        self.walkers[at].step()

    def _gives(self, at: int, client: Client, up: str) -> None:
        walker = self.walkers[at]
        if walker.at == "send" and walker.call:
            what = "try" if client.doing == fairlock.ASKING else "release"
            self.late[what, self.owner_ids[at, client.number]] = walker.call
        walker.step(error=asyncio.CancelledError)

    def _dies(self, at: int, client: Client) -> None:
        walker = self.walkers[at]
        if walker.at == "send" and walker.call:
            what = "try" if client.doing == fairlock.ASKING else "release"
            self.late[what, self.owner_ids[at, client.number]] = walker.call

    def _hears(self, at: int, client: Client, what: str) -> None:
        walker, owner_id = self.walkers[at], self.owner_ids[at, client.number]
        if what == "grant":
            message = next(each for each in self.world.messages if each[2].split()[1] == owner_id)
            self.world.messages.remove(message)
            self.world.wake(*message)
            assert walker.waiter is not None
            assert walker.waiter.woken
        if what in {"renewed", "gone"}:
            self.renewers[owner_id].step()
        if what != "renewed":
            walker.step()
        if what == "ok" and walker.at == "send":  # it came too late; another try is another attempt of the model's
            walker.step(error=asyncio.CancelledError)

    def _drops(self, at: int, client: Client, what: str) -> None:
        """A message or a reply that is lost, or that nobody waits for."""
        if what == "grant":
            mine = [each for each in self.world.messages if each[0] is self.walkers[at].process]
            self.world.messages.remove(mine[0])

    # --- what both must agree on -------------------------------------------------------------------------------------

    def compare(self, state: State) -> None:
        server = state.server
        holder = () if server.holder == NOBODY else (self.owner_ids[server.holder].encode(),)
        found = self.client.hgetall(KEY)
        assert (tuple(found), [*found.values()] == [b"01"]) == (holder, server.granted)
        assert math.ceil(max(self.client.pttl(KEY), 0) / 1000 / TICK) == server.left
        queue = [self.owner_ids[name].encode() for name, _ in server.queue]
        assert self.client.zrange(queue_key(KEY), 0, -1) == queue
        for walker, client in zip(self.walkers, state.clients, strict=True):
            if client.doing != fairlock.DEAD:
                assert walker.at in _AT[client.doing], (walker.at, client)
            if client.doing == fairlock.INSIDE:
                assert walker.left == client.left


_AT = {
    fairlock.IDLE: {"idle"},
    fairlock.ASKING: {"send", "reply"},
    fairlock.WAITING: {"wait"},
    fairlock.INSIDE: {"inside"},
    fairlock.LEAVING: {"send", "reply"},
}
"""Where a walker is while the model's client does something."""
