"""What an operator should know about the locks' servers, and what to do about it; no server takes more than a few
seconds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import redis
from django.core.checks import ERROR, CheckMessage
from django.core.exceptions import ImproperlyConfigured

from django_rlock.clock import monotonic
from django_rlock.connections import SERVER_ERRORS, clients_of, is_cluster
from django_rlock.exceptions import LockUnavailableError, RLockError
from django_rlock.keys import wake_channel
from django_rlock.links.errors import meaning_of
from django_rlock.locks import rlock
from django_rlock.redaction import redacted
from django_rlock.settings import AliasSettings, get_settings

Level = Literal["ok", "warning", "error"]

OLDEST = (6, 2)
"""The oldest version of Redis that runs the scripts."""
SLOW = 0.01
"""A usual reply time above this makes all locks slow, in seconds."""
SKEW = 0.1
"""How far the clocks of a RedLock's nodes may differ, in seconds: fencing tokens may be this far ahead."""
PINGS = 20
WITHIN = 2.0
"""How long each reply may take, in seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, on a ``server`` of an alias or on none (""); ``advice`` says what to do."""

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
        clients = clients_of(alias, WITHIN)
    except (ImproperlyConfigured, *SERVER_ERRORS) as error:
        yield Finding(alias, "", "connection", "error", redacted(str(error)), "Correct RLOCK and CACHES.")
        return
    clocks: dict[str, float] = {}
    for server, client in clients.items():
        with closing(client.connection_pool):
            yield from _Server(options, server, client, clocks).findings()
    if options.nodes is not None:
        yield _skew(alias, clocks)
    yield _a_lock(alias)


def findings_of(messages: Sequence[CheckMessage]) -> Iterator[Finding]:
    """The findings of the system checks of the settings."""
    for message in messages:
        level: Level = "error" if message.level >= ERROR else "warning"
        yield Finding("", "", str(message.id), level, message.msg, message.hint or "")
    if not messages:
        yield Finding("", "", "settings", "ok", "RLOCK and CACHES fit")


class _Server:
    """The checks of one server."""

    def __init__(self, options: AliasSettings, name: str, client: redis.Redis, clocks: dict[str, float]) -> None:
        self._options = options
        self._name = name
        self._client: Any = client
        self._clocks = clocks

    def findings(self) -> Iterator[Finding]:
        try:
            yield self._latency()
        except SERVER_ERRORS as error:
            text = f"No connection: {redacted(str(error))}"
            meaning = meaning_of(error)
            advice = None if meaning is None else meaning.advice
            yield self._finding(
                "connection", "error", text, advice or "Check that it is up, the address, user and password."
            )
            return
        yield from self._of_info()
        if self._options.nodes is None and not is_cluster(self._options.alias):
            yield self._guarded("pubsub", self._pubsub)

    def _latency(self) -> Finding:
        took = []
        for _ in range(PINGS):
            asked = monotonic()
            seconds, micros = self._client.time()  # allowed with the least rights, unlike PING
            replied = monotonic()
            took.append(replied - asked)
            self._clocks[self._name] = seconds + micros / 1e6 - (asked + replied) / 2
        usual = median(took)
        text = f"{usual * 1000:.1f} ms, at most {max(took) * 1000:.1f} ms of {PINGS}"
        limit = self._options.node_timeout / 2 if self._options.nodes else SLOW
        if usual <= limit:
            return self._finding("latency", "ok", text)
        advice = "Raise NODE_TIMEOUT." if self._options.nodes else "Use a server that is closer, or less busy."
        return self._finding("latency", "warning", f"{text}; more than {limit * 1000:g} ms", advice)

    def _of_info(self) -> Iterator[Finding]:
        try:
            info: Mapping[str, Any] = self._client.info()
        except SERVER_ERRORS as error:
            text = f"Version, eviction, persistence and replicas are unknown: {redacted(str(error))}"
            yield self._finding("info", "warning", text, "Grant +info to check them; locks do not need it.")
            return
        if not {"redis_version", "role"} <= info.keys():
            text = "Version, eviction, persistence and replicas are unknown: INFO does not name them"
            yield self._finding("info", "warning", text, "Look at the server behind it: this may be a proxy.")
            return
        for look in (_version, _eviction, _persistence, _replication):
            check, level, text, advice = look(info, self._options)
            yield self._finding(check, level, text, advice)

    def _pubsub(self) -> Finding:
        channel = wake_channel(f"doctor-{uuid.uuid4()}")
        with self._client.pubsub(ignore_subscribe_messages=False) as hears:
            hears.subscribe(channel)
            hears.get_message(timeout=WITHIN)
            self._client.publish(channel, "heard")
            message = hears.get_message(timeout=WITHIN)
        if message is not None and message["type"] == "message":
            return self._finding("pubsub", "ok", "a message arrives")
        return self._finding(
            "pubsub", "warning", "a message does not arrive: waiters only poll now and then", "Or use KIND 'spin'."
        )

    def _guarded(self, check: str, look: Callable[[], Finding]) -> Finding:
        try:
            return look()
        except SERVER_ERRORS as error:
            advice = "Grant the rights that the documentation names: docs/topologies.md#least-rights"
            return self._finding(check, "warning", redacted(str(error)), advice)

    def _finding(self, check: str, level: Level, text: str, advice: str = "") -> Finding:
        return Finding(self._options.alias, self._name, check, level, text, advice)


_Seen = tuple[str, Level, str, str]
"""A check, its level, a text and advice."""


def _version(info: Mapping[str, Any], _options: AliasSettings) -> _Seen:
    product = "Valkey" if "valkey_version" in info else "Redis"
    text = f"{product} {info.get('valkey_version') or info.get('redis_version')}"
    speaks = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    if speaks < OLDEST:
        return "version", "error", f"{text} is too old", "Use Redis 6.2 or newer, or Valkey."
    return "version", "ok", text, ""


def _eviction(info: Mapping[str, Any], _options: AliasSettings) -> _Seen:
    policy, most = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        return "eviction", "ok", "noeviction", ""
    text = f"maxmemory-policy is {policy}: an evicted lock is a lost one"
    advice = "Set maxmemory-policy to noeviction, or give the locks a server of their own."
    if most:
        return "eviction", "error", text, advice
    return "eviction", "warning", f"{text}, once maxmemory is set", advice


def _persistence(info: Mapping[str, Any], options: AliasSettings) -> _Seen:
    advice = "Set appendonly yes; with NODES, QUARANTINE compensates for it."
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the last snapshot failed; by default the server then refuses writes, and so locks"
        return "persistence", "error", text, "Look into its log: the disk may be full."
    if int(info.get("aof_enabled", 0)):
        return "persistence", "ok", "append-only file", ""
    if options.nodes is not None and options.longest_lease is not None:
        return "persistence", "ok", f"none or snapshots; a restarted node waits {options.longest_lease:g} s", ""
    text = "no append-only file: a restart forgets locks that are held"
    return "persistence", "warning", text, advice


def _replication(info: Mapping[str, Any], options: AliasSettings) -> _Seen:
    role, replicas = info.get("role"), int(info.get("connected_slaves", 0))
    if role != "master":
        return "replicas", "error", f"it is a {role}, which refuses writes", "Name the primary, or sentinels that do."
    wanted = options.replica_acks
    if isinstance(wanted, int) and wanted > replicas:
        text = f"{replicas} connected, and REPLICA_ACKS needs {wanted}: no lock can be taken"
        return "replicas", "error", text, "Bring replicas up, or lower REPLICA_ACKS."
    if wanted and not replicas:
        return "replicas", "warning", f"none is connected, and REPLICA_ACKS is {wanted!r}", "Bring replicas up."
    if replicas and not wanted:
        text = f"{replicas} connected; a failover may forget a lock"
        return "replicas", "ok", text, "REPLICA_ACKS makes that rarer, a FencedLock harmless."
    return "replicas", "ok", f"{replicas} connected", ""


def _skew(alias: str, clocks: Mapping[str, float]) -> Finding:
    apart = max(clocks.values()) - min(clocks.values()) if clocks else 0.0
    text = f"the clocks of {len(clocks)} nodes are {apart * 1000:.0f} ms apart"
    if apart <= SKEW:
        return Finding(alias, "", "clocks", "ok", text)
    advice = f"Let NTP slew them to within {SKEW:g} s."
    return Finding(alias, "", "clocks", "warning", f"{text}: fencing tokens cost a round trip more", advice)


def _a_lock(alias: str) -> Finding:
    """Take a lock of its own, to try all that locks need: scripts, rights, acknowledgements, a quorum."""
    lock = rlock(f"rlock_doctor:{uuid.uuid4()}", using=alias, wait_time=WITHIN)
    asked = monotonic()
    try:
        if not lock.acquire():
            text = "a lock that is used by nothing else could not be taken"
            return Finding(alias, "", "lock", "error", text, "Look at the findings above.")
        lock.extend(60)
        lock.release()
    except LockUnavailableError as error:
        return Finding(alias, "", "lock", "error", redacted(error.reason), error.advice)
    except RLockError as error:
        return Finding(alias, "", "lock", "error", redacted(str(error)), "Look at the findings above.")
    return Finding(alias, "", "lock", "ok", f"taken, extended and released in {(monotonic() - asked) * 1000:.1f} ms")
