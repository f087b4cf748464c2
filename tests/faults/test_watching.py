"""The tools of these tests interrupt what they watch, and not what the garbage collector calls meanwhile."""

import gc
import sys
import types
from collections.abc import Callable, Generator
from functools import partial

import pytest

from tests.faults.interrupting import at_call
from tests.faults.opcode_watch import watch_opcodes


@types.coroutine
def suspend() -> Generator[None]:
    yield


async def wait(ended: list[str]) -> None:
    try:
        await suspend()
    finally:
        ended.append("collected")


def leave_garbage(ended: list[str]) -> None:
    waiting = wait(ended)
    waiting.send(None)
    circle: list[object] = [waiting]
    circle.append(circle)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (partial(watch_opcodes, lambda *_: None), partial(watch_opcodes, None)),
        (partial(at_call, 0, lambda: None), partial(sys.setprofile, None)),
    ],
    ids=["opcodes", "calls"],
)
def test_no_garbage_is_collected_meanwhile(begin: Callable[[], None], end: Callable[[], None]) -> None:
    ended: list[str] = []
    thresholds = gc.get_threshold()
    leave_garbage(ended)
    begin()
    try:
        gc.set_threshold(1)
        made = [[each] for each in range(100)]
        assert made
        found = [*ended]
    finally:
        end()
        gc.enable()
        gc.set_threshold(*thresholds)
    gc.collect()
    assert (found, ended) == ([], ["collected"])
