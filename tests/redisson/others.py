"""Other owners: what Redisson's tests do in another thread is here a thread or a task, by the binding."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from django_rlock.locks import BaseLock


@asynccontextmanager
async def held_elsewhere(binding: Any, lock: BaseLock) -> AsyncIterator[None]:
    """Another owner holds the lock during the block."""
    held, leave = threading.Event(), threading.Event()

    async def hold() -> None:
        async with binding.inside(lock):
            held.set()
            await binding.until(leave.is_set)

    holding = binding.start(hold)
    try:
        await binding.until(held.is_set)
        yield
    finally:
        leave.set()
        await binding.result(holding)
