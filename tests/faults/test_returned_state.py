"""A server that has older data again, as after a failover to a replica that lagged: what was released has returned.

Nobody renews it, so it ends with the lease that it had, as docs/guarantees.md says; until then it can be freed by
force. Returned tickets are in ``test_returned_tickets``.
"""

from collections.abc import Callable

import pytest

from django_rlock import FairLock, FencedLock, PermitExpirableSemaphore, ReadWriteLock, RLock
from django_rlock.locks import BaseLock
from tests.background import settle
from tests.bindings import elsewhere, visit

KEY = "rlock:stock:42"
LEASE = 600.0
"""Seconds: longer than a test may take."""
KINDS: dict[str, Callable[..., BaseLock]] = {
    "rlock": RLock,
    "fair": FairLock,
    "fenced": FencedLock,
    "read": lambda name, **options: ReadWriteLock(name, **options).read_lock,
    "write": lambda name, **options: ReadWriteLock(name, **options).write_lock,
}


@pytest.fixture(autouse=True)
def long_leases(settings):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": LEASE}}


def save(redis_client) -> None:
    for key in redis_client.keys("*"):
        redis_client.copy(key, f"saved:{key}")  # with what is left of its lease


def bring_back(redis_client) -> None:
    for key in redis_client.keys("saved:*"):
        redis_client.rename(key, key.removeprefix("saved:"))


@pytest.mark.parametrize("lease", [None, LEASE], ids=["renewed", "fixed lease"])
@pytest.mark.parametrize("name", KINDS)
async def test_a_lock_is_taken_until_its_lease_ends(binding, redis_client, name, lease):
    lock = KINDS[name]("stock:42", lease_time=lease)
    await binding.acquire(lock)
    save(redis_client)
    await binding.release(lock)
    bring_back(redis_client)
    left = redis_client.pttl(KEY)
    assert 0 < left <= LEASE * 1000
    excluded = KINDS["write" if name == "read" else name]("stock:42")
    assert not await binding.acquire(excluded, wait_time=0), "it is the hold of an earlier owner id"
    assert not await elsewhere(binding, excluded, "acquire", wait_time=0)
    settle()
    assert redis_client.pttl(KEY) <= left, "somebody renews it"
    await binding.call(lock, "force_release")
    await visit(binding, excluded)


async def test_a_permit_is_taken_until_its_lease_ends(binding, redis_client):
    semaphore = PermitExpirableSemaphore("seats")
    await binding.call(semaphore, "try_set_permits", 1)
    permit = await binding.call(semaphore, "acquire", lease_time=LEASE)
    save(redis_client)
    await binding.call(semaphore, "release", permit)
    bring_back(redis_client)
    assert await binding.call(semaphore, "acquire", wait_time=0) is None
    leases = "{rlock:seats}:timeout"
    redis_client.zunionstore(leases, {leases: 0})  # they end long ago
    assert await binding.call(semaphore, "available_permits") == 1
