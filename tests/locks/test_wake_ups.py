"""Wake-ups: of the plain lock, one waiter of each process for each message, and none gets lost on one who has left; of
the fair lock, also by owners who know nothing of its queue."""

import asyncio
from typing import Any, cast

import pytest

from django_rlock import FairLock
from django_rlock._transport.calls import run_sync
from django_rlock._transport.listener import Listener
from django_rlock._transport.registry import async_driver, listener, sync_driver
from django_rlock.locks.holds import WAITS
from tests.background import settle
from tests.bindings import visit
from tests.eventually import UNTIL_SERVED, eventually

CHANNEL = "redisson_lock__channel:{stock:42}"


def test_thread_that_leaves_passes_its_wake_up_on(redis_client):
    driver: Any = sync_driver("default")
    first, second = (run_sync(driver.listen(CHANNEL, None)) for _ in range(2))
    redis_client.publish(CHANNEL, "0")
    eventually(lambda: not first._event._gate.locked())
    assert run_sync(second.wait(0.05)) is False
    first.close()
    assert run_sync(second.wait(UNTIL_SERVED)) is True
    second.close()


async def test_task_that_leaves_passes_its_wake_up_on(redis_client):
    driver: Any = async_driver("default")
    first, second = [await driver.listen(CHANNEL, None) for _ in range(2)]
    redis_client.publish(CHANNEL, "0")
    await asyncio.to_thread(eventually, lambda: first._event.is_set)
    first.close()
    assert await second.wait(UNTIL_SERVED) is True
    first, third = second, await driver.listen(CHANNEL, None)
    first.wake()
    first.close()  # before its loop has seen the wake-up
    assert await third.wait(UNTIL_SERVED) is True
    third.close()


def test_each_message_wakes_another_waiter(redis_client):
    driver: Any = sync_driver("default")
    waiters = [run_sync(driver.listen(CHANNEL, None)) for _ in range(3)]
    for _ in waiters:
        redis_client.publish(CHANNEL, "0")
    for waiter in waiters:
        assert run_sync(waiter.wait(UNTIL_SERVED)) is True
        waiter.close()


def test_wake_up_that_comes_early_is_kept(redis_client):
    driver: Any = sync_driver("default")
    waiter = run_sync(driver.listen(CHANNEL, "for me"))
    redis_client.publish(CHANNEL, "17 for me")
    redis_client.publish(CHANNEL, "18 for another")
    eventually(lambda: not waiter._event._gate.locked())
    assert run_sync(waiter.wait(UNTIL_SERVED)) is True
    assert waiter.ticket == "17"
    assert run_sync(waiter.wait(0.05)) is False
    waiter.close()


def test_channel_that_is_forgotten_while_a_waiter_comes_back_to_it(redis_client, monkeypatch):
    """The waiter comes between the look at the channel's lines and its end."""
    monkeypatch.setattr("django_rlock._transport.listener.KEEP_CHANNEL", -1.0)
    driver: Any = sync_driver("default")
    other = run_sync(driver.listen("another", None))
    run_sync(driver.listen(CHANNEL, None)).close()
    back: list[Any] = []
    forget = Listener._forget

    def come_back(self: Listener, channel: Any) -> bool:
        if channel.name == CHANNEL:
            back.append(driver.listen_if_subscribed(CHANNEL, None))
        return forget(self, channel)

    monkeypatch.setattr(Listener, "_forget", come_back)
    for subscriber in cast("Any", listener("default")).subscribers.values():
        subscriber.prune()
    eventually(lambda: back)
    (waiter,) = back
    assert run_sync(waiter.wait(UNTIL_SERVED)) is True, "it may have missed a message, and asks again"
    redis_client.publish(CHANNEL, "0")
    assert run_sync(waiter.wait(UNTIL_SERVED)) is True
    waiter.close()
    other.close()


def test_channel_that_nobody_waits_on_is_dropped(redis_client, monkeypatch):
    monkeypatch.setattr("django_rlock._transport.listener.KEEP_CHANNEL", -1.0)
    driver: Any = sync_driver("default")
    run_sync(driver.listen(CHANNEL, None)).close()
    for subscriber in cast("Any", listener("default")).subscribers.values():
        subscriber.prune()
    eventually(lambda: CHANNEL not in redis_client.pubsub_channels())
    waiter = run_sync(driver.listen(CHANNEL, None))
    redis_client.publish(CHANNEL, "0")
    assert run_sync(waiter.wait(UNTIL_SERVED)) is True
    waiter.close()


@pytest.fixture
def patient(settings):
    """No heartbeat repairs what is lost."""
    settings.RLOCK = {"default": {"CACHE": "default", "KEY_PREFIX": "", "WAITER_ALIVE_TIME": 600, "CLAIM_TIME": 500}}


@pytest.mark.parametrize("before", [False, True], ids=["while it listens", "before it listens"])
async def test_fair_waiter_hears_who_knows_nothing_of_its_queue(binding, patient, redis_client, monkeypatch, before):
    def free() -> None:
        redis_client.delete("stock:42")
        redis_client.publish(CHANNEL, "0")

    subscribe = Listener.subscribe

    def subscribe_late(self: Listener, channel: Any) -> None:
        if before and channel.name == CHANNEL:
            free()
        subscribe(self, channel)

    monkeypatch.setattr(Listener, "subscribe", subscribe_late)
    redis_client.hset("stock:42", "5eefbdd4-2a9c-4f0a-9a6f-8d0a5f1c3b11:31", 1)
    waiting = binding.start(visit, binding, FairLock("stock:42"))
    if not before:
        await binding.until(lambda: CHANNEL in redis_client.pubsub_channels())
        free()
    await binding.result(waiting)


async def test_fair_waiter_behind_another_needs_no_channel_of_the_lock(binding, patient, redis_client):
    """As ever among processes of ours: a hand-over costs no SUBSCRIBE and no broadcast."""
    lock = FairLock("stock:42")
    assert await binding.acquire(lock)
    waiting = binding.start(visit, binding, FairLock("stock:42"))
    await binding.until(WAITS.snapshot)
    await binding.until(lambda: redis_client.zcard("rlock_queue:{stock:42}"))
    settle()
    assert CHANNEL not in redis_client.pubsub_channels()
    await binding.release(lock)
    await binding.result(waiting)
