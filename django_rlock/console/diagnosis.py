"""Problems of the locks' servers, and their remedies, for operators."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import redis
from django.core.checks import ERROR, CheckMessage
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import AskError, ClusterCrossSlotError, MovedError

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import meaning_of
from django_rlock._core.redis_py import slot_of, unreadable_file
from django_rlock._core.text import redacted
from django_rlock._redis.keys import NODE_KEY, redisson_channel, wake_channel
from django_rlock._transport.calls import REPLY_GRACE
from django_rlock._transport.cluster import SLOTS
from django_rlock._transport.servers import (
    SERVER_ERRORS,
    address_of,
    check_entry,
    clients_of,
    is_cluster,
    slot_map,
    source,
)
from django_rlock.console.causes import advice_on_lock, cause_at, cause_of
from django_rlock.console.reading import server_names
from django_rlock.exceptions import LockLostError, LockUnavailableError, RLockError
from django_rlock.locks import rlock
from django_rlock.settings import AliasSettings, get_settings, server_aliases

# --- checks of a server's INFO ----------------------------------------------------------------------------------------

Level = Literal["ok", "warning", "error"]
Info = Mapping[str, Any]
Seen = tuple[str, Level, str, str]
"""A check, its level, a text and advice."""

OLDEST = (6, 2)
"""The oldest version of Redis that runs the scripts."""
SHARDED = (7, 0)
"""The oldest version with sharded channels, which wake waiters in a cluster."""
NEARLY = 0.9
"""The share of a limit above which a warning is shown."""


def _version(info: Info, options: AliasSettings) -> Seen:
    product = "Valkey" if "valkey_version" in info else "Redis"
    text = f"{product} {info.get('valkey_version') or info.get('redis_version')}"
    speaks = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    if speaks < OLDEST:
        return "version", "error", f"{text} is too old", "Use Redis 6.2 or newer, or Valkey."
    if speaks < SHARDED and is_cluster(options.alias):
        text = f"{text} has no sharded channels: in a cluster waiters are never woken"
        return "version", "error", text, "Use Redis 7 or newer, or Valkey, in a cluster."
    return "version", "ok", text, ""


def _eviction(info: Info, _options: AliasSettings) -> Seen:
    policy, most = info.get("maxmemory_policy"), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        return "eviction", "ok", "noeviction", ""
    if policy is None:
        text = "INFO hides maxmemory-policy, as some services do: with another one than noeviction a lock may be lost"
        return "eviction", "warning", text, "Look it up in the console of the service, and choose noeviction there."
    text = f"maxmemory-policy is {policy}: an evicted lock is lost"
    advice = (
        "Set maxmemory-policy to noeviction, on a managed service in its console or parameter group; or give the locks "
        "a separate server."
    )
    if most:
        return "eviction", "error", text, advice
    return "eviction", "warning", f"{text}, once maxmemory is set", advice


def _memory(info: Info, _options: AliasSettings) -> Seen | None:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    text = f"{used / 1e6:.1f} of {most / 1e6:.1f} MB are used: a full server refuses locks"
    advice = "Raise maxmemory (on a managed service, its size) or free memory, and keep locks away from a full cache."
    return _of_limit("memory", used, most, text, advice)


def _clients(info: Info, _options: AliasSettings) -> Seen | None:
    connected, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    text = f"{connected} of {most} connections are open: at the limit new processes get no locks"
    advice = "Raise the server's maxclients (on a managed service, its size), or use fewer clients."
    return _of_limit("clients", connected, most, text, advice)


def _of_limit(check: str, used: int, most: int, text: str, advice: str) -> Seen | None:
    """A finding if a limit is nearly reached; there is none if ``most`` is 0."""
    if not most or used <= NEARLY * most:
        return None
    return check, "error" if used >= most else "warning", text, advice


def _persistence(info: Info, options: AliasSettings) -> Seen:
    advice = (
        "Set appendonly yes, on a managed service in its console. If it has no such setting, a FencedLock makes a loss "
        "harmless; with NODES, QUARANTINE compensates for it."
    )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the last snapshot failed; by default the server then refuses writes, so it grants no locks"
        return "persistence", "error", text, "Read its log: the disk may be full."
    if int(info.get("aof_enabled", 0)):
        return "persistence", "ok", "append-only file", ""
    if options.nodes is not None and options.longest_lease is not None:
        return "persistence", "ok", f"none or snapshots; a restarted node waits {options.longest_lease:g} s", ""
    text = "no append-only file: a restart loses held locks"
    return "persistence", "warning", text, advice


def _replication(info: Info, options: AliasSettings) -> Seen:
    role, replicas = info.get("role"), int(info.get("connected_slaves", 0))
    if role == "active-replica":
        text = "it is an active replica: it and the server that it follows grant the same lock to two owners"
        return "replicas", "error", text, "Set active-replica to no, or keep locks on another server."
    if role != "master":
        return "replicas", "error", f"it is a {role}, which refuses writes", "Connect to the primary, or use sentinels."
    wanted = options.replica_acks
    if isinstance(wanted, int) and wanted > replicas:
        text = f"{replicas} connected, but REPLICA_ACKS needs {wanted}: no lock can be taken"
        return "replicas", "error", text, "Start replicas, or lower REPLICA_ACKS."
    if wanted and not replicas:
        return "replicas", "warning", f"none is connected, but REPLICA_ACKS is {wanted!r}", "Start replicas."
    if replicas and not wanted:
        text = f"{replicas} connected; a failover may lose a lock"
        return "replicas", "ok", text, "REPLICA_ACKS makes such a loss rare, a FencedLock makes it harmless."
    return "replicas", "ok", f"{replicas} connected", ""


INFO_CHECKS: tuple[Callable[[Info, AliasSettings], Seen | None], ...] = (
    _version,
    _eviction,
    _memory,
    _clients,
    _persistence,
    _replication,
)


# --- diagnosis --------------------------------------------------------------------------------------------------------

# The findings about an alias. The checks of a server take a few seconds at most.

SLOW_ROUND_TRIP = 0.01
"""A usual reply time above this makes all locks slow, in seconds."""
SLOW_CONNECT = 0.5
"""Connecting and logging in should not take longer, in seconds."""
SKEW = 0.1
"""The allowed difference between the clocks of a RedLock's nodes, in seconds: tokens may be this far ahead."""
PINGS = 5
CONNECTIONS = 4
"""The number of connections to compare, to find several servers behind one address."""
KEYS = 16
"""The number of keys to look up, to find a node of a cluster that lacks some of them, or a proxy that spreads them."""
_PLACE = "for _, key in ipairs(KEYS) do redis.call('set', key, '', 'px', 60000) end"
_TAKE = "return redis.call('del', KEYS[1])"
_ABOVE = "See the findings above."
_RIGHTS = "Grant the rights that the documentation lists: docs/connection-options.md#least-rights"
WITHIN = 2.0
"""The time limit for each reply, in seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of a ``server``, or of the settings (""); ``advice`` says what to do."""

    alias: str
    server: str
    check: str
    level: Level
    text: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(alias: str) -> Iterator[Finding]:
    """All findings about an alias, each produced on demand."""
    try:
        options = get_settings(alias)
        for server in server_aliases(alias):
            check_entry(server)
    except ImproperlyConfigured as error:
        yield Finding(alias, "", "settings", "error", str(error), "Correct RLOCK and CACHES.")
        return
    yield from _sentinels(alias)
    try:
        clients = clients_of(alias, WITHIN)
    except SERVER_ERRORS as error:
        unreadable = unreadable_file(source(alias).options)
        cause = cause_of(unreadable or error, ", ".join(server_names(alias)))
        yield Finding(alias, "", cause.check, "error", cause.text, cause.advice)
        return
    servers = [_ExaminedServer(options, name, client) for name, client in clients.items()]
    for found in threads.gather([server.examine for server in servers]):
        yield from threads.value_of(found)
    if options.nodes is not None:
        yield _skew(alias, [server.ahead for server in servers if server.ahead is not None])
    yield _a_lock(options, is_explained=options.nodes is None and all(server.has_failed for server in servers))


def findings_of(messages: Sequence[CheckMessage]) -> Iterator[Finding]:
    """The findings of the system checks of the settings."""
    for message in messages:
        level: Level = "error" if message.level >= ERROR else "warning"
        yield Finding("", "", str(message.id), level, message.msg, message.hint or "")
    if not messages:
        yield Finding("", "", "settings", "ok", "RLOCK and CACHES are valid")


def _numbered(slots: Sequence[str]) -> str:
    """The first of some slots, and how many there are."""
    return f"slot {slots[0]}" if len(slots) == 1 else f"slot {slots[0]}, as one of {len(slots)},"


class _ExaminedServer:
    """The checks of one server."""

    def __init__(self, options: AliasSettings, name: str, client: redis.Redis) -> None:
        self._options = options
        self._name = name
        self._client: Any = client
        self._key = f"{options.key_prefix}rlock_doctor"
        self._has_replied = False
        self.has_failed = False
        """Whether the checks ended early, because the server did not reply or refused."""
        self.ahead: float | None = None
        """How far its clock is ahead of the monotonic clock here, in seconds; None if that is unknown."""

    def examine(self) -> list[Finding]:
        found: list[Finding] = []
        with closing(self._client.connection_pool):
            try:
                for check in self._checks():
                    found += check()
            except SERVER_ERRORS as error:  # also later on: a proxy may close the connection at a command that it lacks
                found.append(self._failed(error))
                self.has_failed = True
        return found

    def _checks(self) -> Iterator[Callable[[], Iterable[Finding]]]:
        # In few round trips, as each takes long on a distant server; over few connections, as the server may lack them.
        yield from (self._connecting, self._latency, self._time, self._of_info)
        if self._options.nodes is None:
            yield self._open_slots if is_cluster(self._options.alias) else self._spread
            yield self._messages
        else:
            yield self._quarantine

    def _connecting(self) -> Iterator[Finding]:
        asked = monotonic()
        self._ask()
        took = monotonic() - asked
        self._has_replied = True
        if took > SLOW_CONNECT:
            text = f"connecting to {address_of(self._client)} took {took * 1000:.0f} ms, which delays new processes"
            if took > REPLY_GRACE:
                text += "; that is longer than a call may wait for a reply, so each first call is late"
            advice = "Find the cause of the delay: DNS, TLS, a proxy, a distant server."
            yield self._finding("connection", "warning", text, advice)

    def _ask(self) -> None:
        """Make the shortest exchange that the least rights allow."""
        try:
            self._client.exists(self._key)
        except AskError:  # or MovedError: another node of the cluster has the key
            if not is_cluster(self._options.alias):
                raise

    def _latency(self) -> Iterator[Finding]:
        took = []
        for _ in range(PINGS):
            asked = monotonic()
            self._ask()
            took.append(monotonic() - asked)
        usual = median(took)
        text = f"{usual * 1000:.1f} ms, at most {max(took) * 1000:.1f} ms in {PINGS} tries"
        limit = self._options.node_timeout / 2 if self._options.nodes else SLOW_ROUND_TRIP
        if usual <= limit:
            yield self._finding("latency", "ok", text)
            return
        advice = "Raise NODE_TIMEOUT." if self._options.nodes else "Use a server that is closer, or less busy."
        yield self._finding("latency", "warning", f"{text}; more than {limit * 1000:g} ms", advice)

    def _time(self) -> Iterator[Finding]:
        try:
            asked = monotonic()
            seconds, micros = self._client.time()
            self.ahead = seconds + micros / 1e6 - (asked + monotonic()) / 2
        except SERVER_ERRORS as error:
            text = f"TIME fails, so rlock_list and the admin cannot read this server: {redacted(str(error))}"
            yield self._finding("time", "warning", text, "Allow TIME: grant +time, or let the proxy pass it.")

    def _of_info(self) -> Iterator[Finding]:
        try:
            info = self._client.info()
        except SERVER_ERRORS as error:
            text = f"Version, eviction, persistence and replicas are unknown: {redacted(str(error))}"
            yield self._finding("info", "warning", text, "Grant +info to check them; locks do not need it.")
            return
        if not {"redis_version", "role"} <= info.keys():
            text = "Version, eviction, persistence and replicas are unknown: INFO does not contain them"
            yield self._finding("info", "warning", text, "This may be a proxy: check the server behind it.")
            return
        others = threads.gather([self._other_run_id] * (CONNECTIONS - 1))
        servers = {info.get("run_id"), *(each for each in others if not isinstance(each, BaseException))}
        if len(servers) > 1:
            text = f"{len(servers)} servers reply at {address_of(self._client)}, and each has separate locks"
            yield self._finding("servers", "error", text, "Route all connections to one server, the primary.")
        for check in INFO_CHECKS:
            if seen := check(info, self._options):
                yield self._finding(*seen)

    def _other_run_id(self) -> Any:
        """The id of the server that replies over a new connection: behind one address there may be several."""
        with redis.Redis(connection_pool=self._client.connection_pool, single_connection_client=True) as client:
            found: Any = client.info("server").get("run_id")
            client.connection.disconnect()  # no other check uses it again
        return found

    def _quarantine(self) -> Iterator[Finding]:
        """Check whether others use this node of a RedLock with longer or shorter leases."""
        stored, own = self._client.hget(NODE_KEY, "quarantine"), self._options.longest_lease
        if stored is None or own is None or (longest := int(stored) / 1000) == round(own, 3):
            return
        text = f"QUARANTINE is {own:g} s here, and the longest that has been used on this node is {longest:g} s"
        if longest > own:
            text += ", for which all processes wait after the node has lost data"
        yield self._finding("quarantine", "warning", text, "Set the same QUARANTINE wherever these NODES are used.")

    def _spread(self) -> Iterator[Finding]:
        """Check whether one script reaches the keys that scripts with one key reach: otherwise this is a node of a
        cluster, a cluster behind one address, or a proxy that spreads keys over servers."""
        keys = [f"{self._key}:{number}" for number in range(KEYS)]
        (together,) = self._evaluate([(_PLACE, keys)])
        single = self._evaluate([(_TAKE, [key]) for key in keys])
        for reply in single:
            if isinstance(reply, MovedError | AskError):
                yield self._failed(reply)
                return
        if isinstance(together, ClusterCrossSlotError):
            text = "one address before many slots: several locks are taken one after another"
            yield self._finding("slots", "ok", text)
        elif not isinstance(together, Exception) and (apart := single.count(0)):
            text = f"{apart} of {KEYS} keys of one script are on another server: a proxy spreads keys over servers"
            advice = "Use one server, or a Redis Cluster: locks don't work behind a sharding proxy."
            yield self._finding("shards", "error", text, advice)

    def _evaluate(self, scripts: Iterable[tuple[str, Sequence[str]]]) -> list[Any]:
        """The replies to scripts with keys, or the server's errors."""
        pipe = self._client.pipeline(transaction=False)
        for script, keys in scripts:
            pipe.eval(script, len(keys), *keys)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def _open_slots(self) -> Iterator[Finding]:
        """The slots that this node of a cluster is moving. A move that was interrupted leaves them open for ever."""
        try:
            nodes = self._client.execute_command("CLUSTER NODES").values()
        except SERVER_ERRORS as error:
            text = f"slots that are being moved are unknown: {redacted(str(error))}"
            yield self._finding("slots", "warning", text, "Grant +cluster|nodes to check them; locks do not need it.")
            return
        moves = [move for node in nodes if "myself" in node["flags"] for move in node["migrations"]]
        advice = f"If no move is under way, it was interrupted: run redis-cli --cluster fix {address_of(self._client)}."
        if moving := [move["slot"] for move in moves if move["state"] == "migrating"]:
            text = "meanwhile many locks in it can be neither acquired nor released"
            yield self._finding("slots", "error", f"{_numbered(moving)} is being moved from here: {text}", advice)
        if awaited := [move["slot"] for move in moves if move["state"] == "importing"]:
            yield self._finding("slots", "warning", f"{_numbered(awaited)} is being moved to here", advice)

    def _messages(self) -> Iterator[Finding]:
        channels = list(self._channels())
        if not channels:  # a node of a cluster that serves no slot
            return
        with self._client.pubsub(ignore_subscribe_messages=False) as subscriber:
            for channel, sharded in channels:
                try:
                    if self._receives(subscriber, channel, sharded):
                        continue
                    text = "a message does not arrive: waiters are not woken, and only poll occasionally"
                    yield self._finding("pubsub", "warning", text, "Use another server or proxy, or KIND 'spin'.")
                except SERVER_ERRORS as error:
                    cause = cause_at(error, self._client, has_replied=True)
                    family, happens = f"{channel.partition(':')[0]}:*", "refused" if meaning_of(error) else "unusable"
                    text = f"the channels {family} are {happens}, so waiters only poll: {redacted(str(error))}"
                    advice = _RIGHTS if cause.check == "rights" else cause.advice
                    yield self._finding("pubsub", "warning", text, advice)
                return
        yield self._finding("pubsub", "ok", "a message arrives")

    def _channels(self) -> Iterator[tuple[str, bool]]:
        """Names of channels as waiters use them, and whether they are sharded."""
        name = f"{self._options.key_prefix}doctor-{uuid.uuid4()}"
        if not is_cluster(self._options.alias):
            yield wake_channel(name), False
            yield redisson_channel(name), False
            return
        slots = slot_map(self._options.alias)
        slots.refresh()
        options = self._client.connection_pool.connection_kwargs
        here = options["host"], options["port"]
        names = (f"{name}:{number}" for number in range(SLOTS))
        if key := next((each for each in names if slots.owner(slot_of(each)) == here), None):
            yield wake_channel(name, key), True
            yield redisson_channel(key), True
            yield redisson_channel(key), False  # there Redisson's older clients are woken, and wake ours

    def _receives(self, subscriber: Any, channel: str, sharded: bool) -> bool:
        kind = "s" if sharded else ""
        getattr(subscriber, f"{kind}subscribe")(channel)
        subscriber.get_message(timeout=WITHIN)
        getattr(self._client, f"{kind}publish")(channel, "test")
        message = subscriber.get_message(timeout=WITHIN)
        return message is not None and message["type"] == f"{kind}message"

    def _failed(self, error: BaseException) -> Finding:
        cause = cause_at(error, self._client, self._has_replied)
        return self._finding(cause.check, "error", cause.text, cause.advice)

    def _finding(self, check: str, level: Level, text: str, advice: str = "") -> Finding:
        return Finding(self._options.alias, self._name, check, level, text, advice)


def _sentinels(alias: str) -> Iterator[Finding]:
    """Which of the sentinels reply, and whether they know the primary."""
    for server in server_aliases(alias):
        pool = source(server).pool
        manager = getattr(pool, "sentinel_manager", None)
        if manager is not None:
            yield _of_sentinels(alias, pool.service_name, manager.sentinels)


def _of_sentinels(alias: str, service: str, sentinels: Sequence[Any]) -> Finding:
    replies = threads.gather([partial(sentinel.sentinel_get_master_addr_by_name, service) for sentinel in sentinels])
    asked = list(zip(sentinels, replies, strict=True))
    causes = [cause_at(reply, sentinel) for sentinel, reply in asked if isinstance(reply, BaseException)]
    unknown = [address_of(sentinel) for sentinel, reply in asked if not reply]
    replied = f"{len(sentinels) - len(causes)} of {len(sentinels)} sentinels reply"
    if not causes and not unknown:
        return Finding(alias, "", "sentinels", "ok", replied)
    wrong = [*(cause.text for cause in causes), *(f"{address} does not know {service!r}" for address in unknown)]
    known = len(sentinels) - len(wrong)
    text = f"{replied}, and {known} know the primary: {'; '.join(wrong)}"
    advice = "Start or correct these sentinels: without a majority no failover happens, and without any no lock."
    for cause in causes:
        if cause.check in {"login", "rights"}:
            advice = "Set their own credentials in OPTIONS['SENTINEL_KWARGS']: PASSWORD is for the primary."
        elif cause.check == "tls":
            advice = cause.advice
    return Finding(alias, "", "sentinels", "warning" if known else "error", text, advice)


def _skew(alias: str, clocks: Sequence[float]) -> Finding:
    apart = max(clocks) - min(clocks) if clocks else 0.0
    text = f"the clocks of {len(clocks)} nodes are {apart * 1000:.0f} ms apart"
    if apart <= SKEW:
        return Finding(alias, "", "clocks", "ok", text)
    advice = f"Let NTP slew them to within {SKEW:g} s."
    return Finding(alias, "", "clocks", "warning", f"{text}: fencing tokens cost one more round trip", advice)


def _a_lock(options: AliasSettings, is_explained: bool) -> Finding:
    """Take a test lock, to check all that locks need: scripts, rights, acknowledgements, a quorum. ``is_explained``:
    other findings say why the servers do not reply."""
    alias = options.alias
    lock = rlock(f"rlock_doctor:{uuid.uuid4()}", using=alias, wait_time=WITHIN)
    asked = monotonic()
    try:
        if not lock.acquire():
            text = "a test lock, which nothing else uses, could not be acquired"
            return Finding(alias, "", "lock", "error", text, _ABOVE)
        lock.extend(options.watchdog_timeout)  # a RedLock may allow no longer lease
        lock.release()
    except LockUnavailableError as error:
        advice = _ABOVE if is_explained else advice_on_lock(error)
        return Finding(alias, "", "lock", "error", redacted(error.reason), advice)
    except LockLostError as error:
        advice = "Use one server: several servers may reply at this address, or a proxy may drop writes."
        return Finding(alias, "", "lock", "error", redacted(str(error)), advice)
    except (RLockError, ImproperlyConfigured) as error:
        return Finding(alias, "", "lock", "error", redacted(str(error)), _ABOVE)
    return Finding(alias, "", "lock", "ok", f"taken, extended and released in {(monotonic() - asked) * 1000:.1f} ms")
