"""Other owners: what Redisson's tests do in another thread is here a thread or a task, by the face."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from django_rlock.locks import BaseLock


@asynccontextmanager
async def held_elsewhere(face: Any, lock: BaseLock) -> AsyncIterator[None]:
    """Another owner holds the lock during the block."""
    held, leave = threading.Event(), threading.Event()

    async def hold() -> None:
        async with face.inside(lock):
            held.set()
            await face.until(leave.is_set)

    holding = face.start(hold)
    try:
        await face.until(held.is_set)
        yield
    finally:
        leave.set()
        await face.result(holding)


async def visit(face: Any, lock: BaseLock) -> None:
    """Take the lock and give it back."""
    async with face.inside(lock):
        pass
