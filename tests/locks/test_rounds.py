"""When the watchdog looks at its holds again."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_rlock import RLock
from django_rlock._core.clock import monotonic
from django_rlock._transport.calls import MOST_JOINED
from django_rlock._transport.worker import worker
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.locks.watchdog import AT_ONCE, LATE_AT_ONCE, PAUSE, Renewals
from django_rlock.settings import get_settings
from tests.background import no_threads

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
