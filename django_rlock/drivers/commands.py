"""Plain commands of the package's own threads, each sent to the server, or the cluster node, that has its key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, RedisError

from django_rlock.cluster import Address, SlotMap, slot_of
from django_rlock.drivers.base import UNLIMITED, run_sync
from django_rlock.drivers.calls import Argument, pack_command
from django_rlock.drivers.server import PlainNode

Command = tuple[str, tuple[Argument, ...]]
"""The key that decides where the command goes, and the command's words."""


class Commands(ABC):
    """Sends commands to the servers of an alias. They may be sent twice, so they must be safe to repeat."""

    @abstractmethod
    def try_all(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies, in order; for an error reply, and for one that did not come, what redis-py raises."""

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """The same, but raise the first of the errors."""
        replies = self.try_all(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


class ServerCommands(Commands):
    """For an alias with one server, or for one node of its cluster."""

    def __init__(self, node: PlainNode) -> None:
        self._node = node

    def try_all(self, commands: Sequence[Command]) -> list[Any]:
        packed = b"".join([pack_command(*words) for _, words in commands])
        try:
            try:
                return self._converse(packed, len(commands))
            except RedisConnectionError:
                # An idle connection may have been closed.
                return self._converse(packed, len(commands))
        except (RedisError, OSError) as error:
            return [error] * len(commands)

    def _converse(self, packed: bytes, number: int) -> list[Any]:
        return run_sync(self._node.converse(packed, [None] * number, UNLIMITED))


class ClusterCommands(Commands):
    """For a cluster. A command refused because its slot has moved fails, and the map of slots is updated."""

    def __init__(self, slots: SlotMap, make_node: Callable[[Address], PlainNode]) -> None:
        self._slots = slots
        self._make_node = make_node
        self._nodes: dict[Address, ServerCommands] = {}

    def try_all(self, commands: Sequence[Command]) -> list[Any]:
        if self._slots.stale:
            self._slots.refresh()
        by_node: dict[Address, list[int]] = defaultdict(list)
        for number, (key, _) in enumerate(commands):
            by_node[self._slots.owner(slot_of(key))].append(number)
        replies: dict[int, Any] = {}
        for address, numbers in by_node.items():
            replies |= zip(numbers, self._try_at(address, [commands[number] for number in numbers]), strict=True)
        return [replies[number] for number in range(len(commands))]

    def _try_at(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        if address not in self._nodes:
            self._nodes[address] = ServerCommands(self._make_node(address))
        replies = self._nodes[address].try_all(commands)
        for reply in replies:
            if isinstance(reply, MovedError):
                self._slots.moved(reply.slot_id, self._slots.redirected(reply.host, reply.port, address))
            elif isinstance(reply, Exception):
                self._slots.doubt(address)
        return replies
