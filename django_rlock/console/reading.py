"""Reads reports and locks from an alias's server or nodes, in few round trips, and trusts no value.

Anyone with write access may have planted a value: of another type, huge, not UTF-8, not JSON. Such a value is left out,
and never breaks a page. Replies are read as bytes even if the alias decodes them, because a value that cannot be
decoded would leave the rest of the reply in the connection.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import redis
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ClusterCrossSlotError

from django_rlock._core import threads
from django_rlock._core.redis_py import locations
from django_rlock._core.text import hide_secrets, redacted
from django_rlock._monitoring.documents import (
    Fields,
    Report,
    limit_memory,
    number_of,
    parse_report,
    plain_text,
    unchanged_report,
)
from django_rlock._redis.keys import (
    HISTORIES,
    JAVA_QUEUE_ENTRY,
    PROCESSES,
    history_key,
    queue_key,
    redisson_queue_key,
    report_key,
    reservations_key,
)
from django_rlock._redis.scripts import ABSENT, ENDLESS
from django_rlock._transport.calls import unavailable
from django_rlock._transport.cluster import ClusterClient
from django_rlock._transport.quorum.nodes import node_set
from django_rlock._transport.servers import SERVER_ERRORS, get_client, node_client
from django_rlock.exceptions import LockUnavailableError, QuorumNotReachedError
from django_rlock.locks.places import PLACES
from django_rlock.settings import get_aliases, get_settings, is_url, server_aliases

UnreadError = LockUnavailableError | ImproperlyConfigured
"""Why an alias could not be read."""

# The limits below keep a page fast beside planted values, and beside more processes than any project has.
MAX_PROCESSES = 2000
MAX_FIELDS = 4000
MAX_PARTIES = 100
"""The number of holders and waiters of a lock that are read; ``State.waiting`` counts all waiters."""
MAX_HISTORIES = 500
MAX_RESERVATIONS = 10_000
"""The number of reservations that are read in one round trip."""
BATCH = 500
"""The number of locks that are read in one round trip."""
SCAN_COUNT = 2000
SCAN_CALLS = 5000
"""The number of keys after which a scan ends."""
MOST_AHEAD = 1.0
"""How far the last heartbeat of a living process may be ahead of the server's clock, in seconds: processes read that
clock only now and then."""
_NAMED = re.compile(r"[^/]{36}/\d+/(.*)", re.DOTALL)
_OWNER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class State:
    """The current state of a lock: owner → count, the PTTL in ms, and the first waiters of its queues, ours and that of
    Redisson's fair lock.

    ``queues`` is the number of queues that exist, ``has_reservations`` whether messages of tasks have reservations. For
    a RedLock, ``nodes`` maps each node to the owner there, "" if the lock is free there, None if the node is
    unreachable.
    """

    holds: Mapping[str, int]
    pttl: int
    queue: tuple[str, ...]
    waiting: int
    nodes: Mapping[str, str | None] = field(default_factory=dict)
    queues: int = 0
    has_reservations: bool = False

    @property
    def present(self) -> int:
        """The number of the lock's keys that ``count_present`` should find."""
        return sum(map(bool, self.nodes.values())) if self.nodes else 1 + self.queues + self.has_reservations

    @property
    def has_lock_owners(self) -> bool:
        """Whether all fields are owner ids, which distinguishes a lock from other hashes if keys have no prefix."""
        return all(_OWNER.fullmatch(owner) for owner in self.holds)


class ProcessHistory(NamedTuple):
    """Some fields of a process's history, by name, as texts, which may be missing; ``age`` is how long ago it was
    written, and ``ahead`` by how much its times are ahead of the clock to which readers compare them, in seconds."""

    client: str
    age: float
    texts: Mapping[str, str]
    ahead: float = 0.0


def read_all_reports(client: redis.Redis, server: str, is_refresh: bool = False) -> tuple[float, list[Report]]:
    """The server's time, in seconds, and the report of every process; for ``server`` see ``parse_report``. A refresh
    does not read reports again that have not changed since the last reading."""
    time, heartbeats = _pipeline(client, [("TIME",), ("ZREVRANGE", PROCESSES, 0, MAX_PROCESSES - 1, "WITHSCORES")])
    now = _seconds(time)
    scores = {plain_text(member): number_of(score) or 0.0 for member, score in _pairs(heartbeats or [])}
    _bring_back(client, scores, now)
    kept = _unchanged_reports(scores, server, now) if is_refresh else {}
    asked = [process for process in scores if process not in kept]
    hashes = _pipeline(client, [_read_hash(report_key(process), MAX_FIELDS) for process in asked])
    found = {process: _fields(reply) for process, reply in zip(asked, hashes, strict=True)}
    if ended := [process for process, fields in found.items() if not fields]:
        # Their reports have expired. If such a process still runs, its next heartbeat finds that it was removed, and
        # writes the report again.
        _tidy(client, "ZREM", PROCESSES, *ended)
    read = {p: parse_report(p, scores[p], fields, server, now) for p, fields in found.items() if fields}
    limit_memory()
    return now, [report for process in scores if (report := kept.get(process) or read.get(process))]


def _bring_back(client: redis.Redis, heartbeats: Mapping[str, float], now: float) -> None:
    """Set heartbeats that are ahead of the server's clock to ``now``: the clock has been set back. From then on they
    age. A living process sends another heartbeat; a dead process becomes silent.
    """
    if ahead := [process for process, heartbeat in heartbeats.items() if heartbeat > now + MOST_AHEAD]:
        scores = [part for process in ahead for part in (repr(now), process)]
        _tidy(client, "ZADD", PROCESSES, "XX", "LT", *scores)


def _tidy(client: redis.Redis, *command: str) -> None:
    """Send a write that readers can do without: the user may only read, or the server refuses writes."""
    with suppress(redis.ResponseError):
        _pipeline(client, [command])


def _unchanged_reports(heartbeats: Mapping[str, float], server: str, now: float) -> dict[str, Report]:
    found = ((process, unchanged_report(process, heartbeat, server, now)) for process, heartbeat in heartbeats.items())
    return {process: report for process, report in found if report}


def read_reports(client: redis.Redis, processes: Collection[str]) -> tuple[float, list[Report]]:
    """The server's time in seconds, and the reports of the processes with these client ids, in one round trip."""
    commands: list[tuple[Any, ...]] = [("TIME",)]
    for process in processes:
        commands += [("ZSCORE", PROCESSES, process), _read_hash(report_key(process), MAX_FIELDS)]
    time, *replies = _pipeline(client, commands)
    now, heartbeats = _seconds(time), [number_of(heartbeat) or 0.0 for heartbeat in replies[::2]]
    _bring_back(client, dict(zip(processes, heartbeats, strict=True)), now)
    found = zip(processes, heartbeats, map(_fields, replies[1::2]), strict=True)
    return now, [parse_report(process, heartbeat, fields) for process, heartbeat, fields in found if fields]


def read_histories(client: redis.Redis, fields: Sequence[str]) -> tuple[float, list[ProcessHistory]]:
    """The server's time in seconds, and these fields of the latest histories, with the process's description."""
    time, members = _pipeline(client, [("TIME",), ("ZREVRANGE", HISTORIES, 0, MAX_HISTORIES - 1, "WITHSCORES")])
    now, wanted = _seconds(time), (*fields, "host", "pid", "role")
    ages = {plain_text(member): now - (number_of(score) or 0.0) for member, score in _pairs(members or [])}
    replies = _pipeline(client, [("HMGET", history_key(process), *wanted) for process in ages])
    texts = [
        {name: plain_text(text) for name, text in zip(wanted, reply or (), strict=False) if text is not None}
        for reply in replies
    ]
    return now, [ProcessHistory(*each, found) for each, found in zip(ages.items(), texts, strict=True) if found]


def read_states(client: redis.Redis, keys: Iterable[str]) -> dict[str, State]:
    """The locks among ``keys`` that are held, BATCH of them in each round trip."""
    wanted = list(keys)
    found = {}
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        # zip() takes the five replies for each key from one iterator, in turn.
        replies = iter(_pipeline(client, [command for key in batch for command in _read_lock(key)]))
        for key, held, pttl, queue, java, reserved in zip(batch, *[replies] * 5, strict=False):
            # The lock may expire between HSCAN and PTTL: the commands are not one transaction.
            if (holds := _holds(held)) and pttl != ABSENT:
                javas = [owner for owner in map(plain_text, java or ()) if owner != JAVA_QUEUE_ENTRY]
                waiters = *map(_waiting, queue or ()), *javas
                queues = bool(queue) + bool(java)
                found[key] = State(
                    holds, pttl, waiters[:MAX_PARTIES], len(waiters), queues=queues, has_reservations=bool(reserved)
                )
    return found | _count_waiters(client, {key: state for key, state in found.items() if state.waiting >= MAX_PARTIES})


def _count_waiters(client: redis.Redis, states: Mapping[str, State]) -> dict[str, State]:
    """The same states, with the full lengths of their queues."""
    commands = [
        command
        for key in states
        for java in [redisson_queue_key(key)]
        for command in (("ZCARD", queue_key(key)), ("LLEN", java), ("LINDEX", java, 0))
    ]
    replies = iter(_pipeline(client, commands) if commands else ())
    return {
        key: replace(state, waiting=(ours or 0) + (java or 0) - (plain_text(first or b"") == JAVA_QUEUE_ENTRY))
        for (key, state), ours, java, first in zip(states.items(), *[replies] * 3, strict=False)
    }


def count_present(client: redis.Redis, keys: Iterable[str]) -> int:
    """The number of keys that exist among these locks, their queues and sets of reservations; one command, or in a
    cluster one command for each key."""
    locks = [(key, queue_key(key), redisson_queue_key(key), reservations_key(key)) for key in keys]
    if not isinstance(client, ClusterClient):
        with suppress(ClusterCrossSlotError):  # a cluster behind one address
            return sum(_pipeline(client, [("EXISTS", *itertools.chain(*locks))]))
    return sum(_pipeline(client, [("EXISTS", *lock) for lock in locks]))


def read_number(client: redis.Redis, key: str) -> int | None:
    """The number under a key: the permits of a semaphore, or the count of a latch."""
    (reply,) = _pipeline(client, [("GET", key)])
    number = None if reply is None else number_of(plain_text(reply))
    return None if number is None else int(number)


def read_reservations(client: redis.Redis, sets: Collection[str]) -> tuple[float, list[tuple[str, str, int]]]:
    """The server's time in seconds, and the reservations that sorted sets name: key, value, and PTTL in ms."""
    time, *members = _pipeline(client, [("TIME",), *(("ZRANGE", each, 0, MAX_RESERVATIONS - 1) for each in sets)])
    reservations = sorted({plain_text(key) for found in members for key in found or ()})[:MAX_RESERVATIONS]
    replies = (
        _pipeline(client, [command for key in reservations for command in (("GET", key), ("PTTL", key))])
        if reservations
        else []
    )
    found = zip(reservations, replies[::2], replies[1::2], strict=True)
    return _seconds(time), [(key, plain_text(value), pttl) for key, value, pttl in found if value is not None]


def scan_keys(client: Any, prefix: str, kind: str = "hash") -> Iterator[str]:
    """The hashes (or keys of another ``kind``) whose names begin with ``prefix``; a key may come twice. Reads all keys
    of the server, or of all primaries of a cluster, in steps."""
    pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
    for server in client.primaries() if isinstance(client, ClusterClient) else [client]:
        yield from _scan(server, pattern, kind)


def _scan(server: Any, pattern: str, kind: str) -> Iterator[str]:
    cursor = 0
    for _ in range(SCAN_CALLS):  # while keys are added, a scan need not end
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", kind)
        cursor, keys = server.execute_command(*command, NEVER_DECODE=True)
        yield from map(plain_text, keys)
        if not cursor:
            return


def _pipeline(client: redis.Redis, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Run commands in one round trip. The reply is None if a key has the wrong type for its command."""
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
    # Unlike HGETALL, HSCAN ends after about ``limit`` fields; one call reads a smaller hash entirely.
    return "HSCAN", key, 0, "COUNT", limit


def _read_lock(key: str) -> Iterator[tuple[Any, ...]]:
    yield _read_hash(key, MAX_PARTIES)
    yield "PTTL", key
    yield "ZRANGE", queue_key(key), 0, MAX_PARTIES - 1
    yield "LRANGE", redisson_queue_key(key), 0, MAX_PARTIES - 1
    yield "EXISTS", reservations_key(key)


def _fields(reply: Any) -> Fields:
    return reply[1] if reply else {}


def _holds(reply: Any) -> dict[str, int]:
    # A read-write lock also has a field that names its mode.
    counts = {plain_text(name): number_of(plain_text(value)) for name, value in _fields(reply).items()}
    return {name: int(count) for name, count in counts.items() if count is not None and count >= 1}


def _pairs(reply: list[Any]) -> Iterable[tuple[Any, Any]]:
    """Members and scores: RESP3 returns pairs, RESP2 a flat list."""
    return reply if reply and isinstance(reply[0], list | tuple) else zip(reply[::2], reply[1::2], strict=True)


def _seconds(time: tuple[int, int]) -> float:
    return time[0] + time[1] / 1e6


def _waiting(member: bytes | str) -> str:
    """The owner of a member of a queue. A name that the caller chose follows the client id and a number."""
    owner = plain_text(member)
    named = _NAMED.fullmatch(owner)
    return named[1] if named else owner


# --- the server of an alias, or its nodes, of which a quorum must reply -----------------------------------------------

T = TypeVar("T")


def server_names(using: str) -> list[str]:
    """The servers of an alias as the settings name them, without passwords."""
    entries = [get_settings(alias).cache for alias in server_aliases(using)]
    return [redacted(url) for entry in entries for url in ([entry] if is_url(entry) else locations(_cache(entry)))]


def _cache(entry: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = django_settings.CACHES[entry]
    return found


class ServerReader:
    """An alias with one server. Raises redis-py's errors.

    A separate thread runs the commands: an interrupted caller would leave the mutexes of redis-py locked.
    """

    def __init__(self, using: str) -> None:
        self._clients = {using: get_client(using)}

    def _ask(self, question: Callable[[redis.Redis, str], T]) -> dict[str, T]:
        """The reply of each server to a question, which gets the client and the name of the server."""
        return threads.run_in_thread(self._replies, question)

    def _replies(self, question: Callable[[redis.Redis, str], T]) -> dict[str, T]:
        return {server: question(client, server) for server, client in self._clients.items()}

    def read_all_reports(self, is_refresh: bool = False) -> tuple[float, list[Report]]:
        return _merge_reports(self._ask(lambda client, server: read_all_reports(client, server, is_refresh)).values())

    def read_reports(self, processes: Collection[str]) -> tuple[float, list[Report]]:
        return _merge_reports(self._ask(lambda client, _: read_reports(client, processes)).values())

    def read_histories(self, *fields: str) -> tuple[float, list[ProcessHistory]]:
        """The latest histories: a node that was down lacks a part of them, and each node uses its own clock."""
        answers = [*self._ask(lambda client, _: read_histories(client, fields)).values()]
        now = answers[0][0]
        found = [each._replace(ahead=time - now) for time, histories in answers for each in histories]
        return now, [*{each.client: each for each in sorted(found, key=lambda each: -each.age)}.values()]

    def read_states(self, keys: Iterable[str]) -> dict[str, State]:
        [states] = self._ask(lambda client, _: read_states(client, keys)).values()
        return states

    def count_present(self, keys: Collection[str]) -> int:
        """The number of keys that exist among these locks and their queues; with NODES, the sum over all nodes."""
        return sum(self._ask(lambda client, _: count_present(client, keys)).values())

    def read_number(self, key: str) -> int | None:
        numbers = self._ask(lambda client, _: read_number(client, key)).values()
        return next((number for number in numbers if number is not None), None)

    def scan_keys(self, prefix: str) -> set[str]:
        return set().union(*self._ask(lambda client, _: set(scan_keys(client, prefix))).values())

    def read_reservations(self, keys: Collection[str] | None) -> tuple[float, list[tuple[str, str, int]]]:
        """The reservations of some locks, or of all locks (None), which reads every key of the server."""

        def read(client: redis.Redis, _: str) -> tuple[float, list[tuple[str, str, int]]]:
            # A scan for the names that reservations_key() makes, whatever follows.
            found = scan_keys(client, "rlock_places:", "zset") if keys is None else map(reservations_key, keys)
            return read_reservations(client, set(found))

        [reservations] = self._ask(read).values()
        return reservations


class NodesReader(ServerReader):
    """An alias with NODES. A node that fails is not asked again; raises QuorumNotReachedError if too few nodes
    remain."""

    def __init__(self, using: str, name: str) -> None:
        known = node_set(using)
        self._name = name
        self._clients = {node: node_client(alias) for node, alias in zip(known.names, known.aliases, strict=True)}
        self._errors: dict[str, Exception] = {}

    def _replies(self, question: Callable[[redis.Redis, str], T]) -> dict[str, T]:
        replies = {}
        for node, client in self._clients.items():
            if node not in self._errors:  # one timeout for each page, however often the page asks
                try:
                    replies[node] = question(client, node)
                except (redis.RedisError, OSError) as error:
                    self._errors[node] = error
        if len(replies) <= len(self._clients) // 2:
            raise QuorumNotReachedError(self._name, dict(self._errors), len(self._clients))
        return replies

    def read_states(self, keys: Iterable[str]) -> dict[str, State]:
        wanted = list(keys)
        found = self._ask(lambda client, _: read_states(client, wanted))
        known = {key: {node: states.get(key) for node, states in found.items()} for key in wanted}
        return {key: self._merge(by_node) for key, by_node in known.items() if any(by_node.values())}

    def read_reservations(self, keys: Collection[str] | None) -> tuple[float, list[tuple[str, str, int]]]:  # noqa: ARG002
        """None: with NODES, tasks have no reservations."""
        return 0.0, []

    def _merge(self, by_node: Mapping[str, State | None]) -> State:
        """The state that the nodes have together: the owner on most nodes, until a quorum no longer has that owner."""
        states = [state for state in by_node.values() if state is not None]
        votes = Counter(owner for state in states for owner in state.holds)
        most = max(votes.values())
        holds = {owner: max(state.holds.get(owner, 0) for state in states) for owner in votes if votes[owner] == most}
        leases = sorted(
            (math.inf if state.pttl == ENDLESS else state.pttl for state in states if holds.keys() & state.holds),
            reverse=True,
        )
        # With the leases in falling order, this is the one with which the owner loses its majority.
        left = leases[min(len(self._clients) // 2, len(leases) - 1)]
        nodes = {node: _owner(by_node[node]) if node in by_node else None for node in self._clients}
        return State(holds, ENDLESS if left == math.inf else int(left), (), 0, nodes)


@contextmanager
def asking(name: str, using: str) -> Iterator[ServerReader]:
    """The server or nodes of an alias, for reading. Errors in the block become LockUnavailableError for ``name``."""
    try:
        yield ServerReader(using) if get_settings(using).nodes is None else NodesReader(using, name)
    except LockUnavailableError:
        raise
    except SERVER_ERRORS as error:
        hide_secrets(error)
        raise unavailable(name, error) from error


def _merge_reports(answers: Iterable[tuple[float, list[Report]]]) -> tuple[float, list[Report]]:
    """All nodes get the same reports, but a node that was down may lack some of them."""
    now, reports = 0.0, dict[str, Report]()
    for time, found in answers:
        now = now or time
        for report in found:
            reports.setdefault(report.client, report)
    return now, list(reports.values())


def _owner(state: State | None) -> str:
    return next(iter(state.holds), "") if state is not None else ""


def listed_aliases(first: str | None = None) -> list[str]:
    """The aliases, without duplicates that show the same locks (server or nodes, prefix) as another alias or as
    ``first``.

    Aliases with an invalid entry are included: reading their locks raises ImproperlyConfigured.
    """
    aliases = get_aliases() if first is None else [first, *get_aliases()]
    return sorted({PLACES.value[alias]: alias for alias in reversed(aliases)}.values())
