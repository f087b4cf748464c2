"""CPU and wall time of pairs of calls: each round runs all contenders in turn, and figures are ratios within a round.

So a machine that is busy with other work slows all of them equally. CPU time is that of the client process, including
its background thread.
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
Kind = Literal["cpu", "wall"]
KINDS: tuple[Kind, ...] = ("cpu", "wall")


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
    """The names, with another one first in each round."""
    start = number % len(names)
    return names[start:] + names[:start]


def ratios(costs: Costs, name: str, base: str, kind: Kind = "wall") -> list[float]:
    """The time of one contender in each round, relative to the base's in the same round."""
    return [getattr(mine, kind) / getattr(theirs, kind) for mine, theirs in zip(costs[name], costs[base], strict=True)]
