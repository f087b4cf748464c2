"""A holder that chooses a shorter lease, and then does nothing more: its waiters don't sleep until the former end."""

import pytest

from django_rlock import FairLock, FencedLock, LimitedLock, PermitExpirableSemaphore, ReadLock, RLock, WriteLock
from tests.bindings import visit, waiting

LONG, SHORT = 600, 0.3


@pytest.fixture(autouse=True)
def patient(settings):
    """Heartbeats come later than a test has patience: only a message helps."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 600.0, "CLAIM_TIME": 500.0}}


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (FairLock, FencedLock),
        (RLock, FairLock),
        (WriteLock, WriteLock),
        (WriteLock, ReadLock),
        (ReadLock, WriteLock),
        (LimitedLock, LimitedLock),
    ],
)
async def test_waiter_learns_of_a_shorter_lease(binding, held, wanted):
    holder = held("stock:42", lease_time=LONG)
    await binding.acquire(holder)
    waiter = binding.start(visit, binding, wanted("stock:42"))
    await waiting(binding)
    await binding.call(holder, "extend", SHORT)
    await binding.result(waiter)


async def test_waiter_for_a_permit_learns_of_a_shorter_lease(binding):
    licences = PermitExpirableSemaphore("printers")
    await binding.call(licences, "try_set_permits", 1)
    permit = await binding.acquire(licences, lease_time=LONG)
    waiter = binding.start(binding.acquire, licences)
    await waiting(binding)
    await binding.call(licences, "update_lease_time", permit, SHORT)
    assert await binding.result(waiter)
