"""Semaphores and latches on every topology: the same numbers, the same wake-ups."""

from django_rlock import CountDownLatch, PermitExpirableSemaphore, Semaphore
from django_rlock.locks import counters
from django_rlock.locks.holds import WAITS


async def test_semaphore(binding, topology):
    printers = Semaphore("printers")
    waiter = binding.start(binding.call, printers, "acquire")
    await binding.until(WAITS.snapshot)
    await binding.call(printers, "try_set_permits", 2)
    assert await binding.result(waiter)
    await binding.call(printers, "add_permits", 4)
    assert await binding.call(printers, "drain_permits") == 5
    assert await binding.call(printers, "delete")


async def test_expirable_semaphore(binding, topology):
    licences = PermitExpirableSemaphore("licences")
    waiter = binding.start(binding.call, licences, "acquire", 2)
    await binding.until(WAITS.snapshot)
    await binding.call(licences, "set_permits", 2)
    permit = await binding.result(waiter)
    assert await binding.call(licences, "update_lease_time", permit.ids[0], 60)
    assert await binding.call(licences, "try_release", permit) == 2
    renewed = await binding.call(licences, "acquire", renewed=True)
    assert await binding.call(licences, "acquired_permits") == 1
    await binding.call(renewed, "release")


async def test_expirable_semaphore_under_a_prefix(binding, started, use):
    """Redisson's testGetInClusterNameMapper: all its keys are in one slot still."""
    cluster = started("cluster")
    use(cluster, KEY_PREFIX="rlock:mapped:")
    licences = PermitExpirableSemaphore("licences")
    assert await binding.call(licences, "try_set_permits", 2)
    permit = await binding.call(licences, "acquire", lease_time=60)
    keys = "rlock:mapped:licences", "{rlock:mapped:licences}:timeout"
    assert [cluster.redis.exists(key) for key in keys] == [1, 1]
    await binding.call(permit, "release")
    cluster.redis.flushall()


async def test_latch(binding, topology):
    done = CountDownLatch("import:42")
    for opening in ("count_down", "delete"):
        await binding.call(done, "try_set_count", 1)
        waiter = binding.start(binding.call, done, "wait")
        await binding.until(WAITS.snapshot)
        await binding.call(done, opening)
        assert await binding.result(waiter)


async def test_latch_whose_name_has_a_hash_tag(binding, topology, monkeypatch):
    """Redisson's channel for it is in another slot of a cluster, where its waiters have to ask."""
    monkeypatch.setattr(counters, "UNHEARD_REPOLL", 0.05)

    done = CountDownLatch("{import}:42")
    await binding.call(done, "try_set_count", 1)
    waiter = binding.start(binding.call, done, "wait")
    await binding.until(WAITS.snapshot)
    await binding.call(done, "count_down")
    assert await binding.result(waiter)
