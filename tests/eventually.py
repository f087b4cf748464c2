"""Waiting for what no one announces, and how long tests wait at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""How long a test waits for what must come before it fails, in seconds. Machines stall; pytest's limit is longer."""

UNTIL_SERVED = 20.0
"""The same where a lost wake-up is to be noticed: a waiter that missed its own looks again by itself in 30 seconds."""


def eventually(condition: Callable[[], T | Literal[False] | None], within: float = UNTIL_SERVED) -> T:
    """The condition's first true value; AssertionError when there is none within a number of seconds."""
    give_up_at = time.monotonic() + within
    while not (found := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError("The condition did not come true in time.")
        time.sleep(0.005)
    return found


def in_threads(*functions: Callable[[], object]) -> None:
    """Call functions at the same time, each in a thread of its own, and wait until they have returned."""
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
