"""Plain commands of the package's own threads, each sent to the server, or the cluster node, that has its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError

from django_rlock.cluster import Address, slot_of
from django_rlock.connections import is_cluster, server, slot_map, source
from django_rlock.drivers.base import run_sync
from django_rlock.drivers.calls import Argument, pack_command
from django_rlock.drivers.threads import BACKGROUND

Command = tuple[str, tuple[Argument, ...]]
"""The key that decides where the command goes, and the command's words."""


class Commands(Protocol):
    """Sends commands to the servers of an alias."""

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies, in order. Raises what redis-py raises, and a server's error reply as an exception."""


class ServerCommands:
    """For an alias with one server, or for one node of its cluster."""

    def __init__(self, using: str, address: Address | None = None) -> None:
        self._server = server(using, address, "reports")
        self._limit = source(using, address).reply_limit

    def run(self, commands: Sequence[Command]) -> list[Any]:
        packed = b"".join([pack_command(*words) for _, words in commands])
        try:
            replies = self._converse(packed, len(commands))
        except RedisConnectionError:
            # An idle connection may have been closed. These commands are safe to repeat.
            replies = self._converse(packed, len(commands))
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _converse(self, packed: bytes, number: int) -> list[Any]:
        return run_sync(BACKGROUND.converse(self._server, packed, [None] * number, self._limit))


class ClusterCommands:
    """For a cluster. A command refused because its slot has moved raises, and the map of slots is updated."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._slots = slot_map(using)
        self._nodes: dict[Address, ServerCommands] = {}

    def run(self, commands: Sequence[Command]) -> list[Any]:
        if self._slots.stale:
            self._slots.refresh()
        by_node: dict[Address, list[int]] = defaultdict(list)
        for number, (key, _) in enumerate(commands):
            by_node[self._slots.owner(slot_of(key))].append(number)
        replies: dict[int, Any] = {}
        for address, numbers in by_node.items():
            replies |= zip(numbers, self._run_at(address, [commands[number] for number in numbers]), strict=True)
        return [replies[number] for number in range(len(commands))]

    def _run_at(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        try:
            if address not in self._nodes:
                self._nodes[address] = ServerCommands(self._using, address)
            return self._nodes[address].run(commands)
        except MovedError as error:
            self._slots.moved(error.slot_id, self._slots.redirected(error.host, error.port, address))
            raise
        except Exception:
            self._slots.doubt(address)
            raise


def commands_to(using: str) -> Commands:
    """Plain commands to an alias, whether it has one server or a cluster."""
    return ClusterCommands(using) if is_cluster(using) else ServerCommands(using)
