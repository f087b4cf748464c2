"""Moving a slot from one node of a cluster to another, in the steps that an operator's tool takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from example_project.embedded import EmbeddedServer
from tests.topologies.servers import Topology, command


class Move:
    """One slot on its way from ``source`` to ``target``; others may use it meanwhile."""

    def __init__(self, topology: Topology, slot: int) -> None:
        self.slot = slot
        self.nodes = topology.servers
        self.source = owner_of(topology, slot)
        self.target = next(node for node in self.nodes if node is not self.source)

    def begin(self) -> None:
        """From now on the source sends calls for keys that it has not to the target."""
        command(self.target, "CLUSTER SETSLOT", self.slot, "IMPORTING", _id(self.source))
        self.leave()

    def leave(self) -> None:
        """The half of it that the source learns."""
        command(self.source, "CLUSTER SETSLOT", self.slot, "MIGRATING", _id(self.target))

    def keys(self) -> list[str]:
        return [str(key) for key in command(self.source, "CLUSTER GETKEYSINSLOT", self.slot, 100)]

    def carry(self, *keys: str) -> None:
        """Move keys."""
        command(self.source, "MIGRATE", "127.0.0.1", self.target.port, "", 0, 1000, "KEYS", *keys)

    def finish(self) -> None:
        """Move what is left, and make the target the owner."""
        while keys := self.keys():
            self.carry(*keys)
        for node in sorted(self.nodes, key=lambda node: (node is not self.target, node is not self.source)):
            command(node, "CLUSTER SETSLOT", self.slot, "NODE", _id(self.target))

    def take_over(self) -> None:
        """Make the target the owner after the source has died."""
        for node in (self.target, *(node for node in self.nodes if node not in {self.source, self.target})):
            command(node, "CLUSTER SETSLOT", self.slot, "NODE", _id(self.target))


@contextmanager
def moving(topology: Topology, key: str) -> Iterator[Move]:
    """A key's slot is being moved in the block, and has moved after it."""
    move = Move(topology, topology.redis.keyslot(key))
    move.begin()
    try:
        yield move
    finally:
        move.finish()


def owner_of(topology: Topology, slot: int) -> EmbeddedServer:
    """The node that serves a slot."""
    for start, end, (_, _, name, *_), *_ in _slots(topology.servers[0]):
        if start <= slot <= end:
            return next(node for node in topology.servers if _id(node) == name)
    raise AssertionError(f"Nobody serves slot {slot}.")


def errors(node: EmbeddedServer, name: str) -> int:
    """How many errors of a name a node has returned."""
    with node.client() as client:
        return int(client.info("errorstats").get(f"errorstat_{name}", {}).get("count", 0))


def _slots(node: EmbeddedServer) -> Any:
    with node.client() as client:
        return client.execute_command("CLUSTER SLOTS")


def _id(node: EmbeddedServer) -> str:
    return str(command(node, "CLUSTER MYID"))
