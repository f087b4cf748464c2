"""No call looks at what is not its own: it executes as many bytecodes beside thousands of other holds and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from celery import Celery
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_rlock import FairLock, LockNotOwnedError, MultiLock, ReadLock, RLock, rlock
from django_rlock._core.clock import monotonic
from django_rlock._core.process import forget_settings
from django_rlock._monitoring import reporter
from django_rlock._transport.identity import Owner
from django_rlock._transport.listener import Channel, Listener
from django_rlock._transport.subscriber import ShardSubscriber, Subscriber
from django_rlock._transport.worker import worker
from django_rlock.celery import LockedTask
from django_rlock.locks import fair, forced
from django_rlock.locks.groups import MOST_TOGETHER
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.kinds import PLAIN, forced_channel
from django_rlock.locks.mutex import NAMED_CALLS
from django_rlock.locks.records import Hold, Wait, Work, context, key_of
from django_rlock.middleware import LockMiddleware
from tests.beside import held_beside
from tests.counting import Call, bytecodes, new_name, pair
from tests.eventually import PATIENCE

FEW, MANY = 10, 3_000
MORE = 1_000
"""How many bytecodes more are allowed beside many: a call may look at a dozen others that share a part of a table. A
pass over all of them takes ten times as many."""


class Waiter:
    """Of a wait that nobody wakes."""

    ticket = ""

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        return False

    def wake(self) -> None:
        """Do nothing."""

    def close(self, asked: bool = True) -> None:
        """Do nothing."""


@contextmanager
def beside(number: int) -> Iterator[None]:
    """Other owners, threads and requests of this process have a number of holds, waits and calls of named owners."""
    owner, work, waiters = Owner("another"), Work({"route": "another"}), []
    before = context.set(work)
    with ExitStack() as stack:
        for each in range(number):
            lock = FairLock(f"other:{each}")
            hold = Hold(key_of(lock, owner), lock, owner, "another", monotonic(), None, 3600.0)
            HOLDS.put(hold)
            stack.callback(HOLDS.remove, hold)
            waiters.append(Waiter())
            wait = Wait(FairLock(f"waited:{each}"), owner, "another", monotonic(), waiters[-1], "another")
            WAITS.add(wait)
            stack.callback(WAITS.remove, wait)
            call = NAMED_CALLS.call(key_of(FairLock(f"named:{each}"), owner))
            stack.enter_context(call.running)
            stack.enter_context(call)
        context.reset(before)
        yield


@pytest.fixture(autouse=True)
def young(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background threads take no notice of the others' holds and waits."""
    monkeypatch.setattr(reporter, "MIN_AGE", PATIENCE)
    monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)
    forget_settings()


# --- the calls --------------------------------------------------------------------------------------------------------


async def in_asyncio() -> None:
    async with rlock("stock:42"):
        pass


def waiting() -> None:
    """Another thread of the process holds the lock."""
    assert not FairLock("held").acquire(wait_time=0.001)


async def waiting_in_asyncio() -> None:
    assert not await FairLock("held").aacquire(wait_time=0.001)


def not_owned() -> None:
    with pytest.raises(LockNotOwnedError):
        FairLock("held").release()


def behind_a_named_call() -> None:
    """An earlier call of the named owner waits for the lock itself, so this call does not wait for it."""
    lock = FairLock("held", owner="order-7")
    owner: Any = lock._named_owner
    waiter = Waiter()
    wait = Wait(lock, owner, "order-7", monotonic(), waiter, "order-7")
    with (earlier := NAMED_CALLS.call(key_of(lock, owner))).running, earlier:
        WAITS.add(wait)
        try:
            assert not lock.acquire(blocking=False)
        finally:
            WAITS.remove(wait)


def respond(request: HttpRequest) -> HttpResponse:
    with rlock("stock:42"):
        return HttpResponse("done")


def request() -> None:
    LockMiddleware(respond)(RequestFactory().get("/"))


def forced_release() -> None:
    """A message says that an operator has freed a lock."""
    lock = FairLock("held")
    meant = worker("default").jobs[forced.ForcedReleaseWatcher]._meant({(forced_channel(lock), lock.key)})
    assert [hold.lock.name for hold in meant] == ["held"]


def unclaimed() -> None:
    """A message announces a grant that no call waits for, and the lock is held under that owner id."""
    (hold,) = [each for each in HOLDS.snapshot() if each.lock.name == "held"]
    fair._decline("default", f"{hold.owner_id} rlock:held")


def a_task() -> Call:
    app = Celery("beside", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(base=LockedTask, shared=False)
    def job(number: int) -> int:
        return number

    return lambda: job(4)


CALLS: dict[str, Callable[[], Call]] = {
    "a pair": lambda: pair(RLock("stock:42")),
    "a pair of a fair lock": lambda: pair(FairLock("stock:42")),
    "a pair of a named owner": lambda: pair(FairLock("stock:42", owner="order-7")),
    "a pair of readers": lambda: pair(ReadLock("stock:42")),
    "a pair of a MultiLock": lambda: pair(MultiLock(FairLock("stock:1"), FairLock("stock:2"))),
    "a new name": lambda: new_name,
    "a pair in asyncio": lambda: in_asyncio,
    "a wait": lambda: waiting,
    "a wait in asyncio": lambda: waiting_in_asyncio,
    "a release of another's lock": lambda: not_owned,
    "a call behind a named owner's wait": lambda: behind_a_named_call,
    "a request": lambda: request,
    "a task": a_task,
    "a forced release": lambda: forced_release,
    "a grant that nobody waits for": lambda: unclaimed,
}


@pytest.fixture
def held_elsewhere() -> Iterator[None]:
    """Another thread holds the lock "held"."""
    with held_beside(FairLock("held")):
        yield


@pytest.mark.usefixtures("held_elsewhere")
def test_no_call_costs_more_beside_thousands_of_holds_waits_and_named_calls() -> None:
    calls = {name: make() for name, make in CALLS.items()}

    def costs(number: int) -> dict[str, int]:
        with beside(number):
            return {name: bytecodes(call, warm=1) for name, call in calls.items()}

    costs(FEW)  # from the first wait on, the process listens to its server
    few, many = costs(FEW), costs(MANY)
    more = {name: many[name] - few[name] for name in calls}
    assert {name: figure for name, figure in more.items() if figure > MORE} == {}


def test_a_reply_to_unsubscribe_costs_the_same_beside_thousands_of_channels(redis_client: Any) -> None:
    def cost(kind: Any, number: int) -> int:
        listener: Any = Listener(lambda *_: subscriber)
        subscriber = kind.__new__(kind)
        subscriber._listener = listener
        listener.channels.update({name: Channel(name) for name in map(str, range(number))})
        word = "sunsubscribe" if kind is ShardSubscriber else "unsubscribe"
        return bytecodes(lambda: subscriber._deliver(word, "another", b""))

    for kind in Subscriber, ShardSubscriber:
        assert cost(kind, MANY) <= cost(kind, FEW) + MORE


def test_a_member_of_thousands_costs_no_more_than_one_of_a_hundred() -> None:
    def cost(number: int) -> float:
        return bytecodes(pair(MultiLock(*[RLock(f"stock:{each}") for each in range(number)])), warm=2) / number

    assert cost(MOST_TOGETHER[PLAIN] + 100) <= cost(50)


def test_a_job_that_holds_hundreds_of_locks_pays_no_more_for_the_next_one(redis_client: Any) -> None:
    def cost(number: int) -> int:
        held = [RLock(f"held:{each}") for each in range(number)]
        for lock in held:
            lock.acquire()
        found = bytecodes(pair(RLock("stock:42")))
        for lock in held:
            lock.release()
        return found

    with ThreadPool(1) as running:
        assert running.apply(cost, [300]) <= running.apply(cost, [FEW]) + MORE
