"""Reads reports and locks from Redis, in few round trips, and believes nothing of what it finds.

Anybody who can write to the Redis may have planted a value: of another type, huge, not UTF-8, not JSON. Such
a value is left out; it never breaks a page. Replies are read as bytes even where the alias decodes them,
because a value that cannot be decoded would leave the rest of its reply in the connection.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from django_rlock.cluster import ClusterClient
from django_rlock.keys import queue_key
from django_rlock.reports import PROCESSES, report_key

NO_EXPIRY, GONE = -1, -2
"""What PTTL answers instead of a time."""
MAX_PROCESSES = 2000
MAX_FIELDS = 4000
MAX_PARTIES = 100
"""Holders and waiters of one lock that are read; ``State.waiting`` still counts all."""
MAX_JSON = 16_384
MAX_TEXT = 300
BATCH = 500
"""Locks that are read in one round trip."""
SCAN_COUNT = 2000
SCAN_CALLS = 5000
"""A scan ends after ten million keys, found or not."""
_OWNER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A hold or wait as a report tells it; ``since`` is the server's clock, in seconds."""

    key: str
    owner: str
    kind: str
    since: float | None
    lease: float | None
    place: str
    context: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """What one process told. ``beat`` is when it was last heard of, by the server's clock in seconds."""

    client: str
    beat: float
    host: str
    pid: int | None
    role: str
    holds: list[Entry] = field(default_factory=list)
    waits: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class State:
    """A lock as it is: owner → holds, the PTTL in ms, and the first of its queue.

    Of a RedLock ``nodes`` maps each node to the owner there, "" where it is free, None where nobody can be asked.
    """

    holds: Mapping[str, int]
    pttl: int
    queue: tuple[str, ...]
    waiting: int
    nodes: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def has_lock_owners(self) -> bool:
        """Whether all owners look like one: what tells a lock from other hashes where keys have no prefix."""
        return all(_OWNER.fullmatch(owner) for owner in self.holds)


def read_all_reports(client: redis.Redis) -> tuple[float, list[Report]]:
    """The server's time, in seconds, and the report of every process."""
    time, beats = _pipeline(client, [("TIME",), ("ZREVRANGE", PROCESSES, 0, MAX_PROCESSES - 1, "WITHSCORES")])
    scores = {_text(member): _number(score) or 0.0 for member, score in _pairs(beats or [])}
    hashes = _pipeline(client, [_read_hash(report_key(process), MAX_FIELDS) for process in scores])
    found = {process: _fields(reply) for process, reply in zip(scores, hashes, strict=True)}
    if ended := [process for process, fields in found.items() if not fields]:
        # Its report outlived it and then expired. If it comes back just now, its next beat adds it again.
        _pipeline(client, [("ZREM", PROCESSES, *ended)])
    return _seconds(time), [parse_report(p, scores[p], fields) for p, fields in found.items() if fields]


def read_reports(client: redis.Redis, processes: Collection[str]) -> tuple[float, list[Report]]:
    """The server's time, in seconds, and the reports of some processes by their client ids; one round
    trip."""
    commands: list[tuple[Any, ...]] = [("TIME",)]
    for process in processes:
        commands += [("ZSCORE", PROCESSES, process), _read_hash(report_key(process), MAX_FIELDS)]
    time, *replies = _pipeline(client, commands)
    found = zip(processes, replies[::2], map(_fields, replies[1::2]), strict=True)
    return _seconds(time), [parse_report(p, _number(beat) or 0.0, fields) for p, beat, fields in found if fields]


def read_states(client: redis.Redis, keys: Iterable[str]) -> dict[str, State]:
    """The locks among ``keys`` that are held, BATCH of them in each round trip."""
    wanted = list(keys)
    found = {}
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        replies = iter(_pipeline(client, [command for key in batch for command in _read_lock(key)]))
        for key, held, pttl, queue, waiting in zip(batch, replies, replies, replies, replies, strict=False):
            if (holds := _holds(held)) and pttl != GONE:
                found[key] = State(holds, pttl, tuple(map(_text, queue or ())), waiting or 0)
    return found


def scan_keys(client: Any, prefix: str) -> Iterator[str]:
    """The hashes whose keys begin with ``prefix``; may name one twice. Looks at all keys of the server, or of all
    primaries of a cluster, in steps."""
    pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
    for server in client.primaries() if isinstance(client, ClusterClient) else [client]:
        yield from _scan(server, pattern)


def _scan(server: Any, pattern: str) -> Iterator[str]:
    cursor = 0
    for _ in range(SCAN_CALLS):
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", "hash")
        cursor, keys = server.execute_command(*command, NEVER_DECODE=True)
        yield from map(_text, keys)
        if not cursor:
            return


def parse_report(client: str, beat: float, fields: Mapping[str, str]) -> Report:
    """A report from its fields, without those that make no sense."""
    pid = _number(fields.get("pid"))
    report = Report(
        client,
        beat,
        host=_short(fields.get("host")),
        pid=None if pid is None else int(pid),
        role=_short(fields.get("role")),
    )
    for name, text in fields.items():
        what = name.partition(" ")[0]
        if what in {"hold", "wait"} and (entry := _entry(text)):
            (report.holds if what == "hold" else report.waits).append(entry)
    return report


def _entry(text: str) -> Entry | None:
    try:
        document = json.loads(text) if len(text) <= MAX_JSON else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    key, owner, context = (document.get(name) for name in ("key", "owner", "context"))
    if not isinstance(key, str) or not isinstance(owner, str):
        return None
    return Entry(
        key=_printable(key),
        owner=_printable(owner),
        kind=_short(document.get("kind")),
        since=_number(document.get("since")),
        lease=_number(document.get("lease")),
        place=_short(document.get("place")),
        context={_short(k): _short(v) for k, v in context.items()} if isinstance(context, dict) else {},
    )


def _pipeline(client: redis.Redis, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Run commands in one round trip. Where a key has another type than a command's, its reply is None."""
    pipe: Any = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command, NEVER_DECODE=True)
    replies: list[Any] = pipe.execute(raise_on_error=False)
    return [_reply(reply) for reply in replies]


def _reply(reply: Any) -> Any:
    if isinstance(reply, redis.ResponseError) and str(reply).startswith("WRONGTYPE"):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply


def _read_hash(key: str, limit: int) -> tuple[Any, ...]:
    # Unlike HGETALL it ends after about ``limit`` fields, and one call reads any hash that has fewer.
    return "HSCAN", key, 0, "COUNT", limit


def _read_lock(key: str) -> Iterator[tuple[Any, ...]]:
    queue = queue_key(key)
    yield _read_hash(key, MAX_PARTIES)
    yield "PTTL", key
    yield "ZRANGE", queue, 0, MAX_PARTIES - 1
    yield "ZCARD", queue


def _fields(reply: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in reply[1].items()} if reply else {}


def _holds(reply: Any) -> dict[str, int]:
    # A read-write lock also has a field that names its mode.
    counts = {name: _number(value) for name, value in _fields(reply).items()}
    return {name: int(count) for name, count in counts.items() if count is not None and count >= 1}


def _pairs(reply: list[Any]) -> Iterable[tuple[Any, Any]]:
    """Members and scores: RESP3 pairs them, RESP2 has one flat list."""
    return reply if reply and isinstance(reply[0], list | tuple) else zip(reply[::2], reply[1::2], strict=True)


def _seconds(time: tuple[int, int]) -> float:
    return time[0] + time[1] / 1e6


def _text(value: bytes | str) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _printable(text: str) -> str:
    """JSON can spell half a surrogate pair, which no page can encode."""
    return text.encode(errors="backslashreplace").decode()


def _short(value: Any) -> str:
    return "" if value is None else _printable(str(value)[:MAX_TEXT])


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
