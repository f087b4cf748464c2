"""When the watchdog looks at its holds again."""

from collections.abc import Iterator

import pytest

from django_rlock import RLock
from django_rlock._transport.worker import worker
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.locks.watchdog import PAUSE, Renewals
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


def test_the_end_of_a_lease_that_is_not_renewed_is_seen_at_its_time(renewals: Renewals) -> None:
    with RLock("stock:42", lease_time=20):
        hold = only_hold(renewals)
        assert renewals.round(hold.deadline - SOON) == hold.deadline
