"""Changes of semaphores and latches that are executed once more after their senders moved on change nothing."""

import pytest

from django_rlock import CountDownLatch, LockUnavailableError, PermitExpirableSemaphore, Semaphore
from django_rlock._redis import scripts
from tests.faults.copies import arrive, is_settled, often

__all__ = ["often"]

NUMBER = "rlock:printers"


@pytest.fixture
def printers(redis_client):
    redis_client.set(NUMBER, 3)
    return Semaphore("printers")


@pytest.fixture
def licences(redis_client):
    redis_client.set(NUMBER, 3)
    return PermitExpirableSemaphore("printers")


async def counts_nothing(binding, redis_client, late):
    """A copy that arrives when its sender has gone on leaves the number as it is."""
    await binding.until(is_settled)
    before = redis_client.get(NUMBER)
    await arrive(binding, late)
    await binding.until(is_settled)
    assert redis_client.get(NUMBER) == before


async def test_permit_of_an_earlier_try_is_not_taken_again(binding, proxy, licences, redis_client):
    """The try that was sent twice found none."""
    redis_client.set(NUMBER, 0)
    late = proxy.copy_late(scripts.PERMIT_ACQUIRE)
    assert await binding.call(licences, "acquire", blocking=False) is None
    redis_client.set(NUMBER, 3)
    await counts_nothing(binding, redis_client, late)


async def test_semaphore_is_not_taken_by_a_try_that_found_none(binding, proxy, printers, redis_client):
    redis_client.set(NUMBER, 0)
    late = proxy.copy_late(scripts.SEMAPHORE_ACQUIRE)
    assert not await binding.call(printers, "acquire", blocking=False)
    redis_client.set(NUMBER, 3)
    await counts_nothing(binding, redis_client, late)


@pytest.mark.parametrize(
    ("script", "method", "args"),
    [
        (scripts.SEMAPHORE_RELEASE, "release", [1]),
        (scripts.SEMAPHORE_ADD, "add_permits", [2]),
        (scripts.SEMAPHORE_DRAIN, "drain_permits", []),
        (scripts.SEMAPHORE_DELETE, "delete", []),
    ],
)
@pytest.mark.parametrize("there", [3, 0])
async def test_semaphore_is_changed_once(binding, proxy, printers, redis_client, script, method, args, there):
    redis_client.set(NUMBER, there)
    late = proxy.copy_late(script)
    await binding.call(printers, method, *args)
    redis_client.set(NUMBER, 7)
    await counts_nothing(binding, redis_client, late)


@pytest.mark.parametrize(
    ("script", "method", "args"),
    [
        (scripts.SEMAPHORE_RELEASE, "release_if_exists", [1]),
        (scripts.SEMAPHORE_DELETE, "delete", []),
    ],
)
async def test_semaphore_that_comes_into_being_is_not_changed(
    binding, proxy, printers, redis_client, script, method, args
):
    redis_client.delete(NUMBER)
    late = proxy.copy_late(script)
    assert not await binding.call(printers, method, *args)
    redis_client.set(NUMBER, 7)
    await counts_nothing(binding, redis_client, late)


@pytest.mark.parametrize("there", [None, 3])
async def test_semaphore_is_made_once(binding, proxy, printers, redis_client, there):
    if there is None:
        redis_client.delete(NUMBER)
    late = proxy.copy_late(scripts.SEMAPHORE_SET)
    assert await binding.call(printers, "try_set_permits", 5) is (there is None)
    redis_client.delete(NUMBER)
    await counts_nothing(binding, redis_client, late)


@pytest.mark.parametrize(
    ("script", "method", "args"),
    [
        (scripts.SEMAPHORE_ADD, "add_permits", [5]),
        (scripts.SEMAPHORE_DRAIN, "drain_permits", []),
        (scripts.SEMAPHORE_DELETE, "delete", []),
    ],
)
async def test_change_that_failed_is_not_made_later(
    binding, proxy, printers, redis_client, monkeypatch, script, method, args
):
    """Its caller had a reply, and may have made another change."""
    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.counters.RELEASE_PATIENCE", 0.0)
        late = proxy.copy_late(script)
        for _ in range(3):
            proxy.cut_before(script)
        with pytest.raises(LockUnavailableError):
            await binding.call(printers, method, *args)
    await counts_nothing(binding, redis_client, late)


@pytest.mark.parametrize(
    ("script", "method", "args", "there"),
    [
        (scripts.LATCH_SET, "try_set_count", [2], None),
        (scripts.LATCH_SET, "try_set_count", [2], 3),
        (scripts.LATCH_COUNT_DOWN, "count_down", [], 2),
        (scripts.LATCH_COUNT_DOWN, "count_down", [], None),
        (scripts.LATCH_DELETE, "delete", [], 2),
        (scripts.LATCH_DELETE, "delete", [], None),
    ],
)
@pytest.mark.parametrize("then", [None, 5])
async def test_latch_is_changed_once(binding, proxy, redis_client, script, method, args, there, then):
    if there is not None:
        redis_client.set(NUMBER, there)
    late = proxy.copy_late(script)
    await binding.call(CountDownLatch("printers"), method, *args)
    redis_client.delete(NUMBER)
    if then is not None:
        redis_client.set(NUMBER, then)
    await counts_nothing(binding, redis_client, late)
