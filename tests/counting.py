"""What a call costs, counted in bytecodes or frames of the package: the same figure on a busy machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import django_rlock
from django_rlock import rlock
from tests.background import settle
from tests.faults.opcode_watch import watch_opcodes

PACKAGE = f"{Path(django_rlock.__file__).parent}"
WARM = 5
"""How often a call is run before it is counted: objects that are made once exist then."""
Call = Callable[[], Any]

numbers = count(100_000)


def pair(lock: Any) -> Call:
    def call() -> None:
        lock.acquire()
        lock.release()

    return call


def new_name() -> None:
    with rlock(f"stock:{next(numbers)}"):
        pass


class Bytecodes:
    """Counts the bytecodes of the package that this thread executes inside the block."""

    def __init__(self) -> None:
        self.count = 0
        self._is_ours: dict[CodeType, bool] = {}

    def _meet(self, frame: FrameType, has_called: bool) -> None:
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            is_ours = self._is_ours[code] = code.co_filename.startswith(PACKAGE)
        self.count += is_ours and not has_called

    def __enter__(self) -> Self:
        watch_opcodes(self._meet)
        return self

    def __exit__(self, *_: object) -> None:
        watch_opcodes(None)


class Frames:
    """Counts how often this thread enters a frame of the package inside the block: a coroutine's again at each step."""

    def __init__(self) -> None:
        self.count = 0

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        self.count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def bytecodes(call: Callable[[], object], warm: int = WARM) -> int:
    return counted(call, Bytecodes, warm)


def frames(call: Callable[[], object], warm: int = WARM) -> int:
    return counted(call, Frames, warm)


def counted(call: Callable[[], object], counter: type[Bytecodes | Frames], warm: int) -> int:
    """Run a function, or a coroutine function in an event loop; count the cheapest of three runs. A process that was
    paused checks its connection and its background thread, too."""
    if iscoroutinefunction(call):
        return asyncio.run(_counted_in_asyncio(call, counter, warm))
    for _ in range(warm):
        call()
    runs = []
    for _ in range(3):
        settle()
        with counter() as run:
            call()
        runs.append(run.count)
    return min(runs)


async def _counted_in_asyncio(
    call: Callable[[], Coroutine[Any, Any, object]], counter: type[Bytecodes | Frames], warm: int
) -> int:
    for _ in range(warm):
        await call()
    runs = []
    for _ in range(3):
        await asyncio.to_thread(settle)
        with counter() as run:
            await call()
        runs.append(run.count)
    return min(runs)
