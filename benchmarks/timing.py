"""CPU and wall time of pairs of calls: each round runs all contenders in turn, and figures are ratios within a round.

So a machine that is busy with other things slows all of them alike. CPU time is the client process's, its background
thread included.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

Pair = Callable[[], object]
AsyncPair = Callable[[], Awaitable[object]]


class Cost(NamedTuple):
    """Seconds for the pairs of one round."""

    cpu: float
    wall: float


Costs = dict[str, list[Cost]]


def time_sync(contenders: Mapping[str, Pair], rounds: int, pairs: int) -> Costs:
    costs: Costs = {name: [] for name in contenders}
    for number in range(-1, rounds):  # the first round warms up
        for name in rotated(list(contenders), number):
            cost = time_pairs(contenders[name], pairs)
            if number >= 0:
                costs[name].append(cost)
    return costs


def time_pairs(pair: Pair, pairs: int) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(pairs):
        pair()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


async def time_async(contenders: Mapping[str, AsyncPair], rounds: int, pairs: int) -> Costs:
    costs: Costs = {name: [] for name in contenders}
    for number in range(-1, rounds):
        for name in rotated(list(contenders), number):
            cost = await time_async_pairs(contenders[name], pairs)
            if number >= 0:
                costs[name].append(cost)
    return costs


async def time_async_pairs(pair: AsyncPair, pairs: int) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(pairs):
        await pair()
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


def rotated(names: list[str], number: int) -> list[str]:
    """Another one begins in each round."""
    start = number % len(names)
    return names[start:] + names[:start]


def ratios(costs: Costs, name: str, base: str, kind: Literal["cpu", "wall"] = "wall") -> list[float]:
    """What one took in each round, in times the base's of the same round."""
    return [getattr(mine, kind) / getattr(theirs, kind) for mine, theirs in zip(costs[name], costs[base], strict=True)]
