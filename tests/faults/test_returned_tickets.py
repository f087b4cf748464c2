"""A queue that has older tickets again, as after a failover to a replica that lagged: none of them costs a claim."""

import pytest

from django_rlock import FairLock, rlock
from django_rlock._core.clock import monotonic
from django_rlock._redis.keys import fair_keys, queue_key
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import listener
from django_rlock.locks.holds import HOLDS
from tests.background import until_renewed
from tests.bindings import visit
from tests.eventually import eventually

KEY = "rlock:stock:42"
CLAIM = 60.0
"""Seconds: longer than a test may take."""


@pytest.fixture(autouse=True)
def long_claims(settings):
    settings.RLOCK = {"default": {"CLAIM_TIME": CLAIM, "WATCHDOG_TIMEOUT": 300, "WAITER_ALIVE_TIME": 100}}


async def wait_in_the_queue(binding, redis_client) -> None:
    """Let this process wait for the lock once, so that it listens."""
    holder = FairLock("stock:42", owner="another")
    await binding.acquire(holder)
    waiting = binding.start(visit, binding, FairLock("stock:42"))
    await binding.until(lambda: redis_client.zcard(queue_key(KEY)) == 1)
    await binding.release(holder)
    await binding.result(waiting)


def bring_back(redis_client, *askers: str) -> None:
    """Tickets of an hour ago."""
    _, queue, alive = fair_keys(KEY)
    seconds, _ = redis_client.time()
    redis_client.zadd(queue, {asker: (seconds - 3600) * 1000000 + place for place, asker in enumerate(askers)})
    redis_client.zadd(alive, {client_id(): (seconds + 600) * 1000})


async def test_each_ticket_that_nobody_waits_for_is_declined_at_once(binding, redis_client):
    await wait_in_the_queue(binding, redis_client)
    async with binding.inside(FairLock("stock:42")):
        bring_back(redis_client, *[f"{client_id()}:{99000 + number}" for number in range(8)])
        bring_back(redis_client, f"{client_id()}/99000/an owner with a name")
    began = monotonic()
    await visit(binding, FairLock("stock:42", wait_time=CLAIM / 2))
    assert monotonic() - began < CLAIM / 4, "it waited for a claim"


async def test_the_ticket_of_an_owner_that_holds_the_lock_is_kept(binding, redis_client):
    """The new primary has lost the hold, and grants the lock to its owner."""
    await wait_in_the_queue(binding, redis_client)
    lock = FairLock("stock:42")
    async with binding.inside(lock):
        (hold,) = HOLDS.snapshot()
        redis_client.delete(KEY)
        bring_back(redis_client, hold.owner_id)
        assert not await binding.acquire(FairLock("stock:42", owner="another"), wait_time=0)
        assert redis_client.hgetall(KEY) == {hold.owner_id: "01"}
        channel = lock._kind.channel(lock)
        eventually(lambda: listener("default").channels[channel].confirmed)
        until_renewed(hold)
        assert redis_client.hexists(KEY, hold.owner_id)


async def test_another_alias_of_the_server_gives_nothing_back(binding, redis_client, settings):
    """Both aliases hear the message."""
    settings.RLOCK = settings.RLOCK | {"more": settings.RLOCK["default"] | {"CACHE": "default"}}
    await wait_in_the_queue(binding, redis_client)
    inside = []

    async def note(number: int) -> None:
        lock = rlock("stock:42", using="more", kind="fair")
        async with binding.inside(lock):
            inside.append(number)
            await binding.sleep(0)
            assert redis_client.hlen(KEY) == 1
            lock.check()

    holder = FairLock("stock:42", owner="another", using="more")
    await binding.acquire(holder)
    waiting = [binding.start(note, number) for number in range(4)]
    await binding.until(lambda: redis_client.zcard(queue_key(KEY)) == 4)
    await binding.release(holder)
    await binding.results(waiting)
    assert sorted(inside) == [0, 1, 2, 3]
