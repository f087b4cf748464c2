"""What calls cost, counted in a process of its own: bytecodes and frames in Python, commands at the server."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from celery import Celery
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django_redis import get_redis_connection

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    LimitedLock,
    MultiLock,
    PermitExpirableSemaphore,
    ReadLock,
    RLock,
    Semaphore,
    SpinLock,
    WriteLock,
    distributed_lock,
    rlock,
)
from django_rlock._monitoring import reporter
from django_rlock.celery import LockedTask
from django_rlock.locks import forced
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import settle
from tests.beside import beside
from tests.counting import Call, bytecodes, frames, new_name, numbers, pair
from tests.eventually import PATIENCE, eventually

LOCKS = 100


def same_name() -> None:
    with rlock("stock:42"):
        pass


def nested() -> None:
    with rlock("stock:42"), rlock("stock:42"):
        pass


async def kept_in_asyncio() -> None:
    await kept.aacquire()
    await kept.arelease()


async def new_name_in_asyncio() -> None:
    async with rlock(f"stock:{next(numbers)}"):
        pass


@distributed_lock("stock:<number>")
def decorated(number: int) -> None:
    """Do nothing."""


@distributed_lock("stock:<number>")
def view(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(number)


app = Celery("costs", broker="memory://", backend="cache+memory://", set_as_current=False)


@app.task(base=LockedTask, shared=False, lock_key="stock:<number>")
def job(number: int) -> int:
    return number


@app.task(base=LockedTask, shared=False, lock_key="skipped", on_locked="skip", lock_wait_time=0)
def skipping_job() -> None:
    """Do nothing."""


def skip() -> None:
    """Another owner runs the task, for all of these calls."""
    skipping_job()


def permits() -> Call:
    semaphore = Semaphore("permits")
    semaphore.try_set_permits(1)
    return pair(semaphore)


def expirable_permit() -> Call:
    semaphore = PermitExpirableSemaphore("expirable")
    semaphore.try_set_permits(1)

    def call() -> None:
        permit = semaphore.acquire()
        assert permit is not None
        permit.release()

    return call


def latch() -> None:
    latch = CountDownLatch(f"latch:{next(numbers)}")
    latch.try_set_count(1)
    latch.count_down()
    assert latch.wait()


@contextmanager
def turn_taking() -> Iterator[Call]:
    """Two turns of a fair lock: this thread hands it to another one, and gets it back."""
    lock, ended = FairLock("turns"), Event()

    def take_turns() -> None:
        while not ended.is_set():
            with lock:
                eventually(lambda: WAITS or ended.is_set())

    def call() -> None:
        lock.release()
        lock.acquire()
        eventually(lambda: WAITS)

    lock.acquire()
    with beside(take_turns):
        eventually(lambda: WAITS)
        yield call
        ended.set()
        lock.release()


def refused() -> None:
    assert not RLock("held").acquire(wait_time=0)


def extension() -> None:
    held.extend(30)


def queried() -> None:
    assert held.locked()


kept, held = RLock("stock:42"), RLock("held", owner="another")
IN_PYTHON: dict[str, Call] = {
    "RLock, kept": pair(kept),
    "FairLock, kept": pair(FairLock("stock:42")),
    "ReadLock, kept": pair(ReadLock("stock:42")),
    "MultiLock of 100": pair(MultiLock(*[RLock(f"stock:{number}") for number in range(100)])),
    "with rlock(), the same name": same_name,
    "with rlock(), a new name": new_name,
    "with rlock(), nested": nested,
    "a decorated function": lambda: decorated(next(numbers)),
    "a decorated view": lambda: view(RequestFactory().get("/"), number=next(numbers)),
    "a LockedTask": lambda: job(next(numbers)),
    "RLock, kept, in asyncio": kept_in_asyncio,
    "async with rlock(), a new name": new_name_in_asyncio,
}
AT_THE_SERVER: dict[str, Call] = {
    "RLock": pair(RLock("stock:42")),
    "FairLock": pair(FairLock("stock:42")),
    "SpinLock": pair(SpinLock("stock:42")),
    "FencedLock": pair(FencedLock("stock:42")),
    "ReadLock": pair(ReadLock("stock:42")),
    "WriteLock": pair(WriteLock("stock:42")),
    "LimitedLock": pair(LimitedLock("limited:42", permits=2)),
    "MultiLock of 10": pair(MultiLock(*[RLock(f"stock:{number}") for number in range(10)])),
    "MultiLock of 10 readers": pair(MultiLock(*[ReadLock(f"stock:{number}") for number in range(10)])),
    "a re-entry": nested,
    "a refused acquire": refused,
    "extend()": extension,
    "locked()": queried,
    "a LockedTask": lambda: job(next(numbers)),
    "a LockedTask that is skipped": skip,
    "CountDownLatch": latch,
}


def in_python() -> dict[str, tuple[int, int]]:
    """Bytecodes and frames of each call. The background thread is awake: the first hold after a rest wakes it."""
    _rest()
    with RLock("held"):
        for call in IN_PYTHON.values():
            frames(call)
        return {name: (bytecodes(call, warm=0), frames(call, warm=0)) for name, call in IN_PYTHON.items()}


def late_bytes() -> float:
    """How many bytes it costs a hold that the watchdog has looked at it."""
    _rest()
    for number in range(LOCKS):
        RLock(f"stock:{number}").acquire()
    settle()
    holds = HOLDS.snapshot()
    tracemalloc.start()
    for hold in holds:
        hold.planned, hold.subscription, hold.suspect = hold.deadline, hold.owner, False
    return tracemalloc.get_traced_memory()[0] / LOCKS


def at_the_server() -> dict[str, tuple[int, int]]:
    """Round trips and commands of each call, those in scripts included."""
    _rest()
    calls = {**AT_THE_SERVER, "Semaphore": permits(), "PermitExpirableSemaphore": expirable_permit()}
    with held, RLock("skipped", owner="another"):
        found = {name: _commands(call) for name, call in calls.items()}
    with turn_taking() as two_turns:
        # About every fourth release of a fair lock looks for Java's clients, by the server's clock.
        return found | {"two turns of a FairLock": _commands(two_turns, runs=20)}


def make(name: str, times: int) -> None:
    """Make a call of AT_THE_SERVER, or a pair of redis-py's lock, several times."""
    _rest()
    call = AT_THE_SERVER.get(name) or pair(get_redis_connection().lock("theirs", timeout=30))
    for _ in range(times):
        call()


def _rest() -> None:
    """Nothing is reported, or listens, however slow this machine is."""
    reporter.MIN_AGE = forced.LISTEN_AFTER = PATIENCE


def _commands(call: Call, runs: int = 3) -> tuple[int, int]:
    """The fewest of some runs: the background may send a command of its own meanwhile."""
    return min(_run(call) for _ in range(runs))


def _run(call: Call) -> tuple[int, int]:
    for _ in range(3):
        call()
    settle()
    client = get_redis_connection()
    client.config_resetstat()
    call()
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()}
    sent = sum(calls.get(name, 0) for name in ("evalsha", "eval"))
    return sent, sum(calls.values()) - sent - calls["config|resetstat"]
