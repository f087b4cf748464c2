"""How the interrupted thread makes its calls, and what interrupts it there."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from pathlib import Path
from types import CodeType
from typing import Any

from tests.faults.storm import Interruption, SoftLimitError

LOST_AFTER = 0.2
"""When a cancelled task that has not ended never will, in seconds."""
IN_ASYNCIO = str(Path(asyncio.__file__).parent), selectors.__file__


class Threads:
    """The blocking methods. What is awaited here never suspends."""

    interrupted_by: type[BaseException] = Interruption

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        from django_rlock._transport.calls import run_sync

        run_sync(body)

    def interrupt(self) -> None:
        raise Interruption

    def spares(self, code: CodeType) -> bool:
        """Whether nothing is interrupted there."""
        return False

    def enter_elsewhere(self, block: Any) -> None:
        """Enter and leave a block, in another thread than the interrupted one."""
        with block:
            pass

    async def enter(self, block: Any) -> None:
        with block:
            pass

    async def call(self, of: Any, method: str, *args: Any, **options: Any) -> Any:
        return getattr(of, method)(*args, **options)


class Tasks(Threads):
    """The methods with Django's ``a``, in a loop that ends when it is interrupted."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        try:
            self._loop.run_until_complete(body)
        except Interruption:
            self._end_loop()
            self._loop = asyncio.new_event_loop()
            raise

    def _end_loop(self) -> None:
        """As asyncio.run does, but for a task whose wake-up asyncio itself has lost: that never ends."""
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=LOST_AFTER))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def enter_elsewhere(self, block: Any) -> None:
        asyncio.run(self.enter(block))

    async def enter(self, block: Any) -> None:
        async with block:
            pass

    async def call(self, of: Any, method: str, *args: Any, **options: Any) -> Any:
        return await getattr(of, f"a{method}")(*args, **options)


class CancelledTasks(Tasks):
    """The task is cancelled, and notices it where it waits; its loop goes on."""

    interrupted_by = asyncio.CancelledError

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(body)
        self._loop.run_until_complete(self._task)

    def interrupt(self) -> None:
        self._loop.call_soon(self._task.cancel)


class LoggedTasks(Tasks):
    """The exception is none that ends a loop. If it comes inside a callback of the loop, that logs it and goes on, and
    the task must come to its end all the same. What it does inside asyncio is asyncio's own.
    """

    interrupted_by = SoftLimitError

    def __init__(self) -> None:
        super().__init__()
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._is_struck = False

    def run(self, body: Coroutine[Any, Any, None]) -> None:
        from django_rlock import QuorumNotReachedError

        self._is_struck = False
        try:
            self._loop.run_until_complete(body)
        except QuorumNotReachedError:
            # A brief attempt at a RedLock, where the interruption cost so many votes.
            if not self._is_struck:
                raise

    def interrupt(self) -> None:
        self._is_struck = True
        raise SoftLimitError

    def spares(self, code: CodeType) -> bool:
        return code.co_filename.startswith(IN_ASYNCIO)


BINDINGS: dict[str, type[Threads]] = {
    "threads": Threads,
    "tasks": Tasks,
    "cancelled": CancelledTasks,
    "logged": LoggedTasks,
}
