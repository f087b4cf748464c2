"""A waiter of a FairLock that is woken by the message of its grant holds the lock without another command."""

from typing import Any

import pytest

from django_rlock import FairLock, MultiLock
from django_rlock._core.clock import has_jumped, monotonic
from django_rlock._redis.keys import queue_key
from django_rlock.locks import attempt
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from tests.background import look_at

KEY = "rlock:stock:42"
CLAIM = 100.0
"""Seconds, so that half of it is more than any test takes on a busy machine."""
LEAST_LEFT = 20.0
"""Instead of a second, which would be the lease of a test."""


@pytest.fixture(autouse=True)
def long_claims(settings):
    settings.RLOCK = {"default": {"CLAIM_TIME": CLAIM, "WAITER_ALIVE_TIME": 200, "WATCHDOG_TIMEOUT": 300}}


async def visit(binding, redis_client, lock, inside, meanwhile=None) -> Any:
    """What ``inside`` returns in an owner that waited for the lock, was handed it, and releases it."""

    async def take() -> Any:
        assert await binding.acquire(lock)
        try:
            return await inside()
        finally:
            if any(each.lost is None for each in HOLDS.snapshot()):
                await binding.release(lock)

    holder = FairLock("stock:42")
    await binding.acquire(holder)
    visitor = binding.start(take)
    await binding.until(lambda: redis_client.zcard(queue_key(KEY)) == 1)
    if meanwhile is not None:
        await meanwhile()
    await binding.release(holder)
    result = await binding.result(visitor)
    assert not redis_client.exists(KEY, queue_key(KEY))
    return result


async def is_unconfirmed() -> bool:
    return the_hold().is_unconfirmed


def the_hold() -> Hold:
    (hold,) = HOLDS.snapshot()
    return hold


async def test_its_deadline_counts_from_the_command_that_queued_it(binding, redis_client):
    async def inside() -> None:
        hold = the_hold()
        assert hold.is_unconfirmed
        assert hold.deadline <= released_at[0] + CLAIM  # it was queued before
        assert redis_client.pttl(KEY) / 1000 > hold.deadline - monotonic() - 0.002  # both count whole ms
        assert hold.renewed
        assert not lock.lost
        lock.check()
        assert hold.since >= released_at[0]
        assert hold.renew_at() < (hold.since + hold.deadline) / 2
        assert 0 < await binding.call(lock, "remaining_lease") <= CLAIM

    async def note() -> None:
        released_at.append(monotonic())

    lock = FairLock("stock:42")
    released_at: list[float] = []
    await visit(binding, redis_client, lock, inside, note)


async def test_its_renewal_makes_a_lease_of_it(binding, redis_client):
    async def inside() -> None:
        hold = the_hold()
        assert hold.is_unconfirmed
        deadline = hold.deadline
        hold.runs_for *= 2  # it is due now
        look_at(hold)
        await binding.until(lambda: hold.deadline > deadline + CLAIM)
        assert not the_hold().is_unconfirmed
        assert redis_client.pttl(KEY) > 1000 * CLAIM

    await visit(binding, redis_client, FairLock("stock:42"), inside)


async def test_it_may_be_entered_again_and_left(binding, redis_client):
    async def inside() -> None:
        assert the_hold().is_unconfirmed
        assert await binding.acquire(lock)
        assert redis_client.hvals(KEY) == ["2"]
        assert not the_hold().is_unconfirmed
        await binding.release(lock)
        assert redis_client.hvals(KEY) == ["1"]
        assert redis_client.pttl(KEY) > 1000 * CLAIM

    lock = FairLock("stock:42")
    await visit(binding, redis_client, lock, inside)


@pytest.mark.parametrize("lease", [20, 600])
async def test_it_may_be_extended(binding, redis_client, lease):
    async def inside() -> None:
        assert the_hold().is_unconfirmed
        await binding.call(lock, "extend", lease)
        assert the_hold().lease == the_hold().runs_for == lease
        assert (redis_client.pttl(KEY) > 1000 * CLAIM) == (lease > CLAIM)

    lock = FairLock("stock:42")
    await visit(binding, redis_client, lock, inside)


async def test_a_member_of_a_multilock_may_be_one(binding, redis_client):
    async def inside() -> None:
        assert [hold.is_unconfirmed for hold in HOLDS.snapshot() if hold.lock.name == "stock:42"] == [True]
        assert redis_client.exists("rlock:stock:43")

    await visit(binding, redis_client, MultiLock(FairLock("stock:42"), FairLock("stock:43")), inside)
    assert not redis_client.exists("rlock:stock:43")


# --- when it asks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"CLAIM_TIME": LEAST_LEFT - 1, "WAITER_ALIVE_TIME": 60}, {}),
        ({"CLAIM_TIME": LEAST_LEFT, "WAITER_ALIVE_TIME": 60, "WATCHDOG_TIMEOUT": LEAST_LEFT - 1}, {}),
        ({}, {"lease_time": 30}),
        ({}, {"owner": "order 7"}),
    ],
    ids=["short claim", "short lease", "fixed lease", "name"],
)
async def test_it_asks_where_it_is_told_too_little(binding, redis_client, settings, monkeypatch, options, arguments):
    monkeypatch.setattr(attempt, "LEAST_LEFT", LEAST_LEFT)
    settings.RLOCK = {"default": options}
    assert not await visit(binding, redis_client, FairLock("stock:42", **arguments), is_unconfirmed)


async def test_it_asks_when_the_machine_may_have_been_paused(binding, redis_client, monkeypatch):
    """The clock of the deadlines may have stood still meanwhile, which a jump of the wall clock reveals."""
    jumped: list[bool] = []

    async def pause() -> None:
        jumped.append(True)

    monkeypatch.setattr(attempt, "has_jumped", lambda clocks: bool(jumped) or has_jumped(clocks))
    assert not await visit(binding, redis_client, FairLock("stock:42"), is_unconfirmed, pause)
