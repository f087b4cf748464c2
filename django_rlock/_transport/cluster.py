"""A Redis Cluster: its topology, its client for django-redis, its map of slots, and the addresses of its nodes."""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from django.core.exceptions import ImproperlyConfigured
from redis import exceptions
from redis.cluster import ClusterNode

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.process import Owned
from django_rlock._core.redis_py import MappedCluster, slot_of
from django_rlock._core.text import shown
from django_rlock._redis.keys import tagged
from django_rlock._transport.calls import Driver, Listening, RetryingTopology, ScriptCall, Undo
from django_rlock.exceptions import LockUnavailableError

if TYPE_CHECKING:
    from django_rlock._transport.one_server import Binding, Node
    from django_rlock.settings import AliasSettings

# --- addresses --------------------------------------------------------------------------------------------------------

# The addresses of a cluster's nodes, from the settings and from what the nodes announce.

Address = tuple[str, int]

_ADDRESS = r"(\[(?P<ipv6>[^\s/?@\[\]]+)\]|(?P<host>[^\s:/?@\[\]]+)):(?P<port>\d{1,5})"
_EXAMPLES = {
    "NODE_ADDRESSES": """a dict like {"10.0.0.1:6379": "203.0.113.5:7001"}""",
    "STARTUP_NODES": """a list like ["10.0.0.2:6379"]""",
}


class NodeAddresses:
    """NODE_ADDRESSES: how to reach nodes that announce addresses of another network, like Redisson's ``natMapper``."""

    def __init__(self, option: object) -> None:
        if not isinstance(option, dict):
            raise _refused("NODE_ADDRESSES", option)
        pairs = {_address("NODE_ADDRESSES", named): _address("NODE_ADDRESSES", option[named]) for named in option}
        self._reached = {(_canonical(host), port): address for (host, port), address in pairs.items()}

    def reached(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        """The address that reaches, from here, a node that ``asked`` announces as this host and port."""
        name = host.decode() if isinstance(host, bytes) else host
        if not name or name == "?":  # it means the host under which it was reached itself
            name = asked[0]
        return self._reached.get((_canonical(name), port), (name, port))


def _canonical(host: str) -> str:
    """A host in a canonical form for comparison; IPv6 addresses have many forms."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def startup_nodes(option: object) -> list[Address]:
    if not isinstance(option, list | tuple):
        raise _refused("STARTUP_NODES", option)
    return [_address("STARTUP_NODES", node) for node in option]


def _address(setting: str, value: object) -> Address:
    match value:
        case str(host), int(port):
            text = written((host, port))
        case _:
            text = str(value)
    found = re.fullmatch(_ADDRESS, text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise _refused(setting, value)
    return found["ipv6"] or found["host"], int(found["port"])


def _refused(setting: str, value: object) -> ImproperlyConfigured:
    cleaned = re.sub(".*@", "***@", shown(value))  # a URL may lack its scheme here
    return ImproperlyConfigured(
        f"{setting}, in the OPTIONS of a Redis Cluster in CACHES, must be {_EXAMPLES[setting]}, "
        f'whose addresses may also be written ("10.0.0.1", 6379) or "[2001:db8::1]:6379"; not {cleaned}.'
    )


def written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- slots ------------------------------------------------------------------------------------------------------------

# The map of a cluster's slots.

Ask = Callable[[Address], Sequence[Any]]
"""Sends ``CLUSTER SLOTS`` to a node and returns its reply, within ASK_WITHIN seconds. Raises RedisError or OSError
when there is none."""

SLOTS = 16384
ASK_WITHIN = 1.0
"""How long one node may take to return the map of slots, in seconds."""
ASK_NEXT_AFTER = 0.1
"""How long to wait for a node's reply before the next node is asked as well, in seconds."""


class SlotMap:
    """Which node serves which slot. Each alias of a process has one map, filled from the nodes' replies and
    redirections.

    The class uses no mutex, because a signal handler may interrupt its holder: shared state is replaced by single
    assignments, and every wait has a limit. A separate thread asks the nodes.
    """

    def __init__(self, client: ClusterClient, ask: Ask) -> None:
        self._client = client
        self._ask = ask
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes = client.start
        self._round = _Round(0)
        self.rounds = 0
        self.stale = True

    def owner(self, slot: int) -> Address:
        """The node that serves a slot, or any node if that is not known yet."""
        return self._owners[slot] or self._nodes[0]

    def redirected(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        """The address for a host and port in a redirection or in CLUSTER SLOTS, as sent by the node ``asked``."""
        return self._client.reached(host, port, asked)

    def moved(self, slot: int, address: Address) -> None:
        """Record the target of a redirection."""
        self._owners[slot] = address

    def doubt(self, address: Address) -> None:
        """Mark the map as stale because a node did not reply; that node is asked last."""
        self._nodes = [*(node for node in self._nodes if node != address), address]
        self.stale = True

    def refresh(self, rounds: int | None = None, within: float = 2 * ASK_WITHIN) -> None:
        """Fetch the map, or wait while it is being fetched. It stays unchanged if no node replies.

        ``rounds`` is the value of ``self.rounds`` when the caller decided to refresh (None: now). ``within`` is how
        many seconds the caller has; the nodes are asked for longer, and a later reply serves the next call.
        """
        before = self.rounds if rounds is None else rounds
        # Callers that waited for a round without a reply would learn nothing by asking again, one after the other.
        if not self.stale or self.rounds != before:
            return
        asking = self._round
        if not asking.goes_on():  # two callers at once may both ask, which does no harm
            asking = self._round = _Round(2 * ASK_WITHIN)
            try:
                threads.start(self._ask_in_a_round, asking)
            except RuntimeError:  # no threads left, or the interpreter exits
                self._ask_in_a_round(asking)
        asking.wait(within)

    def _ask_in_a_round(self, asking: _Round) -> None:
        try:
            self._ask_all(asking)
        finally:
            self.rounds += 1
            asking.end()

    def _ask_all(self, asking: _Round) -> None:
        """Ask the nodes until one of them has returned the map.

        Silent nodes must not use up the time of the round: all known nodes may have other addresses now.
        """
        nodes = deque(self._nodes)
        while self.stale and asking.goes_on() and (nodes or asking.asked):
            if nodes:
                node = nodes.popleft()
                asking.asked.add(node)
                threads.Call(partial(self._ask_node, node), partial(asking.note_reply, node)).start()
            asking.step.wait(ASK_NEXT_AFTER if nodes else asking.left)

    def _ask_node(self, node: Address) -> None:
        ranges = [
            (start, end, self.redirected(host, port, node))
            for start, end, (host, port, *_), *_ in self._ask(node)
            if 0 <= start <= end < SLOTS
        ]
        if ranges and self.stale:  # the first reply counts
            self._learn(ranges)

    def _learn(self, ranges: Sequence[tuple[int, int, Address]]) -> None:
        # A new list, since other threads read the former one meanwhile.
        owners: list[Address | None] = [None] * SLOTS
        for start, end, address in ranges:
            owners[start : end + 1] = [address] * (end + 1 - start)
        self._owners = owners
        # The nodes that the settings name come first: they lead to the cluster even if all others have moved, and
        # another cluster may have the others' addresses by now.
        self._nodes = list(dict.fromkeys([*self._client.start, *(address for _, _, address in ranges)]))
        self.stale = False


class _Round:
    """One round of asking the nodes, and the threads that wait for its end. It lasts for some seconds at most."""

    def __init__(self, seconds: float) -> None:
        self._over_at = monotonic() + seconds
        self._ended = False
        self._waiting: deque[threads.AutoResetEvent] = deque()
        self.asked: set[Address] = set()
        """The nodes that have neither replied nor failed."""
        self.step = threads.AutoResetEvent()
        """Set when a node has done so."""

    @property
    def left(self) -> float:
        """How many seconds it still lasts at most."""
        return self._over_at - monotonic()

    def goes_on(self) -> bool:
        """Whether its thread is still asking."""
        return not self._ended and self.left > 0

    def note_reply(self, node: Address) -> None:
        self.asked.discard(node)
        self.step.set()

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most for a number of seconds."""
        event = threads.AutoResetEvent()
        self._waiting.append(event)
        if self.goes_on():  # otherwise it might never be set
            event.wait(min(seconds, self.left))

    def end(self) -> None:
        """End the round, and wake the threads that wait for it."""
        self._ended = True
        while self._waiting:
            self._waiting.popleft().set()


# --- client -----------------------------------------------------------------------------------------------------------

# The cluster client that the connection factory makes.

_DEFAULT_PORT = 6379


class ClusterClient:
    """redis-py's RedisCluster; it connects on first use, and again in a forked child.

    Raises ImproperlyConfigured for options that are not addresses of nodes.
    """

    def __init__(self, factory: ClusterFactory, params: dict[str, Any]) -> None:
        self._factory = factory
        self._params = params
        self._addresses = NodeAddresses(factory.options.get("NODE_ADDRESSES", {}))
        url = urlsplit(params["url"])
        first = url.hostname or "localhost", url.port or _DEFAULT_PORT
        self.start = [first, *startup_nodes(factory.options.get("STARTUP_NODES", ()))]
        """The nodes that the settings name."""
        self._clusters: dict[int, Any] = {}  # by process; redis-py's cluster client is half typed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected(), name)

    def mget(self, keys: Iterable[Any], *more: Any) -> list[Any]:
        """Read from all nodes that have the keys; not atomic."""
        return list(self._connected().mget_nonatomic(keys, *more))

    def primaries(self) -> list[redis.Redis]:
        """A client for each primary."""
        cluster = self._connected()
        return list(map(cluster.get_redis_connection, cluster.get_primaries()))

    def reached(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        """The address that reaches, from here, a node that ``asked`` announces as this host and port."""
        return self._addresses.reached(host, port, asked)

    def limited(self, limit: Callable[[dict[str, Any]], None]) -> ClusterClient:
        """A second client, whose connection options ``limit`` may change."""
        params = dict(self._params)
        limit(params)
        return ClusterClient(self._factory, params)

    def make_pool(self, address: Address) -> redis.ConnectionPool:
        """A new pool of connections to one node."""
        parts = urlsplit(self._params["url"])
        user = parts.netloc.rpartition("@")[0]
        node = written(address)
        url = parts._replace(netloc=f"{user}@{node}" if user else node).geturl()
        made: redis.ConnectionPool = self._factory.get_connection_pool(self._params | {"url": url})
        return made

    def disconnect(self) -> None:
        """Close open connections."""
        cluster = self._clusters.get(os.getpid())
        if cluster is not None:
            cluster.disconnect_connection_pools()

    def _connected(self) -> Any:
        """Threads that are the first to ask, at the same time, get the same one; another closes itself."""
        if known := self._clusters.get(os.getpid()):
            return known
        try:
            made = self._connect()
        except exceptions.RedisClusterException as error:  # which is not a RedisError
            raise redis.ConnectionError(str(error)) from error
        return self._clusters.setdefault(os.getpid(), made)

    def _connect(self) -> Any:
        factory, start = self._factory, list(itertools.starmap(ClusterNode, self.start))
        options = {
            "startup_nodes": start,
            # redis-py does not say which node announced an address.
            "address_remap": lambda named: self.reached(named[0], named[1], self.start[0]),
            # redis-py then reloads the map at each MOVED, and remaps it; otherwise it would follow MOVED unmapped.
            **({"reinitialize_steps": 1} if factory.options.get("NODE_ADDRESSES") else {}),
            **self._params,
            **factory.pool_cls_kwargs,
            **factory.redis_client_cls_kwargs,
        }
        try:
            return MappedCluster(**options)
        finally:  # it closes no connection to a node that refuses, or that announces another address
            for client in filter(None, [node.redis_connection for node in start]):
                client.connection_pool.disconnect()


class ClusterFactory:
    """Gives django-redis one client of the cluster for each process, and gives locks a pool for each node.

    Works as a base class before django-redis's own factory, which makes the parameters and the pools of nodes.
    """

    options: dict[str, Any]
    pool_cls_kwargs: dict[str, Any]
    redis_client_cls_kwargs: dict[str, Any]
    make_connection_params: Callable[[str], dict[str, Any]]
    get_connection_pool: Callable[[dict[str, Any]], redis.ConnectionPool]

    def connect(self, url: str) -> ClusterClient:
        params = self.make_connection_params(url)
        # Unlike django-redis's factory, distinguish caches with the same URL and different options.
        key = repr((params, self.options))
        # Threads that are the first to ask, at the same time, get the same one.
        known = _cluster_clients.value
        return known.get(key) or known.setdefault(key, ClusterClient(self, params))

    def disconnect(self, connection: ClusterClient) -> None:
        connection.disconnect()


def _disconnect(clients: dict[str, ClusterClient]) -> None:
    for each in threads.snapshot(clients.values()):
        each.disconnect()


_cluster_clients: Owned[dict[str, ClusterClient]] = Owned("connections", dict, stop=_disconnect)


# --- the topology -----------------------------------------------------------------------------------------------------

# Each call goes to the node that serves the slot of its keys. Redirections are followed. When a node does not reply,
# the map of slots is fetched again.

_REDIRECTIONS = 5
"""How many redirections are followed before a pause: while slots move, two nodes may point at each other."""


class Cluster(RetryingTopology):
    """The topology of a Redis Cluster. ``make_node`` makes the node for an address."""

    location = staticmethod(slot_of)

    def __init__(
        self,
        options: AliasSettings,
        binding: Binding,
        at: Callable[[str], Driver],
        make_node: Callable[[Address], Node],
        slots: SlotMap,
        listening: Listening | None,
    ) -> None:
        super().__init__(binding, at, self._exchange_redirected, options.refused_wait_time, listening)
        self._gather = binding.gather
        self._slots = slots
        self._make_node = make_node
        self._nodes: dict[Address, Node] = {}
        self._to_all = options.publish_to_all

    async def run(self, call: ScriptCall, until: float | None = None, undo: Undo | None = None) -> list[Any]:
        key = call.key
        if slot_of(tagged("", key)) != slot_of(key):
            # Calls with a single key would succeed: the lock could be acquired, but then never released.
            raise LockUnavailableError(
                call.name,
                reason="the braces in its name would spread its keys over several slots of the cluster",
                advice="Nothing was changed; leave them out, or close them around a hash tag.",
                noun=call.noun,
            ) from exceptions.ClusterCrossSlotError("the keys of a lock must be in one slot")
        call.template = call.template.sharded(self._to_all)
        return await super().run(call, until, undo)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        if self._slots.stale:
            self._slots.refresh()
        by_node: dict[Address, list[ScriptCall]] = defaultdict(list)
        for call in calls:
            call.template = call.template.sharded(self._to_all)
            by_node[self._slots.owner(slot_of(call.key))].append(call)
        found = await self._gather([self._ask(address, group) for address, group in by_node.items()])
        grouped = itertools.chain.from_iterable(by_node.values())
        replies = dict(zip(grouped, itertools.chain.from_iterable(found), strict=True))
        return [replies[call] for call in calls]

    async def _ask(self, address: Address, calls: Sequence[ScriptCall]) -> list[Any]:
        replies = await self._node(address).exchange_all(calls)
        if any(isinstance(reply, LockUnavailableError) for reply in replies):
            self._slots.doubt(address)
        return [await self._alone(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _exchange_redirected(self, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        if self._slots.stale:
            await self.call(self._slots.refresh, self._slots.rounds, limit)
        slot = slot_of(call.key)
        address = self._slots.owner(slot)
        asking = False
        for _ in range(_REDIRECTIONS):
            try:
                node = self._node(address)
                exchange = node.exchange_asking if asking else node.exchange
                return await exchange(call, packed, nonce, limit)
            except exceptions.AskError as error:  # or MovedError
                call.sends -= 1  # certainly not executed
                address = self._slots.redirected(error.host, error.port, address)
                asking = not isinstance(error, exceptions.MovedError)
                if not asking:
                    self._slots.moved(slot, address)
            except exceptions.TryAgainError:  # some of the keys are at each of two nodes
                break
            except (exceptions.RedisError, OSError) as error:
                if not isinstance(error, exceptions.ResponseError) or isinstance(
                    error, exceptions.ClusterDownError | exceptions.ReadOnlyError
                ):
                    self._slots.doubt(address)
                raise
        raise exceptions.TryAgainError(f"slot {slot} of the cluster is being moved to another node")

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        return self._nodes.setdefault(address, self._make_node(address)) if node is None else node
