"""What a process knows of an alias's nodes, shared by all its threads and tasks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from typing import Any

from redis.exceptions import RedisError

from django_rlock import threads
from django_rlock.connections import Purpose, connect_within, server
from django_rlock.drivers.calls import next_nonce, pack
from django_rlock.drivers.quorum.proposals import Proposals
from django_rlock.drivers.quorum.restarts import Restarts
from django_rlock.drivers.quorum.votes import NodeDownError, QuorumCall
from django_rlock.drivers.retrying import is_down
from django_rlock.exceptions import reason_of
from django_rlock.links.link import Link
from django_rlock.links.resp import ErrorReply
from django_rlock.links.server import Server
from django_rlock.process import Owned
from django_rlock.redaction import redacted
from django_rlock.settings import get_settings, server_aliases

LOOK_AGAIN = 0.5
"""How often a connection to a node that is down is tried, in seconds."""


class NodeSet:
    """Which nodes have restarted, which are down, what their clocks say, and which still have to receive an undo.

    A thread of its own sends nodes what could not be sent in time, and checks whether they are up again.
    """

    def __init__(self, using: str) -> None:
        options = get_settings(using)
        self.using = using
        self.timeout = options.node_timeout
        self.connect_within = connect_within(using)
        self.names = tuple(redacted(node) for node in options.nodes or ())
        self.aliases = server_aliases(using)
        self.restarts = Restarts(self.names, options.longest_lease or 0.0, options.clock_drift)
        self.proposals = Proposals()
        self.down: dict[int, tuple[str, bool]] = {}
        self._lost_until = -math.inf
        self._leases = options.longest_lease or options.watchdog_timeout
        self.untold: dict[tuple[int, QuorumCall], float] = {}
        self.closing: list[Callable[[], object]] = []
        self._bell = threads.Bell()
        self._seat = threads.Bell()
        self._seat.ring()
        self._runs = self._closed = False

    def server(self, node: int, purpose: Purpose) -> Server:
        """The links to a node."""
        return server(self.aliases[node], None, purpose)

    def is_up(self, node: int) -> bool:
        """Whether the node was reachable at the last try."""
        return node not in self.down

    def require_up(self, node: int) -> None:
        """Raise NodeDownError for a node that was unreachable at the last try, so that no caller waits for it again."""
        known = self.down.get(node)
        if known is not None:
            raise NodeDownError(*known)

    @property
    def lost_links(self) -> bool:
        """See ``votes.Means``. A command that is delayed longer than a lease can take no more than one lease."""
        return time.monotonic() < self._lost_until

    def note_lost_link(self) -> None:
        """Record that a connection was given up on which a command may still be under way."""
        self._lost_until = time.monotonic() + self._leases

    def note_down(self, node: int, error: Exception) -> None:
        """Do not use a node until it has been reached again."""
        self.note_lost_link()
        if node not in self.down:
            self.down[node] = reason_of(error), is_down(error)
            self._see_to_it()

    def tell_later(self, undo: QuorumCall, nodes: Collection[int], until: float) -> None:
        """Send a call to nodes as soon as they are reachable, if that is before a monotonic time."""
        self.untold.update({(node, undo): until for node in nodes})
        self._see_to_it()

    def close(self) -> None:
        """Forget the nodes, which are no longer in the settings."""
        self._closed = True
        for close in self.closing:
            close()
        self._bell.ring()

    # --- later -------------------------------------------------------------------------------------------------------

    def _see_to_it(self) -> None:
        self._bell.ring()
        if not self._runs:
            with contextlib.suppress(RuntimeError):  # interpreter exit, or no threads left: leases expire
                threads.start(self._run, name="rlock-nodes")

    def _run(self) -> None:
        if not self._seat.quiet():
            return  # another thread has the seat
        self._runs = True
        while not self._closed:
            if self.down or self.untold:
                time.sleep(LOOK_AGAIN)
            else:
                self._bell.wait()
            for node in range(len(self.names)):
                try:
                    self._visit(node)
                except Exception as error:  # noqa: BLE001 - still down, perhaps for another reason
                    if node in self.down:
                        self.down[node] = reason_of(error), is_down(error)

    def _visit(self, node: int) -> None:
        """Check whether a node is up, and send it what it has missed."""
        now = time.monotonic()
        untold = [key for key in list(self.untold) if key[0] == node]
        for key in untold:
            if self.untold[key] <= now:
                self.untold.pop(key, None)
        if not untold and self.is_up(node):
            return
        reached = self.server(node, "keeping")
        link = reached.take_idle() or reached.open()
        self.down.pop(node, None)
        try:
            for key in untold:
                _obey(link, key[1], self.connect_within)
                self.untold.pop(key, None)
        except BaseException:
            link.close()
            raise
        reached.give_back(link)


def _obey(link: Link, call: QuorumCall, limit: float) -> None:
    for verb in ("EVALSHA", "EVAL"):
        reply: Any = link.ask(pack(call, next_nonce(), verb), limit)
        if not isinstance(reply, ErrorReply):
            return
    raise RedisError(str(reply))


def _close_all(known: dict[str, NodeSet]) -> None:
    for each in list(known.values()):
        each.close()


_node_sets: Owned[dict[str, NodeSet]] = Owned("connections", dict, stop=_close_all)


def node_set(using: str) -> NodeSet:
    """The nodes of an alias, made on first use."""
    known = _node_sets.value.get(using)
    return known or _node_sets.value.setdefault(using, NodeSet(using))
