"""Processes for the benchmarks that need many: started once, then given one piece of work after another.

They are forked from a clean process that has imported everything, so that 64 of them start quickly and share nothing
with the parent.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.stage import configure
from django_rlock import RLock

ANSWER_WITHIN = 60.0
"""How long a piece of work may take by default, in seconds."""
_EXIT_WITHIN = 5.0

Answers = Callable[[], list[Any]]


class Crew:
    """``size`` processes that run module-level functions, each within a number of seconds.

    They have connected and taken a lock once, unless they are to be ``fresh``.
    """

    def __init__(self, size: int, preload: str, within: float, fresh: bool) -> None:
        self._within = within
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])
        self._members = [_start(context, fresh) for _ in range(size)]
        for _, pipe in self._members:
            self._answer(pipe)  # ready

    def start(self, function: Callable[..., Any], *arguments: Any, workers: int | None = None) -> Answers:
        """Make the first ``workers`` processes (None: all) run a function; call the result to get what each returns."""
        chosen = self._members[:workers]
        for _, pipe in chosen:
            pipe.send((function, arguments))
        return lambda: [self._answer(pipe) for _, pipe in chosen]

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Make all processes run a function, and wait for what each returns."""
        return self.start(function, *arguments)()

    def close(self) -> None:
        give_up_at = time.monotonic() + _EXIT_WITHIN
        for _, pipe in self._members:
            pipe.close()
        for process, _ in self._members:
            process.join(max(0.0, give_up_at - time.monotonic()))
            process.kill()

    def _answer(self, pipe: Connection) -> Any:
        if not pipe.poll(self._within):
            raise TimeoutError(f"A process of the benchmark has not answered in {self._within:g} s.")
        return pipe.recv()


@contextmanager
def crew(size: int, preload: str, *, within: float = ANSWER_WITHIN, fresh: bool = False) -> Iterator[Crew]:
    """A crew that ends with the block. ``preload`` is the module of the functions that it will run."""
    started = Crew(size, preload, within, fresh)
    try:
        yield started
    finally:
        started.close()


def _start(context: Any, fresh: bool) -> tuple[Any, Connection]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, fresh), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _work(pipe: Connection, fresh: bool) -> None:
    configure()
    if not fresh:
        with RLock("bench:ready"):  # first imports and connections are not measured
            pass
    answer: Any = None
    while True:
        pipe.send(answer)
        try:
            function, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):  # the benchmark has ended
            return
        answer = function(*arguments)
