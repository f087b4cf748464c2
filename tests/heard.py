"""What the package's signals tell their receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.dispatch import Signal


@contextmanager
def heard(*signals: Signal, note: Callable[..., Any] = dict) -> Iterator[list[Any]]:
    """What a receiver of these signals notes during the block, in order; by default all that it is given."""
    told: list[Any] = []

    def receive(**given: Any) -> None:
        told.append(note(**given))

    for signal in signals:
        signal.connect(receive)
    try:
        yield told
    finally:
        for signal in signals:
            signal.disconnect(receive)


def lock_name(lock: Any, **_: Any) -> str:
    return str(lock.name)
