"""Checks of a server's INFO: is the server suitable for locks?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from django_rlock.connections import is_cluster
from django_rlock.settings import AliasSettings

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
    policy, most = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        return "eviction", "ok", "noeviction", ""
    text = f"maxmemory-policy is {policy}: an evicted lock is lost"
    advice = "Set maxmemory-policy to noeviction, or give the locks a separate server."
    if most:
        return "eviction", "error", text, advice
    return "eviction", "warning", f"{text}, once maxmemory is set", advice


def _memory(info: Info, _options: AliasSettings) -> Seen | None:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if used <= NEARLY * most or not most:
        return None
    text = f"{used / 1e6:.1f} of {most / 1e6:.1f} MB are used: a full server refuses locks"
    advice = "Raise maxmemory or free memory, and keep locks away from a full cache."
    return "memory", "error" if used >= most else "warning", text, advice


def _clients(info: Info, _options: AliasSettings) -> Seen | None:
    connected, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if connected <= NEARLY * most or not most:
        return None
    text = f"{connected} of {most} connections are open: at the limit new processes get no locks"
    advice = "Raise the server's maxclients, or use fewer clients."
    return "clients", "error" if connected >= most else "warning", text, advice


def _persistence(info: Info, options: AliasSettings) -> Seen:
    advice = "Set appendonly yes; with NODES, QUARANTINE compensates for it."
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


LOOKS: tuple[Callable[[Info, AliasSettings], Seen | None], ...] = (
    _version,
    _eviction,
    _memory,
    _clients,
    _persistence,
    _replication,
)
