"""Wake-ups of the plain lock: one waiter of each process for each message, and none gets lost on one who has left."""

import asyncio
from typing import Any

from django_rlock.drivers import background, pubsub
from django_rlock.drivers.aio import async_driver
from django_rlock.drivers.base import run_sync
from django_rlock.drivers.subscriber import Subscriber
from django_rlock.drivers.sync import sync_driver
from tests.background import until_round_ends
from tests.eventually import eventually

CHANNEL = "redisson_lock__channel:{stock:42}"


def test_thread_that_leaves_passes_its_wake_up_on(redis_client):
    driver: Any = sync_driver("default")
    first, second = (run_sync(driver.listen(CHANNEL, None)) for _ in range(2))
    redis_client.publish(CHANNEL, "0")
    eventually(lambda: not first._gate.locked())
    assert run_sync(second.wait(0.05)) is False
    first.close()
    assert run_sync(second.wait(5)) is True
    second.close()


def test_task_that_leaves_passes_its_wake_up_on(redis_client):
    async def body() -> None:
        driver: Any = async_driver("default")
        first, second = [await driver.listen(CHANNEL, None) for _ in range(2)]
        redis_client.publish(CHANNEL, "0")
        await first._event.wait()
        first.close()
        assert await second.wait(5) is True
        first, third = second, await driver.listen(CHANNEL, None)
        first.wake()
        first.close()  # before its loop has seen the wake-up
        assert await third.wait(5) is True
        third.close()

    asyncio.run(body())


def test_each_message_wakes_another_waiter(redis_client):
    driver: Any = sync_driver("default")
    waiters = [run_sync(driver.listen(CHANNEL, None)) for _ in range(3)]
    for _ in waiters:
        redis_client.publish(CHANNEL, "0")
    for waiter in waiters:
        assert run_sync(waiter.wait(5)) is True
        waiter.close()


def test_wake_up_that_comes_early_is_kept(redis_client):
    driver: Any = sync_driver("default")
    waiter = run_sync(driver.listen(CHANNEL, "for me"))
    redis_client.publish(CHANNEL, "for me")
    redis_client.publish(CHANNEL, "for another")
    eventually(lambda: not waiter._gate.locked())
    assert run_sync(waiter.wait(5)) is True
    assert run_sync(waiter.wait(0.05)) is False
    waiter.close()


def test_channel_that_is_dropped_while_somebody_comes_back_to_it(redis_client, monkeypatch):
    """The server is told to drop it last."""
    monkeypatch.setattr(background, "_jobs", [])  # the background thread prunes as well
    assert until_round_ends()
    monkeypatch.setattr(pubsub, "KEEP_CHANNEL", -1.0)
    driver: Any = sync_driver("default")
    other = run_sync(driver.listen("another", None))
    run_sync(driver.listen(CHANNEL, None)).close()
    back: list[Any] = []

    def unsubscribe(subscriber: Subscriber, channels: list[str]) -> None:
        back.append(run_sync(driver.listen(CHANNEL, None)))
        drop(subscriber, channels)

    drop = Subscriber.unsubscribe
    monkeypatch.setattr(Subscriber, "unsubscribe", unsubscribe)
    pubsub.prune()
    waiter = back.pop()
    assert run_sync(waiter.wait(5)) is True, "it may have missed a message, and asks again"
    redis_client.publish(CHANNEL, "0")
    assert run_sync(waiter.wait(5)) is True
    waiter.close()
    other.close()
