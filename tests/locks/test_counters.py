"""Semaphores, expirable permits and latches alike, whatever they count."""

from typing import Any, NamedTuple

import pytest

from django_rlock import CountDownLatch, LockUnavailableError, PermitExpirableSemaphore, Semaphore
from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from django_rlock.inspection import iter_locks, lock_info
from django_rlock.locks import counters, kinds
from tests.background import forget_clean_up
from tests.bindings import waiting

KEY, PERMITS = "rlock:printers", "{rlock:printers}:timeout"


class Case(NamedTuple):
    """A kind, the number with which its waiters wait, the number with which one goes on, and its channel.

    ``methods`` read or change the number, with their arguments.
    """

    kind: Any
    taken: int
    free: int | None
    channel: str
    methods: list[tuple[Any, ...]]


CASES = [
    Case(
        Semaphore, 0, 1, "redisson_sc:{rlock:printers}",
        [("acquire",), ("release",), ("available_permits",), ("drain_permits",), ("delete",)],
    ),
    Case(
        PermitExpirableSemaphore, 0, 1, "redisson_sc:{rlock:printers}",
        [("acquire",), ("release", "0" * 32), ("total_permits",), ("set_permits", 1), ("delete",)],
    ),
    Case(
        CountDownLatch, 1, None, "redisson_countdownlatch__channel__{rlock:printers}",
        [("wait",), ("try_set_count", 1), ("count_down",), ("count",), ("delete",)],
    ),
]  # fmt: skip


@pytest.fixture(params=CASES, ids=lambda case: case.kind.__name__)
def case(request) -> Case:
    forget_clean_up()  # of tests elsewhere, whose requests would be remembered
    return request.param


async def get(binding, counter, **options: Any) -> Any:
    """What its waiters wait for."""
    return await binding.call(counter, "wait" if isinstance(counter, CountDownLatch) else "acquire", **options)


def put(redis_client, number: int | None) -> None:
    if number is None:
        redis_client.delete(KEY)
    else:
        redis_client.set(KEY, number)


async def start_waiting(binding, case, redis_client) -> Any:
    put(redis_client, case.taken)
    waiter = binding.start(get, binding, case.kind("printers"))
    await waiting(binding)
    return waiter


async def test_wait_ends(binding, case, redis_client):
    put(redis_client, case.taken)
    for counter, options in (
        (case.kind("printers"), {"wait_time": 0}),
        (case.kind("printers"), {"wait_time": 0.05}),
        (case.kind("printers", wait_time=0.05), {}),
    ):
        assert not await get(binding, counter, **options)


async def test_waiter_is_woken_by_java(binding, case, redis_client):
    waiter = await start_waiting(binding, case, redis_client)
    put(redis_client, case.free)
    redis_client.publish(case.channel, case.free or 0)
    assert await binding.result(waiter)


async def test_waiter_whose_message_was_lost_asks_again(binding, case, redis_client, monkeypatch):
    for module in (kinds, counters):
        monkeypatch.setattr(module, "REPOLL", 0.05)
    waiter = await start_waiting(binding, case, redis_client)
    put(redis_client, case.free)  # and publishes nothing
    assert await binding.result(waiter)


async def test_it_is_no_lock(binding, case, redis_client):
    """Neither the page nor a command shows it as a lock; only reports know of its waiters."""
    waiter = await start_waiting(binding, case, redis_client)
    assert lock_info("printers") is None
    assert list(iter_locks(scan=True)) == []
    put(redis_client, case.free)
    redis_client.publish(case.channel, case.free or 0)
    assert await binding.result(waiter)
    assert lock_info("printers") is None


async def test_key_of_a_lock_is_left_alone(binding, case, redis_client, monkeypatch):
    """And what was refused is not tried again in the background."""
    monkeypatch.setattr("django_rlock.locks.counters.clean_up", pytest.fail)
    redis_client.hset(KEY, "another", 1)
    for method in case.methods:
        with pytest.raises(LockUnavailableError, match=r"another type of value.*Nothing was changed"):
            await binding.call(case.kind("printers"), *method)
    assert redis_client.hgetall(KEY) == {"another": "1"}


# --- commands whose replies are lost ---------------------------------------------------------------------------------


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("kind", "script", "method", "before", "after"),
    [
        (Semaphore, scripts.SEMAPHORE_RELEASE, "release", 0, "1"),
        (PermitExpirableSemaphore, scripts.PERMIT_RELEASE, "release", 2, "2"),
        (CountDownLatch, scripts.LATCH_COUNT_DOWN, "count_down", 3, "2"),
    ],
    ids=["semaphore", "permits", "latch"],
)
async def test_change_that_fails_is_done_in_the_background_and_once(
    binding, proxy, redis_client, kind, script: Script, method, before, after
):
    redis_client.set(KEY, before)
    counter: Any = kind("printers")
    changed = await binding.call(counter, "acquire", 2, renewed=True) if before == 2 else counter
    stuck = proxy.hold(script)
    with pytest.raises(LockUnavailableError, match="The background thread retries for 60 s; do not repeat the call"):
        await binding.call(changed, method)
    await binding.until(lambda: redis_client.get(KEY) == after)
    await arrived(binding, redis_client, stuck)
    assert redis_client.get(KEY) == after


async def arrived(binding, redis_client, stuck) -> None:
    """Let a command go, and wait until the server has executed it."""
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    stuck.let_go.set()
    await binding.until(lambda: redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] > calls)
