"""Waiting for what nobody announces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], within: float = 20.0) -> T:
    """The condition's first true answer; AssertionError when there is none within so many seconds."""
    give_up_at = time.monotonic() + within
    while time.monotonic() < give_up_at:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError("The condition did not come true in time.")
