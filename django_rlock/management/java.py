"""Checks of the Java clients of the locks' servers: ``rlock_doctor --java``.

Java clients of other systems may use the same server, so a finding is a warning only if it is an error in any system.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import redis
from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.text import redacted
from django_rlock._redis.keys import JAVA_QUEUE_ENTRY, plain_mark
from django_rlock._transport.connections import SERVER_ERRORS, clients_of, is_cluster
from django_rlock.management.diagnosis import WITHIN, Finding, Level
from django_rlock.settings import get_settings

_QUEUE = "redisson_lock_queue:"
_RIGHTS = "Grant +client|list +pubsub +scan +llen +lindex to check it; locks do not need them."
_SCANNED = 200
"""The highest number of SCAN calls to a server, of 1,000 keys each."""
_NAMED = 5
"""The highest number of names in a text."""


def diagnose_java(alias: str) -> Iterator[Finding]:
    """All findings about the Java clients on an alias's servers, each produced on demand."""
    try:
        clients = clients_of(alias, WITHIN)
    except (ImproperlyConfigured, *SERVER_ERRORS):
        return  # other findings report it
    for server, client in clients.items():
        with closing(client.connection_pool):
            for look in _versions, _subscribers, _doubled_names, _fair_waiters:
                check = look.__name__.lstrip("_").replace("_", " ")
                try:
                    level, text, advice = look(client, alias)
                except SERVER_ERRORS as error:
                    level, text, advice = (
                        "warning",
                        redacted(str(error)),
                        "Grant +client|list +pubsub +scan to check it.",
                    )
                yield Finding(alias, server, f"java {check}", level, text, advice)


_Seen = tuple[Level, str, str]


def _versions(client: redis.Redis, _alias: str) -> _Seen:
    found = Counter(
        f"{each['lib-name']} {each.get('lib-ver', '')}".strip()
        for each in client.client_list()
        if "redisson" in each.get("lib-name", "").lower()
    )
    if not found:
        return "ok", "no connection names Redisson as its library, but not every Redisson does", ""
    return "ok", ", ".join(f"{library} ({number} connections)" for library, number in sorted(found.items())), ""


def _subscribers(client: Any, alias: str) -> _Seen:
    """The subscribers of Redisson's channels that are not processes of this package."""
    # Our processes mark a subscription to such a channel by a second one, in a cluster on a sharded channel.
    count_marks = client.pubsub_shardnumsub if is_cluster(alias) else client.pubsub_numsub
    plain = _others(client.pubsub_channels, client.pubsub_numsub, count_marks)
    text = f"{sum(plain.values())} wait for messages on {len(plain)} channels"
    if not is_cluster(alias):
        return "ok", text, ""
    sharded = _others(client.pubsub_shardchannels, client.pubsub_shardnumsub, count_marks)
    text += f" of all nodes, {sum(sharded.values())} on {len(sharded)} sharded channels"
    if plain and sharded:
        return (
            "warning",
            text,
            "These two groups of Java clients don't wake each other: set one shardedSubscriptionMode.",
        )
    return "ok", text, ""


def _others(
    channels: Callable[[str], list[Any]], count: Callable[..., list[Any]], count_marks: Callable[..., list[Any]]
) -> dict[str, int]:
    """The number of other clients that subscribe to each of Redisson's channels."""
    names = list(map(_text, channels("redisson_*")))
    if not names:
        return {}
    counts = zip(names, count(*names), count_marks(*map(plain_mark, names)), strict=True)
    return {name: number - marks for name, (_, number), (_, marks) in counts if number > marks}


def _doubled_names(client: redis.Redis, alias: str) -> _Seen:
    prefix = get_settings(alias).key_prefix
    if not prefix:
        return "ok", "KEY_PREFIX is empty, so names have no prefix", ""
    doubled = _scan(client, prefix + prefix)
    if not doubled:
        return "ok", f"no key begins with {prefix + prefix!r}", ""
    advice = "Redisson up to 3.20 puts its nameMapper's prefix twice before read-write locks: update it."
    return "warning", f"keys begin with {prefix + prefix!r}: {_some(doubled)}", advice


def _fair_waiters(client: Any, alias: str) -> _Seen:
    prefix = get_settings(alias).key_prefix
    # The entry of our own waiters is before Java's.
    lengths = {
        key: client.llen(key) - (_text(client.lindex(key, 0)) == JAVA_QUEUE_ENTRY) for key in _scan(client, _QUEUE)
    }
    queues = {key: length for key, length in lengths.items() if length}
    text = f"{sum(queues.values())} wait in {len(queues)} queues of Redisson's fair lock"
    unmapped = [key for key in queues if not key.removeprefix(_QUEUE).lstrip("{").startswith(prefix)]
    if not unmapped:
        return "ok", text, ""
    advice = (
        "Redisson before 3.52 queues waiters without its nameMapper's prefix, so this package does not wake them; they "
        "retry when the holder's lease should end. Update Redisson."
    )
    return "warning", f"{text}; without the prefix {prefix!r}: {_some(unmapped)}", advice


def _scan(client: Any, prefix: str) -> list[str]:
    pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
    found, cursor = set[str](), 0
    for _ in range(_SCANNED):
        cursor, keys = client.scan(cursor, match=pattern, count=1000)
        found.update(map(_text, keys))
        if not cursor:
            break
    return sorted(found)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
