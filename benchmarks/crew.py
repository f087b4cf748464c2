"""Processes for the benchmarks that need many: started once, then given one piece of work after another.

They are forked from a clean process that has imported everything, so that 64 of them start in a moment and own nothing
of the parent's.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.stage import configure
from django_rlock import RLock

ANSWER_WITHIN = 60.0
"""Seconds."""


Answers = Callable[[], list[Any]]


class Crew:
    """``size`` processes that run module-level functions."""

    def __init__(self, size: int, preload: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])
        self._members = [_start(context) for _ in range(size)]
        for _, pipe in self._members:
            _answer(pipe)  # ready

    def start(self, function: Callable[..., Any], *arguments: Any, workers: int | None = None) -> Answers:
        """Have the first ``workers`` processes (None: all) run a function; call the result for what each answers."""
        chosen = self._members[:workers]
        for _, pipe in chosen:
            pipe.send((function, arguments))
        return lambda: [_answer(pipe) for _, pipe in chosen]

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Have all processes run a function, and wait for what each answers."""
        return self.start(function, *arguments)()

    def close(self) -> None:
        for process, pipe in self._members:
            pipe.close()
            process.join(5)
            process.kill()


@contextmanager
def crew(size: int, preload: str) -> Iterator[Crew]:
    """A crew that ends with the block. ``preload`` is the module of the functions that it will run."""
    started = Crew(size, preload)
    try:
        yield started
    finally:
        started.close()


def _start(context: Any) -> tuple[Any, Connection]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(ANSWER_WITHIN):
        raise TimeoutError("A process of the benchmark does not answer.")
    return pipe.recv()


def _work(pipe: Connection) -> None:
    configure()
    with RLock("bench:ready"):  # what is imported and connected at first use is not what is measured
        pass
    answer: Any = None
    while True:
        pipe.send(answer)
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        answer = function(*arguments)
