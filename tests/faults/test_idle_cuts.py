"""Firewalls and managed services that cut idle connections, after 5 or 10 minutes there, and after 0.3 s here."""

import pytest

from django_rlock._transport import async_connection, pool, subscriber
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import until_renewed
from tests.bindings import visit

IDLE = 0.3

pytestmark = pytest.mark.lengthy


@pytest.fixture(params=["closed", "forgotten"])
def cutting(request, proxy, monkeypatch):
    """In proportion: connections are doubted, and listeners ask, after a thirtieth of what they are cut after."""
    proxy.idle_limit = IDLE
    proxy.cuts_silently = request.param == "forgotten"
    for module in (pool, async_connection):
        monkeypatch.setattr(module, "DOUBTED_AFTER", IDLE / 30)
    monkeypatch.setattr(pool, "FRESH", IDLE / 300)
    monkeypatch.setattr(subscriber, "PING_AFTER", IDLE / 30)
    return proxy


async def idle(binding, proxy):
    """Wait until another connection is cut."""
    before = proxy.cuts
    await binding.until(lambda: proxy.cuts > before)


async def test_a_lock_is_taken_over_a_connection_that_was_cut(binding, kind, cutting):
    await visit(binding, kind("stock:42"))
    await idle(binding, cutting)
    assert await binding.acquire(kind("stock:42"), wait_time=2)
    await idle(binding, cutting)
    await binding.release(kind("stock:42"))


async def test_a_hold_is_renewed(binding, kind, cutting):
    async with binding.inside(kind("stock:42")) as lock:
        until_renewed(*HOLDS.snapshot())
        await idle(binding, cutting)
        until_renewed(*HOLDS.snapshot())
        lock.check()


async def test_a_waiter_is_woken(binding, kind, cutting):
    lock = kind("stock:42")
    await binding.acquire(lock)
    waiting = binding.start(visit, binding, kind("stock:42"))
    await binding.until(lambda: any(wait.expected for wait in WAITS.snapshot()))
    await idle(binding, cutting)
    await binding.release(lock)
    await binding.result(waiting)
