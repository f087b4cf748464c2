"""The drivers of a Redis Cluster: each call goes to the node that serves its keys' slot.

A driver of the usual kind stands for each node; these choose among them, follow redirections, and ask for the map of
slots anew when a node does not answer. Trying again within the caller's deadline is ScriptDriver's business.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    ResponseError,
)

from django_rlock.cluster import Address, slot_of
from django_rlock.connections import slot_map
from django_rlock.drivers import aio, sync
from django_rlock.drivers.acks import take_confirmed
from django_rlock.drivers.aio import AsyncDriver
from django_rlock.drivers.base import ScriptCall, ScriptDriver
from django_rlock.drivers.sync import MakePool, SyncDriver
from django_rlock.exceptions import LockUnavailableError
from django_rlock.keys import tagged
from django_rlock.settings import get_settings

_REDIRECTIONS = 5
"""How often a call is sent on before it pauses: while slots move, two nodes may point at each other."""

Node = TypeVar("Node", bound=ScriptDriver)


class _ClusterDriver(ScriptDriver, Generic[Node]):
    """What both faces share: which node is asked."""

    def __init__(self, using: str) -> None:
        ScriptDriver.__init__(self, using)  # the faces' own make a pool for one server
        self._slots = slot_map(using)
        self._nodes: dict[Address, Node] = {}

    def place(self, key: str) -> object:
        return slot_of(key)

    async def run(self, call: ScriptCall, until: float | None = None) -> list[Any]:
        key = call.keys[0]
        if slot_of(tagged("", key)) != slot_of(key):
            # Some calls have one key only and would succeed, as the acquire of a lock that no release could free.
            raise LockUnavailableError(
                call.name,
                reason="the braces in its name would spread its keys over several slots of the cluster",
                advice="Nothing was locked; leave them out, or close them around a hash tag.",
            )
        call.script = call.script.sharded
        return await super().run(call, until)

    def take(
        self, call: ScriptCall, until: float | None, undo: Callable[[], ScriptCall]
    ) -> Coroutine[Any, Any, list[Any]]:
        if get_settings(self.using).replica_acks:
            return take_confirmed(self, call, until, undo)
        return self.run(call, until)

    async def exchange(self, call: ScriptCall, packed: bytes, nonce: bytes, timeout: float) -> list[Any]:
        if self._slots.stale:
            await self._refresh()
        slot = slot_of(call.keys[0])
        address = self._slots.owner(slot)
        asking = False
        for left in reversed(range(_REDIRECTIONS)):
            try:
                node = self._node(address)
                exchange = node.exchange_asking if asking else node.exchange
                return await exchange(call, packed, nonce, timeout)
            except AskError as error:  # or MovedError
                call.sends -= 1  # surely not obeyed
                address = error.host or address[0], error.port
                asking = not isinstance(error, MovedError)
                if not asking:
                    self._slots.moved(slot, address)
                if not left:
                    raise
            except (RedisError, OSError) as error:
                if not isinstance(error, ResponseError) or isinstance(error, ClusterDownError):
                    self._slots.doubt(address)
                raise
        raise AssertionError("unreachable")

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        return self._nodes.setdefault(address, self._make_node(address)) if node is None else node

    def _make_node(self, address: Address) -> Node:
        raise NotImplementedError

    async def _refresh(self) -> None:
        raise NotImplementedError


class ClusterSyncDriver(_ClusterDriver[SyncDriver], SyncDriver):
    """Blocks."""

    def __init__(self, using: str, pool: MakePool) -> None:
        _ClusterDriver.__init__(self, using)
        self._make_pool = pool

    def batches(self, calls: list[ScriptCall]) -> Iterable[tuple[SyncDriver, list[ScriptCall]]]:
        if self._slots.stale:
            self._slots.refresh()
        by_node: dict[Address, list[ScriptCall]] = defaultdict(list)
        for call in calls:
            call.script = call.script.sharded
            by_node[self._slots.owner(slot_of(call.keys[0]))].append(call)
        for address, group in by_node.items():
            yield from self._node(address).batches(group)

    def note_silence(self, calls: list[ScriptCall]) -> None:
        self._slots.doubt(self._slots.owner(slot_of(calls[0].keys[0])))

    def _make_node(self, address: Address) -> SyncDriver:
        return sync.server_driver(self.using, self._make_pool, address)

    async def _refresh(self) -> None:
        self._slots.refresh()


class ClusterAsyncDriver(_ClusterDriver[AsyncDriver], AsyncDriver):
    """Awaits."""

    def __init__(self, using: str) -> None:
        _ClusterDriver.__init__(self, using)

    def _make_node(self, address: Address) -> AsyncDriver:
        return aio.server_driver(self.using, address)

    async def _refresh(self) -> None:
        await asyncio.to_thread(self._slots.refresh, self._slots.rounds)
