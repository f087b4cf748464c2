"""Changes of semaphores and latches that are executed once more after their senders moved on change nothing."""

from typing import Any

import pytest

from django_rlock import CountDownLatch, PermitExpirableSemaphore, Semaphore
from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from tests.faults.copies import arrive, is_settled, often

__all__ = ["often"]

NUMBER = "rlock:printers"


CALLS: list[tuple[Any, Script, str, list[int | bool], list[int | None]]] = [
    (Semaphore, scripts.SEMAPHORE_ACQUIRE, "acquire", [1, False], [0]),
    (PermitExpirableSemaphore, scripts.PERMIT_ACQUIRE, "acquire", [1, False], [0]),
    (Semaphore, scripts.SEMAPHORE_RELEASE, "release", [1], [0, 3]),
    (Semaphore, scripts.SEMAPHORE_RELEASE, "release_if_exists", [1], [None]),
    (Semaphore, scripts.SEMAPHORE_ADD, "add_permits", [2], [0, 3]),
    (Semaphore, scripts.SEMAPHORE_DRAIN, "drain_permits", [], [0, 3]),
    (Semaphore, scripts.SEMAPHORE_DELETE, "delete", [], [None, 0, 3]),
    (Semaphore, scripts.SEMAPHORE_SET, "try_set_permits", [5], [None, 3]),
    (CountDownLatch, scripts.LATCH_SET, "try_set_count", [2], [None, 3]),
    (CountDownLatch, scripts.LATCH_COUNT_DOWN, "count_down", [], [None, 2]),
    (CountDownLatch, scripts.LATCH_DELETE, "delete", [], [None, 2]),
]
"""Each with the numbers that may be there before."""


@pytest.mark.parametrize(
    ("kind", "script", "method", "args", "there"),
    [
        pytest.param(kind, script, method, args, there, id=f"{kind.__name__}.{method}, {there}")
        for kind, script, method, args, numbers in CALLS
        for there in numbers
    ],
)
@pytest.mark.parametrize("then", [None, 5])
async def test_it_changes_nothing_again(binding, proxy, redis_client, kind, script, method, args, there, then):
    """The number is another one by then, or the semaphore or latch is gone."""
    put(redis_client, there)
    late = proxy.copy_late(script)
    await binding.call(kind("printers"), method, *args)
    put(redis_client, then)
    await binding.until(is_settled)
    before = redis_client.get(NUMBER)
    await arrive(binding, late)
    await binding.until(is_settled)
    assert redis_client.get(NUMBER) == before


def put(redis_client, number: int | None) -> None:
    if number is None:
        redis_client.delete(NUMBER)
    else:
        redis_client.set(NUMBER, number)
