"""A breadth-first search through all states of a model, for the shortest way to one that must not be."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """What can happen, and what must not."""

    def start(self) -> S:
        """The state in which everything begins."""

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """What can happen next, each with the state after it."""

    def fault(self, state: S) -> str | None:
        """What is wrong with a state; None if nothing is."""


class Found(NamedTuple, Generic[S]):
    """How many states a search has visited, whether those are all, and the way to a fault, if there is one."""

    states: int
    is_complete: bool
    fault: str | None
    trace: list[str]


def search(model: Model[S], most: int | None = None) -> Found[S]:
    """Visit the states of a model until one has a fault, those with the fewest steps first; ``most`` is how many."""
    start = model.start()
    came_from: dict[S, tuple[S, str] | None] = {start: None}
    states = [start]  # the loop goes on to what is appended
    for state in states:
        if fault := model.fault(state):
            return Found(len(states), False, fault, _trace(came_from, state))
        if most is not None and len(states) > most:
            return Found(len(states), False, None, [])
        for step, after in model.steps(state):
            if after not in came_from:
                came_from[after] = state, step
                states.append(after)
    return Found(len(states), True, None, [])


def walk(model: Model[S], chance: Random, weigh: Callable[[str], float]) -> Iterator[tuple[str, S]]:
    """Go from state to state at random, until nothing can change any more; yields each step and the state after it.

    ``weigh`` says how likely a step is, beside others.
    """
    state = model.start()
    while steps := [(step, after) for step, after in model.steps(state) if after != state]:
        [(step, state)] = chance.choices(steps, [weigh(step) for step, _ in steps])
        yield step, state


def _trace(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    steps = []
    while (before := came_from[state]) is not None:
        state, step = before
        steps.append(step)
    return steps[::-1]
