"""What other threads do while a test goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from django_rlock.locks import BaseLock
from tests.eventually import PATIENCE, UNTIL_SERVED


@contextmanager
def beside(function: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Future[Any]]:
    """Another thread calls a function during the block. At its end the call has returned; its error is raised there."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(function(*args, **options))
        except BaseException as error:  # noqa: BLE001 - the outcome carries it
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield outcome
    outcome.result(UNTIL_SERVED)
    thread.join()


def in_another_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of a call in another thread."""
    with beside(function, *args, **options) as outcome:
        return outcome.result(PATIENCE)


@contextmanager
def held_beside(lock: BaseLock) -> Iterator[None]:
    """Another thread holds a lock during the block."""
    held, left = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            left.wait()

    with beside(hold):
        try:
            assert held.wait(PATIENCE)
            yield
        finally:
            left.set()


def visit(lock: BaseLock) -> None:
    """Take the lock and give it back."""
    with lock:
        pass
