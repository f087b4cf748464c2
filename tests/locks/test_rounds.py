"""When the watchdog looks at its holds again."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from django_rlock import FairLock, RLock
from django_rlock._core.clock import monotonic
from django_rlock._transport.calls import MOST_JOINED
from django_rlock._transport.worker import RETRY, Schedule, worker
from django_rlock.locks.heartbeats import Heartbeats
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.locks.watchdog import AT_ONCE, LATE_AT_ONCE, PAUSE, Renewals
from django_rlock.settings import get_settings
from tests.background import no_threads
from tests.beside import beside, visit
from tests.eventually import eventually
from tests.faults.opcode_watch import watch_opcodes

SOON = 0.001


@pytest.fixture
def renewals() -> Iterator[Renewals]:
    """The rounds are the test's business, and so is their time."""
    with no_threads():
        yield worker("default").jobs[Renewals]


def only_hold(renewals: Renewals) -> Hold:
    (hold,) = HOLDS.snapshot()
    renewals.round(hold.since)
    return hold


def test_a_renewal_that_is_not_late_waits_for_others(renewals: Renewals) -> None:
    with RLock("stock:42"):
        hold = only_hold(renewals)
        now = hold.renew_at() - SOON
        assert renewals.round(now) == now + PAUSE * get_settings("default").watchdog_timeout


def test_one_that_is_due_after_the_pause_is_not_delayed(renewals: Renewals) -> None:
    with RLock("stock:42"):
        hold = only_hold(renewals)
        assert renewals.round(hold.since) == hold.renew_at()


def test_one_that_is_late_does_not_wait(renewals: Renewals) -> None:
    """A round does only so many at once; the rest come in the next."""
    with RLock("stock:42"):
        hold = only_hold(renewals)
        assert renewals._next_round(hold.renew_at() + SOON) == hold.renew_at()


def overdue(renewals: Renewals) -> tuple[list[Hold], float]:
    """More holds than a round takes, and a time at which all of them should have been renewed."""
    for number in range(LATE_AT_ONCE + AT_ONCE):
        RLock(f"stock:{number}").acquire()
    holds = HOLDS.snapshot()
    renewals.round(holds[0].since)
    return holds, holds[-1].renew_at() + get_settings("default").watchdog_timeout * PAUSE + SOON


def renewed_by(renewals: Renewals, holds: list[Hold], now: float) -> int:
    """The number of holds that a round renews."""
    before = [hold.deadline for hold in holds]
    renewals.round(now)
    return sum(hold.deadline > deadline for hold, deadline in zip(holds, before, strict=True))


def test_a_round_that_is_late_renews_many_holds_by_scripts_for_ten(renewals: Renewals, redis_client: Any) -> None:
    """With many greenlets, the next round begins when all of them have run."""

    def scripts() -> int:
        counts = redis_client.info("commandstats")
        return sum(counts.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))

    holds, late = overdue(renewals)
    assert renewed_by(renewals, holds, min(hold.renew_at() for hold in holds)) == AT_ONCE
    before = scripts()
    assert renewed_by(renewals, holds, late) == LATE_AT_ONCE
    assert scripts() - before == LATE_AT_ONCE / MOST_JOINED
    assert HOLDS.snapshot() == holds
    for hold in holds:
        RLock(hold.lock.name).release()


def test_the_worker_does_not_sleep_while_a_round_is_late(renewals: Renewals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep of no time, too, lets all greenlets run, and takes away the news that came meanwhile."""
    its = worker("default")

    def hear_news() -> float:
        its._event.set()
        return monotonic() - SOON

    monkeypatch.setattr(its, "round", hear_news)
    its._turn()
    assert its._event.is_set


def test_the_end_of_a_lease_that_is_not_renewed_is_seen_at_its_time(renewals: Renewals) -> None:
    with RLock("stock:42", lease_time=20):
        hold = only_hold(renewals)
        assert renewals.round(hold.deadline - SOON) == hold.deadline


def test_a_hold_that_is_overdue_when_the_watchdog_hears_of_it_is_renewed_at_once(renewals: Renewals) -> None:
    with RLock("stock:42"):
        holds = HOLDS.snapshot()
        assert renewed_by(renewals, holds, holds[0].renew_at() + SOON) == 1


def test_a_hold_whose_renewal_fails_is_renewed_by_the_next_round(
    renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise LookupError

    with RLock("stock:42"):
        hold = only_hold(renewals)
        now = hold.renew_at()
        with monkeypatch.context() as patched, pytest.raises(LookupError):
            patched.setattr(Renewals, "_renew", fail)
            renewals.round(now)
        assert renewed_by(renewals, [hold], now + RETRY) == 1


def test_a_hold_of_a_thread_that_hangs_is_renewed_by_the_next_thread(
    renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[int] = []
    renew = Renewals._renew

    async def hang(its: Renewals, due: list[Hold]) -> None:
        monkeypatch.setattr(Renewals, "_renew", renew)
        renewed.append(renewed_by(its, due, now + RETRY))
        await its._renew(due)

    with RLock("stock:42"):
        hold = only_hold(renewals)
        now = hold.renew_at()
        monkeypatch.setattr(Renewals, "_renew", hang)
        renewals.round(now)
        assert renewed == [1]


def test_no_hold_is_forgotten_while_two_threads_are_in_their_rounds(renewals: Renewals) -> None:
    """A thread that was replaced may be anywhere in its round."""
    locks = [RLock(f"stock:{number}") for number in range(3)]
    for number in itertools.count():
        for lock in locks:
            lock.acquire()
        holds = HOLDS.snapshot()
        renewals.round(holds[0].since)
        now = holds[-1].renew_at()
        is_beside_another = another_before_opcode(number, partial(renewals.round, now))
        renewals.round(now + RETRY)
        assert renewed_by(renewals, holds, max(hold.renew_at() for hold in holds)) == len(holds)
        for lock in locks:
            lock.release()
        if not is_beside_another:
            break


def test_a_heartbeat_that_fails_is_sent_by_the_next_round(
    renewals: Renewals, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the waiters of this process would lose their places in the queue."""

    async def fail(*_: object) -> None:
        raise LookupError

    its = worker("default").jobs[Heartbeats]
    redis_client.hset("rlock:stock:42", "another", 1)
    with beside(visit, FairLock("stock:42")):
        eventually(lambda: its.inbox)
        due = its.round(monotonic())
        with monkeypatch.context() as patched, pytest.raises(LookupError):
            patched.setattr(Heartbeats, "_heartbeat", fail)
            its.round(due)
        redis_client.delete("rlock:stock:42")
        assert its.round(due + RETRY) > due


LOOKING = {each.__code__ for each in (Renewals.round, Renewals._collect, Renewals._plan, Schedule.take)}


def another_before_opcode(number: int, action: Callable[[], object]) -> bool:
    """Act, and act once more before one of the opcodes that look for what is due; whether there are as many."""
    left = iter(range(number))
    has_acted = False

    def meet(frame: FrameType, has_called: bool) -> None:
        nonlocal has_acted
        if frame.f_code in LOOKING and not has_called and not has_acted and next(left, None) is None:
            has_acted = True
            action()

    watch_opcodes(meet)
    try:
        action()
    finally:
        watch_opcodes(None)
    return has_acted
