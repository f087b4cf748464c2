"""Where locks and reports are read: the one server of an alias, or its nodes, of which a quorum must answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import redis

from django_rlock.connections import get_client, node_pool
from django_rlock.drivers.quorum_site import site
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.inspection import reading
from django_rlock.inspection.reading import NO_EXPIRY, Report, State
from django_rlock.settings import get_settings

T = TypeVar("T")


class Server:
    """An alias with one server. Raises what redis-py does."""

    def __init__(self, using: str) -> None:
        self._client = get_client(using)

    def read_all_reports(self) -> tuple[float, list[Report]]:
        return reading.read_all_reports(self._client)

    def read_reports(self, processes: Collection[str]) -> tuple[float, list[Report]]:
        return reading.read_reports(self._client, processes)

    def read_states(self, keys: Iterable[str]) -> dict[str, State]:
        return reading.read_states(self._client, keys)

    def scan_keys(self, prefix: str) -> set[str]:
        return set(reading.scan_keys(self._client, prefix))


class Nodes(Server):
    """An alias with NODES. A node that fails is not asked again; QuorumNotReachedError when too few are left."""

    def __init__(self, using: str, name: str) -> None:
        known = site(using)
        self._name = name
        self._clients = {
            node: redis.Redis(connection_pool=node_pool(alias))
            for node, alias in zip(known.names, known.aliases, strict=True)
        }
        self._errors: dict[str, Exception] = {}

    def _ask(self, question: Callable[[redis.Redis], T]) -> dict[str, T]:
        answers = {}
        for node, client in self._clients.items():
            if node not in self._errors:
                try:
                    answers[node] = question(client)
                except (redis.RedisError, OSError) as error:
                    self._errors[node] = error
        if len(answers) <= len(self._clients) // 2:
            raise QuorumNotReachedError(self._name, dict(self._errors), len(self._clients))
        return answers

    def read_all_reports(self) -> tuple[float, list[Report]]:
        return _merge_reports(self._ask(reading.read_all_reports).values())

    def read_reports(self, processes: Collection[str]) -> tuple[float, list[Report]]:
        return _merge_reports(self._ask(lambda client: reading.read_reports(client, processes)).values())

    def read_states(self, keys: Iterable[str]) -> dict[str, State]:
        wanted = list(keys)
        found = self._ask(lambda client: reading.read_states(client, wanted))
        known = {key: {node: states.get(key) for node, states in found.items()} for key in wanted}
        return {key: self._merge(by_node) for key, by_node in known.items() if any(by_node.values())}

    def scan_keys(self, prefix: str) -> set[str]:
        return set().union(*self._ask(lambda client: set(reading.scan_keys(client, prefix))).values())

    def _merge(self, by_node: Mapping[str, State | None]) -> State:
        """The lock as the nodes have it together: of whom most of them have, until a quorum no longer has it."""
        states = [state for state in by_node.values() if state is not None]
        votes = Counter(owner for state in states for owner in state.holds)
        most = max(votes.values())
        holds = {owner: max(state.holds.get(owner, 0) for state in states) for owner in votes if votes[owner] == most}
        leases = sorted(
            (math.inf if state.pttl == NO_EXPIRY else state.pttl for state in states if holds.keys() & state.holds),
            reverse=True,
        )
        left = leases[min(len(self._clients) // 2, len(leases) - 1)]
        nodes = {node: _owner(by_node[node]) if node in by_node else None for node in self._clients}
        return State(holds, NO_EXPIRY if left == math.inf else int(left), (), 0, nodes)


def source(using: str, name: str) -> Server:
    """What to ask about the locks of an alias; ``name`` is for errors."""
    return Server(using) if get_settings(using).nodes is None else Nodes(using, name)


def _merge_reports(answers: Iterable[tuple[float, list[Report]]]) -> tuple[float, list[Report]]:
    """All nodes are told the same; one that was down meanwhile lacks some."""
    now, reports = 0.0, dict[str, Report]()
    for time, told in answers:
        now = now or time
        for report in told:
            reports.setdefault(report.client, report)
    return now, list(reports.values())


def _owner(state: State | None) -> str:
    return next(iter(state.holds), "") if state is not None else ""
