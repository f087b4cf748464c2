"""The holds of a process whose clocks are wrong: a lock of each kind, by a thread or by a task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from django_rlock import PermitExpirableSemaphore, ReadWriteLock, RLockError, rlock
from django_rlock._transport.calls import run_sync

Take = Callable[..., Coroutine[Any, Any, Any]]
held, look = threading.Event(), threading.Event()


def _locks(lease: float) -> list[tuple[Any, dict[str, Any]]]:
    """Locks, and what they are taken with."""
    fixed = {"lease_time": lease}
    PermitExpirableSemaphore("places").try_set_permits(2)
    kinds: Any = ("fair", "rlock", "spin", "fenced")
    return [
        *((rlock(f"stock:{kind}", kind=kind), {}) for kind in kinds),
        (rlock("stock:fixed"), fixed),
        (ReadWriteLock("stock:write").write_lock, {}),
        (ReadWriteLock("stock:read").read_lock, {}),
        (ReadWriteLock("stock:shared").read_lock, fixed),
        (rlock("stock:one", "stock:two"), {}),
        (rlock("stock:limited", permits=2), fixed),
        (PermitExpirableSemaphore("places"), {"renewed": True}),
        (PermitExpirableSemaphore("places"), fixed),
        (rlock("stock:renewed", using="nodes"), {}),
        (rlock("stock:fixed", using="nodes"), fixed),
    ]


def by_thread(lease: float) -> list[str]:
    """Take them all, and say of each what it says of itself when ``look`` is set: "held", "lost", or an error."""

    async def take(lock: Any, **options: Any) -> Any:
        return lock.acquire(**options)

    async def wait() -> None:
        look.wait()

    return run_sync(_hold_all(_locks(lease), take, wait))


def by_task(lease: float) -> list[str]:
    """The same for a task."""

    async def take(lock: Any, **options: Any) -> Any:
        return await lock.aacquire(**options)

    async def wait() -> None:
        await asyncio.to_thread(look.wait)

    return asyncio.run(_hold_all(_locks(lease), take, wait))


def enter_by_thread() -> bool:
    """Take a fair lock, however long that lasts, and give it back."""
    with rlock("stock:fair", kind="fair"):
        return True


def enter_by_task() -> bool:
    async def enter() -> bool:
        async with rlock("stock:fair", kind="fair"):
            return True

    return asyncio.run(enter())


async def _hold_all(locks: list[tuple[Any, dict[str, Any]]], take: Take, wait: Take) -> list[str]:
    found = []
    for lock, options in locks:
        taken = await take(lock, **options)
        assert taken
        found.append(lock if taken is True else taken)
    held.set()
    await wait()
    return [_says(each) for each in found]


def _says(lock: Any) -> str:
    if lock.lost:
        return "lost"
    try:
        lock.check()
    except RLockError as error:
        return repr(error)
    return "held"
