"""A cluster of servers: each call goes to the node that serves the slot of its keys.

Redirections are followed. When a node does not reply, the map of slots is fetched again.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from django_rlock.cluster import Address, SlotMap, slot_of
from django_rlock.drivers.base import Face, Undo
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.retrying import Retrying
from django_rlock.drivers.server import Node, alone, exchange_slices
from django_rlock.exceptions import LockUnavailableError
from django_rlock.keys import tagged

_REDIRECTIONS = 5
"""How many redirections are followed before a pause: while slots move, two nodes may point at each other."""


class Cluster:
    """The topology of a Redis Cluster. ``make_node`` makes the node for an address; ``to_all`` is PUBLISH_TO_ALL."""

    def __init__(
        self,
        using: str,
        face: Face,
        slots: SlotMap,
        make_node: Callable[[Address], Node],
        take: Callable[..., Any] | None = None,
        to_all: bool = False,
    ) -> None:
        self._face = face
        self._slots = slots
        self._make_node = make_node
        self._nodes: dict[Address, Node] = {}
        self._take = take
        self._to_all = to_all
        self._retrying = Retrying(using, self._exchange, face.sleep)

    def place(self, key: str) -> object:
        return slot_of(key)

    async def run(self, call: ScriptCall, until: float | None = None) -> list[Any]:
        key = call.keys[0]
        if slot_of(tagged("", key)) != slot_of(key):
            # Calls with a single key would succeed: the lock could be acquired, but then never released.
            raise LockUnavailableError(
                call.name,
                reason="the braces in its name would spread its keys over several slots of the cluster",
                advice="Nothing was changed; leave them out, or close them around a hash tag.",
                noun=call.noun,
            ) from ClusterCrossSlotError("the keys of a lock must be in one slot")
        call.prepared = call.prepared.sharded(self._to_all)
        return await self._retrying.run(call, until)

    def take(self, call: ScriptCall, until: float | None, undo: Undo) -> Coroutine[Any, Any, list[Any]]:
        return self.run(call, until) if self._take is None else self._take(self.run, call, until, undo)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        by_node = self._by_node(calls)
        found = await self._face.gather([self._ask(address, group) for address, group in by_node.items()])
        grouped = itertools.chain.from_iterable(by_node.values())
        replies = dict(zip(grouped, itertools.chain.from_iterable(found), strict=True))
        return [replies[call] for call in calls]

    async def _ask(self, address: Address, calls: Sequence[ScriptCall]) -> list[Any]:
        replies = await exchange_slices(self._node(address), calls)
        if any(isinstance(reply, LockUnavailableError) for reply in replies):
            self._slots.doubt(address)
        return [await alone(self.run, call, reply) for call, reply in zip(calls, replies, strict=True)]

    def _by_node(self, calls: Sequence[ScriptCall]) -> dict[Address, list[ScriptCall]]:
        if self._slots.stale:
            self._slots.refresh()
        by_node: dict[Address, list[ScriptCall]] = defaultdict(list)
        for call in calls:
            call.prepared = call.prepared.sharded(self._to_all)
            by_node[self._slots.owner(slot_of(call.keys[0]))].append(call)
        return by_node

    async def _exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        if self._slots.stale:
            await self._face.call(self._slots.refresh, self._slots.rounds, limit)
        slot = slot_of(call.keys[0])
        address = self._slots.owner(slot)
        asking = False
        for left in reversed(range(_REDIRECTIONS)):
            try:
                node = self._node(address)
                exchange = node.exchange_asking if asking else node.exchange
                return await exchange(call, packed, nonce, limit)
            except AskError as error:  # or MovedError
                call.sends -= 1  # certainly not executed
                address = self._slots.redirected(error.host, error.port, address)
                asking = not isinstance(error, MovedError)
                if not asking:
                    self._slots.moved(slot, address)
                if not left:
                    raise TryAgainError(f"slots are being moved: {error}") from error
            except (RedisError, OSError) as error:
                if not isinstance(error, ResponseError) or isinstance(error, ClusterDownError | ReadOnlyError):
                    self._slots.doubt(address)
                raise
        raise AssertionError("unreachable")

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        return self._nodes.setdefault(address, self._make_node(address)) if node is None else node
