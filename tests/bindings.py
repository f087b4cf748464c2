"""One test body for both bindings: ``async def test_x(binding)`` runs as blocking calls, and as an asyncio task.

Under the blocking binding nothing in the body suspends, so it is run as the package itself runs its flows. Import
``binding``, ``kind`` and ``pytest_pyfunc_call`` into the conftest of a folder whose tests use them.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any

import pytest

from django_rlock import FairLock, RLock
from django_rlock._core.clock import monotonic
from django_rlock._monitoring import reporter
from django_rlock._transport.calls import run_sync
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import forget_clean_up
from tests.eventually import UNTIL_SERVED

Body = Callable[..., Coroutine[Any, Any, Any]]


class BlockingBinding:
    """The methods without a prefix; other owners are threads."""

    name = "sync"

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return run_sync(body)

    async def call(self, lock: BaseLock, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(lock, method)(*args, **kwargs)

    async def acquire(self, lock: BaseLock, *args: Any, **kwargs: Any) -> bool:
        return lock.acquire(*args, **kwargs)

    async def release(self, lock: BaseLock) -> None:
        lock.release()

    def inside(self, lock: BaseLock) -> _Block:
        return _Block(lock)

    def start(self, body: Body, *args: Any) -> Future[Any]:
        """Run a body as another owner, at the same time."""
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                outcome.set_result(run_sync(body(*args)))
            except BaseException as error:  # noqa: BLE001 - the outcome carries it
                outcome.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return outcome

    async def result(self, outcome: Future[Any]) -> Any:
        return outcome.result(UNTIL_SERVED)

    async def results(self, outcomes: Iterable[Any]) -> list[Any]:
        return [await self.result(each) for each in outcomes]

    async def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def until(self, condition: Callable[[], Any], within: float = UNTIL_SERVED) -> Any:
        """Wait for a condition that no one announces."""
        give_up_at = monotonic() + within
        while not (found := condition()):
            if monotonic() > give_up_at:
                raise AssertionError("The condition did not come true in time.")
            await self.sleep(0.005)
        return found


class TaskBinding(BlockingBinding):
    """The methods with Django's ``a``; other owners are tasks."""

    name = "async"

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(body)

    async def call(self, lock: BaseLock, method: str, *args: Any, **kwargs: Any) -> Any:
        name = "await_" if method == "wait" else f"a{method}"  # "await" is a keyword
        return await getattr(lock, name)(*args, **kwargs)

    async def acquire(self, lock: BaseLock, *args: Any, **kwargs: Any) -> bool:
        return await lock.aacquire(*args, **kwargs)

    async def release(self, lock: BaseLock) -> None:
        await lock.arelease()

    def inside(self, lock: BaseLock) -> Any:
        return lock

    def start(self, body: Body, *args: Any) -> Any:
        return asyncio.ensure_future(body(*args))

    async def result(self, outcome: Any) -> Any:
        return await asyncio.wait_for(outcome, UNTIL_SERVED)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def elsewhere(binding: Any, lock: BaseLock, method: str, *args: Any, **kwargs: Any) -> Any:
    """What a method of the lock returns to another owner: a thread or a task, by the binding."""
    return await binding.result(binding.start(partial(binding.call, lock, method, *args, **kwargs)))


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


async def visit(binding: Any, lock: BaseLock) -> None:
    """Take the lock and give it back."""
    async with binding.inside(lock):
        pass


async def visit_alone(binding: Any, lock: BaseLock, inside: list[object]) -> None:
    """The same, with nobody else inside of those who note in this list that they are."""
    async with binding.inside(lock):
        inside.append(lock)
        assert len(inside) == 1, "two inside at once"
        await binding.sleep(0)
        inside.clear()


async def waiting(binding: Any, number: int = 1) -> None:
    """Wait until so many owners do; see ``waits``."""
    await binding.until(lambda: waits() == number)


def waits() -> int:
    """How many owners wait, each after a first try that failed."""
    return sum(wait.expected for wait in WAITS.snapshot())


class _Block:
    """A blocking ``with`` in the clothes of an ``async with``."""

    def __init__(self, lock: BaseLock) -> None:
        self.lock = lock

    async def __aenter__(self) -> BaseLock:
        return self.lock.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.__exit__(kind, error, trace)


@pytest.fixture(params=[BlockingBinding, TaskBinding], ids=["sync", "async"])
def binding(request: pytest.FixtureRequest) -> BlockingBinding:
    """Through which of the two bindings the test's body goes."""
    return request.param()


@pytest.fixture(params=[FairLock, RLock], ids=lambda each: each.kind)
def kind(request: pytest.FixtureRequest) -> type[BaseLock]:
    """The two kinds of lock that the others are made of."""
    return request.param


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a hold or a wait to the next one; those that lose locks on purpose take them off the books."""
    yield
    forget_clean_up()
    now = monotonic()  # whether or not the watchdog has told by now of the leases that have ended
    left = [hold for hold in HOLDS.snapshot() if not hold.is_lost(now)] + WAITS.snapshot()
    told = [f"{type(each).__name__} of {each.lock!r} by {each.caller_name}, {each.owner_id}" for each in left]
    HOLDS.clear()
    WAITS.clear()
    assert told == [], told


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the server are those of locks, however long a machine stalls while it holds some."""
    monkeypatch.setattr(reporter, "MIN_AGE", 3600.0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test through its binding, or in asyncio if it has none."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    arguments.get("binding", TaskBinding()).run(pyfuncitem.obj(**arguments))
    return True
