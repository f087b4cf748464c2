"""PublishSubscribeTest, CountDownLatchPubSubTest and AsyncSemaphoreTest: how waiters of one process are notified."""

from __future__ import annotations

from functools import partial
from typing import Any

from django_rlock import RLock
from django_rlock._transport.calls import run_sync
from django_rlock._transport.registry import listener, sync_driver
from django_rlock.locks.holds import WAITS
from tests.bindings import held_elsewhere
from tests.eventually import UNTIL_SERVED, eventually

CHANNEL = "redisson_lock__channel:{rlock:lock}"


def test_subscribe_for_race_condition(redis_client, monkeypatch):
    """A waiter that leaves before the subscription is confirmed does not affect later waiters."""
    driver: Any = sync_driver("default")
    with monkeypatch.context() as hasty:
        hasty.setattr("django_rlock._transport.listener.CONFIRM_WITHIN", 0)
        for number in range(50):
            run_sync(driver.listen(f"{CHANNEL}:{number}", None)).close()
    for number in range(50):
        second = run_sync(driver.listen(f"{CHANNEL}:{number}", None))
        eventually(partial(redis_client.publish, f"{CHANNEL}:{number}", "0"))
        assert run_sync(second.wait(UNTIL_SERVED)) is True
        second.close()


async def test_cancelled_waiters_do_not_retain_queue_nodes(binding):
    """A wait that has ended leaves nothing behind in its process."""
    async with held_elsewhere(binding, RLock("lock")):
        for _ in range(20):
            assert not await binding.acquire(RLock("lock"), wait_time=0.001)
        lines = {name for name, channel in listener("default").channels.items() if channel.waiters()}
        assert CHANNEL not in lines
        assert WAITS.snapshot() == []
