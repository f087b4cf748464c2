"""The drivers and the listener of each alias, which the process keeps; and plain commands to its servers."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from os import getpid
from typing import Any, Protocol

from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, RedisError

from django_rlock._core import process, threads
from django_rlock._core.foreign import running_loop
from django_rlock._core.process import owned_table, remembered
from django_rlock._core.redis_py import slot_of
from django_rlock._transport import one_server
from django_rlock._transport.async_pool import TASKS
from django_rlock._transport.calls import UNLIMITED, Argument, Driver, pack_command, run_sync
from django_rlock._transport.cluster import Address, Cluster, SlotMap
from django_rlock._transport.connection import Connection
from django_rlock._transport.identity import must_not_block
from django_rlock._transport.listener import BoundListener, Listener, MakeWaiter, TaskWaiter, ThreadWaiter
from django_rlock._transport.pool import BACKGROUND, THREADS
from django_rlock._transport.servers import Purpose, background_limit, is_cluster, server, slot_map, when_closed
from django_rlock._transport.subscriber import ClusterListener, Subscriber
from django_rlock.settings import get_settings, server_aliases

# --- plain commands ---------------------------------------------------------------------------------------------------

# Plain commands of the package's own threads, each sent to the server, or the cluster node, that has its key.

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

    def __init__(self, node: one_server.PlainNode) -> None:
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

    def __init__(self, slots: SlotMap, make_node: Callable[[Address], one_server.PlainNode]) -> None:
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
            if address not in self._nodes:
                self._nodes[address] = ServerCommands(self._make_node(address))
            replied = self._nodes[address].try_all([commands[number] for number in numbers])
            for number, reply in zip(numbers, replied, strict=True):
                replies[number] = reply
                if isinstance(reply, MovedError):
                    self._slots.moved(reply.slot_id, self._slots.redirected(reply.host, reply.port, address))
                elif isinstance(reply, Exception):
                    self._slots.doubt(address)
        return [replies[number] for number in range(len(commands))]


# --- drivers and listeners --------------------------------------------------------------------------------------------

# Joins bindings and topologies: an alias's drivers and listener, which the process keeps.


@remembered("drivers")
def sync_driver(using: str) -> Driver:
    """The driver for callers in threads."""
    # Making a driver may import modules and take redis-py's mutexes, which an interrupted caller would leave locked.
    return threads.run_in_thread(_make, using, THREADS, "calls", sync_driver, ThreadWaiter)


@remembered("drivers")
def async_driver(using: str) -> Driver:
    """The driver for callers in asyncio tasks."""
    return threads.run_in_thread(_make, using, TASKS, "calls", async_driver, TaskWaiter)


_modules = sys.modules


class TrioBlockedError(SynchronousOnlyOperation, RuntimeError):
    """A blocking method was called in a task of trio."""


class OnAlias(Protocol):
    """An object whose state is on an alias's server, such as a lock."""

    using: str


def blocking_driver(of: OnAlias) -> Driver:
    """The blocking driver. Raises ImproperlyConfigured for a wrong alias; SynchronousOnlyOperation in an event loop,
    unless DJANGO_ALLOW_ASYNC_UNSAFE is set."""
    if getpid() != process.pid:
        process.notice_fork()
    driver = sync_driver(of.using)
    if (running_loop() is not None or "trio" in _modules) and must_not_block():
        if running_loop() is None:
            # The owner would be the thread, so one task could enter the block of another.
            raise TrioBlockedError(
                "A blocking method was called in a task of trio, whose loop it would block. Call it in a thread by "
                "trio.to_thread.run_sync(), the whole 'with' statement in one function."
            )
        raise SynchronousOnlyOperation(
            "A blocking method was called inside an event loop, which it would block. "
            "Use the async methods (their names begin with a, as aacquire; async with), or move the whole 'with' "
            "statement into a function that you call by sync_to_async()."
        )
    return driver


def awaited_driver(of: OnAlias) -> Driver:
    """The async driver. Raises ImproperlyConfigured for a wrong alias, RuntimeError outside asyncio."""
    if getpid() != process.pid:
        process.notice_fork()
    if running_loop() is None:
        raise RuntimeError(
            "The async methods need a running asyncio event loop, and there is none here. Other loops, such as trio's, "
            "are not supported: call the blocking methods in a thread, the whole block in one function."
        )
    return async_driver(of.using)


@remembered("drivers")
def background_driver(using: str) -> Driver:
    """The driver of a background thread, which uses its own connections; but those of callers to a RedLock's
    nodes."""
    if get_settings(using).nodes:
        return sync_driver(using)
    return _make(using, BACKGROUND, "background", background_driver)


def _make(
    using: str,
    binding: one_server.Binding,
    purpose: Purpose,
    at: Callable[[str], Driver],
    make_waiter: MakeWaiter | None = None,
) -> Driver:
    options = get_settings(using)
    if options.nodes:
        # Most processes have no such alias, and need none of these modules.
        from django_rlock._transport.quorum import Quorum
        from django_rlock._transport.quorum.tasks import TaskTransport
        from django_rlock._transport.quorum.threads import ThreadTransport

        return Quorum(using, (TaskTransport if binding is TASKS else ThreadTransport)(using), binding, at)
    make_node = partial(_node, binding, using, purpose)
    listening = None if make_waiter is None else BoundListener(listener(using), make_waiter)
    if is_cluster(using):
        cluster = ConfirmedCluster if options.replica_acks else Cluster
        return cluster(options, binding, at, make_node, slot_map(using), listening)
    server = ConfirmedServer if options.replica_acks else one_server.OneServer
    return server(options, binding, at, make_node(None), _division(using), listening)


class ConfirmedServer(one_server.Confirming, one_server.OneServer):
    """One server with REPLICA_ACKS."""


class ConfirmedCluster(one_server.Confirming, Cluster):
    """A Redis Cluster with REPLICA_ACKS."""


@remembered("drivers")
def _division(_using: str) -> one_server.Division:
    """The knowledge about the alias's server that all bindings share."""
    return one_server.Division()


def _node(binding: one_server.Binding, using: str, purpose: Purpose, address: Address | None) -> one_server.Node:
    node, options = _plain_node(binding, using, purpose, address), get_settings(using)
    return one_server.ConfirmingNode(node, options) if options.replica_acks else node


def _plain_node(
    binding: one_server.Binding, using: str, purpose: Purpose, address: Address | None
) -> one_server.PlainNode:
    make_node = one_server.PlainNode if purpose == "calls" or address is None else one_server.CircuitBreaker
    return make_node(binding, server(using, address, purpose))


def commands_to(using: str, purpose: Purpose) -> Commands:
    """Plain commands of a background thread to an alias, whether it has one server or a cluster."""
    return _commands.value[using, purpose]


def _make_commands(whose: tuple[str, Purpose]) -> Commands:
    using, purpose = whose
    make_node = partial(_plain_node, BACKGROUND, using, purpose)
    return ClusterCommands(slot_map(using), make_node) if is_cluster(using) else ServerCommands(make_node(None))


_commands = owned_table("drivers", _make_commands, lambda _commands: None)

# --- listening --------------------------------------------------------------------------------------------------------


def listener(using: str) -> Listener:
    """This process's listener for an alias, made on first use."""
    return _listeners.value[using]


def _reconnect_listener(using: str, node: Address | None) -> None:
    """Let the listener of an alias connect anew, because a server has become a replica."""
    known = _listeners.value.get(using)
    if known is not None and node in known.subscribers:
        known.subscribers[node].reconnect()


when_closed(_reconnect_listener)


def listeners(using: str) -> list[Listener]:
    """The listener of an alias, or those of all its nodes."""
    return [listener(each) for each in server_aliases(using)]


_when_unclaimed: list[Callable[[str, str], object]] = []


def when_unclaimed(decline: Callable[[str, str], object]) -> None:
    """Call a function with an alias and a waiter's token, whenever a message arrives for a waiter of this process that
    does not exist. The listening thread calls it."""
    _when_unclaimed.append(decline)


def _decline(using: str, channel: str, token: str) -> None:
    # Aliases of one server hear each other's messages.
    if not any(known.waits_for(channel, token) for known in threads.snapshot(_listeners.value.values())):
        for decline in _when_unclaimed:
            decline(using, token)


def _make_listener(using: str) -> Listener:
    def connect(address: Address | None = None) -> Connection:
        return server(using, address, "listening").open()

    limit, decline = background_limit(using), partial(_decline, using)
    if is_cluster(using):
        return ClusterListener(slot_map(using), connect, limit, decline)
    return Listener(lambda known, _: Subscriber(known, connect, limit), decline)


_listeners = owned_table("listening", _make_listener, Listener.stop)
