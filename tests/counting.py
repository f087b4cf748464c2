"""What a call costs, counted in bytecodes of the package: the same figure on a busy machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import django_rlock
from tests.background import settle
from tests.faults.opcode_watch import watch_opcodes

PACKAGE = f"{Path(django_rlock.__file__).parent}"
WARM = 5
"""How often a call is run before it is counted: objects that are made once exist then."""


class Counter:
    """Counts the bytecodes of the package, and its frames, that this thread executes inside the block."""

    def __init__(self) -> None:
        self.bytecodes = self.frames = 0
        self._is_ours: dict[CodeType, bool] = {}

    def _meet(self, frame: FrameType, has_called: bool) -> None:
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            is_ours = self._is_ours[code] = code.co_filename.startswith(PACKAGE)
        if is_ours and not has_called:
            self.bytecodes += 1
            self.frames += frame.f_lasti == 0

    def __enter__(self) -> Counter:
        watch_opcodes(self._meet)
        return self

    def __exit__(self, *_: object) -> None:
        watch_opcodes(None)


def counted(call: Callable[[], object], warm: int = WARM) -> Counter:
    """Run a function, or a coroutine function in an event loop; count the cheapest of three runs. A process that was
    paused checks its connection and its background thread, too."""
    if iscoroutinefunction(call):
        return asyncio.run(_counted_in_asyncio(call, warm))
    for _ in range(warm):
        call()
    runs = []
    for _ in range(3):
        settle()
        with Counter() as counter:
            call()
        runs.append(counter)
    return min(runs, key=lambda run: run.bytecodes)


async def _counted_in_asyncio(call: Callable[[], Coroutine[Any, Any, object]], warm: int) -> Counter:
    for _ in range(warm):
        await call()
    runs = []
    for _ in range(3):
        await asyncio.to_thread(settle)
        with Counter() as counter:
            await call()
        runs.append(counter)
    return min(runs, key=lambda run: run.bytecodes)
