"""Reads reports and locks from Redis, in few round trips, and trusts no value.

Anybody who can write to the Redis may have planted a value: of another type, huge, not UTF-8, not JSON. Such
a value is left out; it never breaks a page. Replies are read as bytes even where the alias decodes them,
because a value that cannot be decoded would leave the rest of its reply in the connection.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import redis
from redis.exceptions import ClusterCrossSlotError

from django_rlock.cluster import ClusterClient
from django_rlock.inspection.parsing import Fields, Report, parse_report, unchanged_report
from django_rlock.inspection.untrusted import number_of, plain_text
from django_rlock.keys import places_key, queue_key, redisson_queue_key
from django_rlock.reports import PROCESSES, report_key
from django_rlock.reports.history import HISTORIES, history_key
from django_rlock.scripts import ABSENT

MAX_PROCESSES = 2000
MAX_FIELDS = 4000
MAX_PARTIES = 100
"""Holders and waiters of one lock that are read; ``State.waiting`` still counts all."""
MAX_HISTORIES = 500
MAX_PLACES = 10_000
"""Places in the queue that are read together."""
BATCH = 500
"""Locks that are read in one round trip."""
SCAN_COUNT = 2000
SCAN_CALLS = 5000
"""A scan ends after ten million keys, found or not."""
MOST_AHEAD = 1.0
"""How far a living process's last heartbeat may be ahead of the server's clock, in seconds: each reads it now and
then."""
_NAMED = re.compile(r"[^/]{36}/\d+/(.*)", re.DOTALL)
_OWNER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class State:
    """A lock as it is: owner → holds, the PTTL in ms, and the first of its queues, ours and Redisson's fair lock's.

    ``queues`` is how many of the two queues there are, ``has_places`` whether messages of tasks have places. Of a
    RedLock ``nodes`` maps each node to the owner there, "" where it is free, None where it is unreachable.
    """

    holds: Mapping[str, int]
    pttl: int
    queue: tuple[str, ...]
    waiting: int
    nodes: Mapping[str, str | None] = field(default_factory=dict)
    queues: int = 0
    has_places: bool = False

    @property
    def present(self) -> int:
        """How many of its keys ``count_present`` finds."""
        return sum(map(bool, self.nodes.values())) if self.nodes else 1 + self.queues + self.has_places

    @property
    def has_lock_owners(self) -> bool:
        """Whether all owners look like one: what distinguishes a lock from other hashes where keys have no prefix."""
        return all(_OWNER.fullmatch(owner) for owner in self.holds)


def read_all_reports(client: redis.Redis, place: str, is_refresh: bool = False) -> tuple[float, list[Report]]:
    """The server's time, in seconds, and the report of every process; for ``place`` see ``parse_report``. A refresh
    does not read the reports again that have not changed since they were read a moment ago."""
    time, heartbeats = _pipeline(client, [("TIME",), ("ZREVRANGE", PROCESSES, 0, MAX_PROCESSES - 1, "WITHSCORES")])
    now = _seconds(time)
    scores = {plain_text(member): number_of(score) or 0.0 for member, score in _pairs(heartbeats or [])}
    _bring_back(client, scores, now)
    kept = _unchanged_reports(scores, place, now) if is_refresh else {}
    asked = [process for process in scores if process not in kept]
    hashes = _pipeline(client, [_read_hash(report_key(process), MAX_FIELDS) for process in asked])
    found = {process: _fields(reply) for process, reply in zip(asked, hashes, strict=True)}
    if ended := [process for process, fields in found.items() if not fields]:
        # Its report outlived it and then expired. If it comes back just now, its next heartbeat adds it again.
        _pipeline(client, [("ZREM", PROCESSES, *ended)])
    read = {p: parse_report(p, scores[p], fields, place, now) for p, fields in found.items() if fields}
    return now, [report for process in scores if (report := kept.get(process) or read.get(process))]


def _bring_back(client: redis.Redis, heartbeats: Mapping[str, float], now: float) -> None:
    """Bring heartbeats back to ``now`` on the server that are ahead of its clock, which was set back since. From then
    on they age: a process that lives heartbeats again, a dead one is silent after a while.
    """
    if ahead := [process for process, heartbeat in heartbeats.items() if heartbeat > now + MOST_AHEAD]:
        scores = [part for process in ahead for part in (repr(now), process)]
        with suppress(redis.ResponseError):  # a user who may only read, or a full server
            _pipeline(client, [("ZADD", PROCESSES, "XX", "LT", *scores)])


def _unchanged_reports(heartbeats: Mapping[str, float], place: str, now: float) -> dict[str, Report]:
    found = ((process, unchanged_report(process, heartbeat, place, now)) for process, heartbeat in heartbeats.items())
    return {process: report for process, report in found if report}


def read_reports(client: redis.Redis, processes: Collection[str]) -> tuple[float, list[Report]]:
    """The server's time, in seconds, and the reports of some processes by their client ids; one round
    trip."""
    commands: list[tuple[Any, ...]] = [("TIME",)]
    for process in processes:
        commands += [("ZSCORE", PROCESSES, process), _read_hash(report_key(process), MAX_FIELDS)]
    time, *replies = _pipeline(client, commands)
    now, heartbeats = _seconds(time), [number_of(heartbeat) or 0.0 for heartbeat in replies[::2]]
    _bring_back(client, dict(zip(processes, heartbeats, strict=True)), now)
    found = zip(processes, heartbeats, map(_fields, replies[1::2]), strict=True)
    return now, [parse_report(process, heartbeat, fields) for process, heartbeat, fields in found if fields]


def read_histories(client: redis.Redis) -> tuple[float, dict[str, str]]:
    """The server's time, in seconds, and the text of each process's history, by client id; those written last."""
    time, members = _pipeline(client, [("TIME",), ("ZREVRANGE", HISTORIES, 0, MAX_HISTORIES - 1)])
    processes = [plain_text(member) for member in members or ()]
    texts = _pipeline(client, [("GET", history_key(process)) for process in processes])
    return _seconds(time), {p: plain_text(text) for p, text in zip(processes, texts, strict=True) if text is not None}


def read_states(client: redis.Redis, keys: Iterable[str]) -> dict[str, State]:
    """The locks among ``keys`` that are held, BATCH of them in each round trip."""
    wanted = list(keys)
    found = {}
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        replies = iter(_pipeline(client, [command for key in batch for command in _read_lock(key)]))
        for key, held, pttl, queue, java, places in zip(batch, *[replies] * 5, strict=False):
            if (holds := _holds(held)) and pttl != ABSENT:
                waiters = *map(_waiting, queue or ()), *map(plain_text, java or ())
                queues = bool(queue) + bool(java)
                found[key] = State(
                    holds, pttl, waiters[:MAX_PARTIES], len(waiters), queues=queues, has_places=bool(places)
                )
    return found | _count_waiters(client, {key: state for key, state in found.items() if state.waiting >= MAX_PARTIES})


def _count_waiters(client: redis.Redis, states: Mapping[str, State]) -> dict[str, State]:
    """The same states, with the whole lengths of their queues."""
    commands = [command for key in states for command in (("ZCARD", queue_key(key)), ("LLEN", redisson_queue_key(key)))]
    lengths = iter(_pipeline(client, commands) if commands else ())
    return {
        key: replace(state, waiting=(ours or 0) + (java or 0))
        for (key, state), ours, java in zip(states.items(), lengths, lengths, strict=False)
    }


def count_present(client: redis.Redis, keys: Iterable[str]) -> int:
    """How many there are of these locks, their queues and sets of places; one command, in a cluster one for each."""
    locks = [(key, queue_key(key), redisson_queue_key(key), places_key(key)) for key in keys]
    if not isinstance(client, ClusterClient):
        with suppress(ClusterCrossSlotError):  # a cluster behind one address
            return sum(_pipeline(client, [("EXISTS", *itertools.chain(*locks))]))
    return sum(_pipeline(client, [("EXISTS", *lock) for lock in locks]))


def read_number(client: redis.Redis, key: str) -> int | None:
    """The number at a key: the permits of a semaphore, or the count of a latch."""
    (reply,) = _pipeline(client, [("GET", key)])
    number = None if reply is None else number_of(plain_text(reply))
    return None if number is None else int(number)


def read_places(client: redis.Redis, sets: Collection[str]) -> tuple[float, list[tuple[str, str, int]]]:
    """The server's time, in seconds, and the places in the queue that sorted sets name: key, value, and PTTL in ms."""
    time, *members = _pipeline(client, [("TIME",), *(("ZRANGE", each, 0, MAX_PLACES - 1) for each in sets)])
    places = sorted({plain_text(key) for found in members for key in found or ()})[:MAX_PLACES]
    replies = (
        _pipeline(client, [command for key in places for command in (("GET", key), ("PTTL", key))]) if places else []
    )
    found = zip(places, replies[::2], replies[1::2], strict=True)
    return _seconds(time), [(key, plain_text(value), pttl) for key, value, pttl in found if value is not None]


def scan_keys(client: Any, prefix: str, kind: str = "hash") -> Iterator[str]:
    """The hashes, or the keys of another ``kind``, that begin with ``prefix``; may name one twice. Looks at all keys of
    the server, or of all primaries of a cluster, in steps."""
    pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
    for server in client.primaries() if isinstance(client, ClusterClient) else [client]:
        yield from _scan(server, pattern, kind)


def _scan(server: Any, pattern: str, kind: str) -> Iterator[str]:
    cursor = 0
    for _ in range(SCAN_CALLS):
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", kind)
        cursor, keys = server.execute_command(*command, NEVER_DECODE=True)
        yield from map(plain_text, keys)
        if not cursor:
            return


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
    yield _read_hash(key, MAX_PARTIES)
    yield "PTTL", key
    yield "ZRANGE", queue_key(key), 0, MAX_PARTIES - 1
    yield "LRANGE", redisson_queue_key(key), 0, MAX_PARTIES - 1
    yield "EXISTS", places_key(key)


def _fields(reply: Any) -> Fields:
    return reply[1] if reply else {}


def _holds(reply: Any) -> dict[str, int]:
    # A read-write lock also has a field that names its mode.
    counts = {plain_text(name): number_of(plain_text(value)) for name, value in _fields(reply).items()}
    return {name: int(count) for name, count in counts.items() if count is not None and count >= 1}


def _pairs(reply: list[Any]) -> Iterable[tuple[Any, Any]]:
    """Members and scores: RESP3 pairs them, RESP2 has one flat list."""
    return reply if reply and isinstance(reply[0], list | tuple) else zip(reply[::2], reply[1::2], strict=True)


def _seconds(time: tuple[int, int]) -> float:
    return time[0] + time[1] / 1e6


def _waiting(member: bytes | str) -> str:
    """The owner that a member of a queue stands for: a name that the caller chose follows its client and a number."""
    owner = plain_text(member)
    named = _NAMED.fullmatch(owner)
    return named[1] if named else owner
