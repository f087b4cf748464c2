"""Where locks and reports are read: the one server of an alias, or its nodes, of which a quorum must answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from django.conf import settings as django_settings

from django_rlock import threads
from django_rlock.addresses import locations
from django_rlock.connections import SERVER_ERRORS, get_client, node_client
from django_rlock.drivers.quorum.nodes import node_set
from django_rlock.drivers.retrying import unavailable
from django_rlock.exceptions import LockUnavailableError, QuorumNotReachedError
from django_rlock.inspection import reading
from django_rlock.inspection.parsing import Report
from django_rlock.inspection.reading import State
from django_rlock.keys import places_key
from django_rlock.redaction import hide_secrets, redacted
from django_rlock.scripts import ENDLESS
from django_rlock.settings import get_settings, is_url, server_aliases

T = TypeVar("T")


def server_names(using: str) -> list[str]:
    """The servers of an alias as the settings name them, without passwords."""
    entries = [get_settings(alias).cache for alias in server_aliases(using)]
    return [redacted(url) for entry in entries for url in ([entry] if is_url(entry) else locations(_cache(entry)))]


def _cache(entry: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = django_settings.CACHES[entry]
    return found


class Server:
    """An alias with one server. Raises what redis-py does.

    A thread of its own asks: a caller that is interrupted would leave the mutexes of redis-py locked.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._client = get_client(using)

    def _ask(self, question: Callable[[redis.Redis], T]) -> T:
        return threads.elsewhere(question, self._client)

    def read_all_reports(self, is_refresh: bool = False) -> tuple[float, list[Report]]:
        return self._ask(lambda client: reading.read_all_reports(client, self._using, is_refresh))

    def read_reports(self, processes: Collection[str]) -> tuple[float, list[Report]]:
        return self._ask(lambda client: reading.read_reports(client, processes))

    def read_histories(self) -> tuple[float, dict[str, str]]:
        return self._ask(reading.read_histories)

    def read_states(self, keys: Iterable[str]) -> dict[str, State]:
        return self._ask(lambda client: reading.read_states(client, keys))

    def count_present(self, keys: Collection[str]) -> int:
        """How many there are of these locks and their queues; of NODES, on all together."""
        return self._ask(lambda client: reading.count_present(client, keys))

    def read_number(self, key: str) -> int | None:
        return self._ask(lambda client: reading.read_number(client, key))

    def scan_keys(self, prefix: str) -> set[str]:
        return self._ask(lambda client: set(reading.scan_keys(client, prefix)))

    def read_places(self, keys: Collection[str] | None) -> tuple[float, list[tuple[str, str, int]]]:
        """The places in the queues of some locks, or of all (None), which looks at every key of the server."""

        def read(client: redis.Redis) -> tuple[float, list[tuple[str, str, int]]]:
            found = reading.scan_keys(client, "rlock_places:", "zset") if keys is None else map(places_key, keys)
            return reading.read_places(client, set(found))

        return self._ask(read)


class Nodes(Server):
    """An alias with NODES. A node that fails is not asked again; QuorumNotReachedError when too few are left."""

    def __init__(self, using: str, name: str) -> None:
        known = node_set(using)
        self._name = name
        self._clients = {node: node_client(alias) for node, alias in zip(known.names, known.aliases, strict=True)}
        self._errors: dict[str, Exception] = {}

    def _ask_each(self, question: Callable[[redis.Redis], T]) -> dict[str, T]:
        return self._ask_by_name(lambda client, _: question(client))

    def _ask_by_name(self, question: Callable[[redis.Redis, str], T]) -> dict[str, T]:
        answers = threads.elsewhere(self._answers, question)
        if len(answers) <= len(self._clients) // 2:
            raise QuorumNotReachedError(self._name, dict(self._errors), len(self._clients))
        return answers

    def _answers(self, question: Callable[[redis.Redis, str], T]) -> dict[str, T]:
        answers = {}
        for node, client in self._clients.items():
            if node not in self._errors:
                try:
                    answers[node] = question(client, node)
                except (redis.RedisError, OSError) as error:
                    self._errors[node] = error
        return answers

    def read_all_reports(self, is_refresh: bool = False) -> tuple[float, list[Report]]:
        answers = self._ask_by_name(lambda client, node: reading.read_all_reports(client, node, is_refresh))
        return _merge_reports(answers.values())

    def read_reports(self, processes: Collection[str]) -> tuple[float, list[Report]]:
        return _merge_reports(self._ask_each(lambda client: reading.read_reports(client, processes)).values())

    def read_histories(self) -> tuple[float, dict[str, str]]:
        answers = list(self._ask_each(reading.read_histories).values())
        now, found = answers[0]
        for _, texts in answers[1:]:
            found = {**texts, **found}
        return now, found

    def read_states(self, keys: Iterable[str]) -> dict[str, State]:
        wanted = list(keys)
        found = self._ask_each(lambda client: reading.read_states(client, wanted))
        known = {key: {node: states.get(key) for node, states in found.items()} for key in wanted}
        return {key: self._merge(by_node) for key, by_node in known.items() if any(by_node.values())}

    def read_places(self, keys: Collection[str] | None) -> tuple[float, list[tuple[str, str, int]]]:  # noqa: ARG002
        """None: with NODES, tasks have no places."""
        return 0.0, []

    def count_present(self, keys: Collection[str]) -> int:
        return sum(self._ask_each(lambda client: reading.count_present(client, keys)).values())

    def read_number(self, key: str) -> int | None:
        numbers = self._ask_each(lambda client: reading.read_number(client, key)).values()
        return next((number for number in numbers if number is not None), None)

    def scan_keys(self, prefix: str) -> set[str]:
        return set().union(*self._ask_each(lambda client: set(reading.scan_keys(client, prefix))).values())

    def _merge(self, by_node: Mapping[str, State | None]) -> State:
        """The lock as the nodes have it together: of whom most of them have, until a quorum no longer has it."""
        states = [state for state in by_node.values() if state is not None]
        votes = Counter(owner for state in states for owner in state.holds)
        most = max(votes.values())
        holds = {owner: max(state.holds.get(owner, 0) for state in states) for owner in votes if votes[owner] == most}
        leases = sorted(
            (math.inf if state.pttl == ENDLESS else state.pttl for state in states if holds.keys() & state.holds),
            reverse=True,
        )
        left = leases[min(len(self._clients) // 2, len(leases) - 1)]
        nodes = {node: _owner(by_node[node]) if node in by_node else None for node in self._clients}
        return State(holds, ENDLESS if left == math.inf else int(left), (), 0, nodes)


@contextmanager
def asking(name: str, using: str) -> Iterator[Server]:
    """What to ask about the locks of an alias. Its errors become LockUnavailableError, which calls them ``name``."""
    try:
        yield Server(using) if get_settings(using).nodes is None else Nodes(using, name)
    except LockUnavailableError:
        raise
    except SERVER_ERRORS as error:
        hide_secrets(error)
        raise unavailable(name, error) from error


def _merge_reports(answers: Iterable[tuple[float, list[Report]]]) -> tuple[float, list[Report]]:
    """All nodes get the same; one that was down meanwhile lacks some."""
    now, reports = 0.0, dict[str, Report]()
    for time, found in answers:
        now = now or time
        for report in found:
            reports.setdefault(report.client, report)
    return now, list(reports.values())


def _owner(state: State | None) -> str:
    return next(iter(state.holds), "") if state is not None else ""
