"""A process's knowledge about an alias's nodes, shared by all its threads and tasks."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import select
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock._core import threads
from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import is_demotion, is_down
from django_rlock._core.foreign import server_error
from django_rlock._core.process import owned_table
from django_rlock._core.text import reason_of, redacted
from django_rlock._transport.calls import REMEMBERED, next_nonce, pack, pack_command
from django_rlock._transport.connection import Connection, ErrorReply
from django_rlock._transport.pool import Server
from django_rlock._transport.quorum.votes import NodeDownError, Proposals, QuorumCall, Restarts
from django_rlock._transport.servers import Purpose, connect_within, server
from django_rlock.settings import get_settings, server_aliases

logger = logging.getLogger("django_rlock.redlock")

ASK_WHO_IT_IS = pack_command("INFO", "server")
"""The command whose reply ``NodeSet.meet`` takes."""

POLLIN = getattr(select, "POLLIN", 1)


class _SelectPoll:
    """The part of ``select.poll`` that sessions use, in a process where eventlet has removed that."""

    def __init__(self) -> None:
        self._filenos: set[int] = set()

    def register(self, fileno: int, _events: int) -> None:
        self._filenos.add(fileno)

    def unregister(self, fileno: int) -> None:
        self._filenos.remove(fileno)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        readable, _, _ = select.select(self._filenos, (), (), timeout_ms / 1000)
        return [(fileno, POLLIN) for fileno in readable]


def new_poll() -> Any:
    return getattr(select, "poll", _SelectPoll)()


NODES_LOOK_EVERY = 0.5
"""How often a connection to a node that is down is tried, in seconds."""


def run_id_in(info: Any) -> str:
    """A server's run id, from its reply to ``ASK_WHO_IT_IS``. Raises redis-py's errors."""
    if isinstance(info, ErrorReply):
        raise server_error(str(info))
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    run_id = re.search(r"run_id:(\w+)", text)
    if run_id is None:
        raise RedisConnectionError("The server does not report its run id.")
    return run_id[1]


class NodeSet:
    """Which nodes have restarted, which are down, what their clocks say, and which still have to receive an undo.

    Each node that is down, or has missed something, is visited by a thread of its own until it is up and has received
    that. Connecting may take longer there than callers wait.
    """

    def __init__(self, using: str) -> None:
        options = get_settings(using)
        self.using = using
        self.timeout = options.node_timeout
        self.connect_within = connect_within(using)
        self.names = tuple(redacted(node) for node in options.nodes or ())
        self.numbers = range(len(self.names))
        self.aliases = server_aliases(using)
        self.restarts = Restarts(self.names, options.longest_lease or 0.0, options.clock_drift)
        self.proposals = Proposals()
        self.note_lists = OtherLists(using, len(self.names)).note
        self.down: dict[int, tuple[str, bool]] = {}
        self._lost_until = -math.inf
        self._late = max(options.longest_lease or options.watchdog_timeout, REMEMBERED)
        self.untold: dict[tuple[int, QuorumCall], float] = {}
        self.closing: list[Callable[[int], object]] = []
        self._instances = [threads.SingleInstance() for _ in self.numbers]
        self.is_closed = False

    def server(self, node: int, purpose: Purpose) -> Server:
        """The connections to a node."""
        return server(self.aliases[node], None, purpose)

    def is_up(self, node: int) -> bool:
        """Whether the node was reachable at the last try."""
        return node not in self.down

    def may_be_up(self, node: int) -> bool:
        """Whether it is worth a try: it was reachable, or a connection to it has opened since callers gave up on it."""
        return self.is_up(node) or bool(self.server(node, "calls").idle)

    def require_up(self, node: int) -> None:
        """Raise NodeDownError for a node that is not worth a try, so that no caller waits for it again."""
        known = self.down.get(node)
        if known is not None and not self.may_be_up(node):
            self._see_to(node)  # whoever marked it down was interrupted, or had no thread left
            raise NodeDownError(*known)

    @property
    def lost_connections(self) -> bool:
        """See ``votes.QuorumTransport``."""
        return monotonic() < self._lost_until

    def note_lost_connection(self) -> None:
        """Record that a connection was given up on which a command may still be under way."""
        self._lost_until = monotonic() + self._late

    def note_down(self, node: int, error: Exception) -> None:
        """Do not use a node until it has been reached again."""
        self.note_lost_connection()
        if node not in self.down:
            self.server(node, "calls").close_idle()
            self.down[node] = reason_of(error), is_down(error)
            self._see_to(node)

    def meet(self, node: int, info: Any) -> None:
        """Record which server a new connection leads to, from its reply to ``ASK_WHO_IT_IS``.

        Raises redis-py's errors, and ImproperlyConfigured for a server that is another node as well.
        """
        self.restarts.meet(node, run_id_in(info))
        self.note_up(node)

    def unreachable(self, node: int, error: Exception) -> NodeDownError:
        """Record that no connection could be opened; returns what callers get."""
        if self.server(node, "calls").may_grow:
            self.note_down(node, error)
        return NodeDownError(reason_of(error), is_down(error))

    def note_up(self, node: int) -> None:
        """Use a node again, which has just replied."""
        self.down.pop(node, None)

    def note_error(self, node: int, error: Exception) -> None:
        """Close the connections to a node, after an error that ends them."""
        for close in self.closing:
            close(node)
        if is_demotion(error):
            self.server(node, "calls").close_all()

    def send_later(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Send a call to nodes as soon as they are reachable, while what it undoes may come late or hold the lock."""
        until = monotonic() + max(undo.lease, REMEMBERED)
        self.untold.update({(node, undo): until for node in nodes})
        for node in nodes:
            self._see_to(node)

    def close(self) -> None:
        """Forget the nodes, which are no longer in the settings."""
        self.is_closed = True
        for close in self.closing:
            for node in self.numbers:
                close(node)

    # --- visits ------------------------------------------------------------------------------------------------------

    def _see_to(self, node: int) -> None:
        if not self._instances[node].is_entered:
            with contextlib.suppress(RuntimeError):  # interpreter exit, or no threads left: leases expire
                threads.start(self._visit_until_done, node)

    def _visit_until_done(self, node: int) -> None:
        instance = self._instances[node]
        while self._needs_visits(node) and instance.enter():  # otherwise another thread does
            try:
                self._visit_while_needed(node)
            finally:
                instance.exit()

    def _visit_while_needed(self, node: int) -> None:
        while self._needs_visits(node):
            time.sleep(NODES_LOOK_EVERY)
            if self.is_closed:  # by now the node's alias may be another server's
                return
            try:
                self._visit(node)
            except Exception as error:  # noqa: BLE001 - still down, perhaps for another reason
                if node in self.down:
                    self.down[node] = reason_of(error), is_down(error)

    def _needs_visits(self, node: int) -> bool:
        return not self.is_closed and (not self.is_up(node) or bool(self._untold(node)))

    def _untold(self, node: int) -> list[tuple[int, QuorumCall]]:
        """The calls that a node has not received yet."""
        now = monotonic()
        for key, until in threads.snapshot(self.untold.items()):
            if until <= now:
                self.untold.pop(key, None)
        return [key for key in threads.snapshot(self.untold) if key[0] == node]

    def _visit(self, node: int) -> None:
        """Check whether a node is up, and send it the calls that it has missed."""
        reached = self.server(node, "background")
        connection = reached.take_idle() or reached.open()
        try:
            # A connection that was idle proves nothing.
            (info,) = connection.ask_all(ASK_WHO_IT_IS, 1, self.connect_within)
            run_id_in(info)
            self.note_up(node)
            for key in self._untold(node):
                _obey(connection, key[1], self.connect_within)
                self.untold.pop(key, None)
        except BaseException:
            connection.close()
            raise
        reached.give_back(connection)


def _obey(connection: Connection, call: QuorumCall, limit: float) -> None:
    for with_source in (False, True):
        (reply,) = connection.ask_all(pack(call, next_nonce(), with_source), 1, limit)
        if not isinstance(reply, ErrorReply):
            return
    raise RedisError(str(reply))


# --- other lists of nodes ---------------------------------------------------------------------------------------------

SETTLED = 5.0
"""How long after a list was first seen the nodes' replies say which of them belong to it, in seconds. A process sends
its first call to all nodes at once."""
COMPARED_FOR = 1.0
"""For how long after a reply with a list's name a reply without it says something about the list, in seconds."""
LISTED_FOR = 86_400.0
"""For how long after a reply with a list's name it is remembered, in seconds: this process may call rarely."""

APART = (
    "RLOCK[%r] lists %d NODES, but other processes use a list of %d, and only %d nodes are known to be in both. A "
    "majority of each need not share a node, so two owners may hold the same lock. Stop the processes with one of the "
    "lists; then add or remove one node at a time (see 'Move the locks' in the documentation)."
)
_NAME = re.compile(r"(?<!\S)[0-9a-f]+:(\d{1,3}):[0-9a-f]+(?!\S)")


def must_meet(own: int, other: int, common: int) -> bool:
    """Whether any majorities of two lists share a node: together they are more than there are different nodes."""
    return own // 2 + other // 2 + 2 > own + other - common


@dataclass(slots=True)
class _Other:
    """A list that was ``seen`` first, and ``used`` last, at monotonic times; which of our nodes are its members."""

    size: int
    seen: float
    used: float
    members: dict[int, bool] = field(default_factory=dict)
    is_reported: bool = False


class OtherLists:
    """What the nodes of an alias say about the lists of NODES that were used on them within the longest quarantine.

    A list's name is ``<prefix>:<number of nodes>:<digest>``; lists with another prefix have other locks. Servers, and
    not addresses, are compared: the other list lacks those of our nodes that don't know it.
    """

    def __init__(self, using: str, nodes: int) -> None:
        self._using = using
        self._size = nodes
        self._others: dict[str, _Other] = {}

    def note(self, node: int, lists: bytes, now: float) -> None:
        """Take what a node replied: the names of the other lists, separated by spaces."""
        if not lists and not self._others:
            return
        named = {found[0]: int(found[1]) for found in _NAME.finditer(lists.decode(errors="replace"))}
        for name, size in named.items():
            other = self._others.setdefault(name, _Other(size, now, now))
            other.used = now
            other.members[node] = True
        for name, other in threads.snapshot(self._others.items()):
            if now > other.used + LISTED_FOR:
                self._others.pop(name, None)
            elif now >= other.seen + SETTLED and now <= other.used + COMPARED_FOR:
                other.members.setdefault(node, False)
                common = self._size - threads.snapshot(other.members.values()).count(False)
                if not other.is_reported and not must_meet(self._size, other.size, common):
                    other.is_reported = True
                    log(logger, logging.ERROR, APART, self._using, self._size, other.size, common)


# --- the nodes of an alias --------------------------------------------------------------------------------------------

_node_sets = owned_table("connections", NodeSet, NodeSet.close)


def node_set(using: str) -> NodeSet:
    """The nodes of an alias, made on first use."""
    return _node_sets.value[using]
