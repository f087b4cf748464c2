"""The graph of owners that wait for other owners; its circles are deadlocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TypeVar

from django_rlock.console.rows import Reported
from django_rlock.locks.infos import Deadlock, Edge, LockInfo

Marked = TypeVar("Marked", LockInfo, Reported | LockInfo)
Name = tuple[str, str]
"""Alias and name of a lock."""
MAX_SUSPECTS = 8
"""The number of suspected locks that a page reads again to confirm deadlocks: twice, with four commands each."""
_SOMEONE = ""
"""Stands for holders that no report names; they may wait for any lock."""


def edges(locks: Iterable[LockInfo]) -> list[Edge]:
    """The edges of the wait-for graph. A waiter that is not the first in the queue also waits for the lock's
    holders."""
    return [
        Edge(waiter=waiter, holder=holder, using=lock.using, name=lock.name)
        for lock in locks
        for waiter in lock.waiters
        for holder in lock.holders
        if waiter.actor != holder.actor
    ]


def find_deadlocks(
    locks: Sequence[Reported], read: Callable[[Sequence[Name]], list[LockInfo]], at_most: int = MAX_SUSPECTS
) -> tuple[Deadlock, ...]:
    """Find the deadlocks among ``locks``.

    ``read`` reads the current state of locks. A circle counts if two successive readings find it: while locks change
    hands, a single reading may combine states that never existed at the same time.
    """
    names = _suspects(locks)[:at_most]
    first = circles(edges(read(names))) if names else []
    if not first:
        return ()
    # Only a circle whose waits are all the same in both readings has existed as a whole.
    seen = {_links(circle) for circle in first}
    return tuple(circle for circle in circles(edges(read(names))) if _links(circle) in seen)


def mark(locks: Iterable[Marked], deadlocks: Iterable[Deadlock]) -> list[Marked | LockInfo]:
    """Return the same locks, with the deadlock of each lock that is part of one."""
    circle_of = {name: deadlock for deadlock in deadlocks for name in deadlock.locks}
    if not circle_of:
        return list(locks)
    found = ((lock, circle_of.get((lock.using, lock.name))) for lock in locks)
    return [lock.in_deadlock(circle) if circle else lock for lock, circle in found]


def circles(links: Iterable[Edge]) -> list[Deadlock]:
    """The circles in the graph; an owner is part of at most one of them."""
    by_waiter: dict[str, dict[str, Edge]] = defaultdict(dict)
    for edge in links:
        by_waiter[edge.waiter.actor][edge.holder.actor] = edge
    found = []
    while circle := _circle(by_waiter):
        # Begin at the smallest name, so that the result does not depend on the order of reading.
        along = [by_waiter[waiter][holder] for waiter, holder in pairwise(circle)]
        start = min(range(len(along)), key=lambda index: along[index].key)
        found.append(Deadlock((*along[start:], *along[:start])))
        for actor in circle[1:]:  # the first one is also the last one
            del by_waiter[actor]
    return found


def _circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """A list of owners, each of which waits for the next, and the last for the first; [] if no owners wait for each
    other in a circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def _suspects(locks: Sequence[Reported]) -> list[Name]:
    """The locks that may be part of a deadlock, beginning with those whose waiters and holders may both be part of a
    circle."""
    wanted = [lock for lock in locks if lock.waits]
    graph: dict[str, set[str]] = defaultdict(set)
    for lock in wanted:
        holders = lock.holding_actors or {_SOMEONE}
        for waiter in lock.waiting_actors:
            graph[waiter] |= holders - {waiter}
    if _SOMEONE in set().union(*graph.values()):
        # An unreported holder may be any of the owners that wait.
        graph[_SOMEONE] = {actor for lock in locks for actor in lock.holding_actors if actor in graph}
    # Locks outside it need not be read: no circle leads through them.
    knot = _knot(graph)
    found = []
    for lock in locks if _SOMEONE in knot else wanted:
        waited_for = not knot.isdisjoint(lock.waiting_actors)
        held = not knot.isdisjoint(lock.holding_actors)
        if waited_for or (held and _SOMEONE in knot):
            found.append((not (waited_for and held), not waited_for, lock.using, lock.name))
    return [(using, name) for *_, using, name in sorted(found)]


def _knot(graph: Mapping[str, set[str]]) -> set[str]:
    """The nodes on circles and between circles, which no topological order contains in either direction."""
    left = _unordered(graph)
    turned: dict[str, set[str]] = {node: set() for node in left}
    for node in left:
        for after in graph[node] & left:
            turned[after].add(node)
    return _unordered(turned)


def _unordered(graph: Mapping[str, set[str]]) -> set[str]:
    sorter = TopologicalSorter(graph)
    with suppress(CycleError):
        sorter.prepare()
    left = set(graph)
    while ready := sorter.get_ready():
        left.difference_update(ready)
        sorter.done(*ready)
    return left


def _links(circle: Deadlock) -> frozenset[tuple[str, str, str, str]]:
    return frozenset(edge.key for edge in circle.edges)
