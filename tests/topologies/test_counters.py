"""Semaphores and latches on every topology: the same numbers, the same wake-ups."""

from django_rlock import CountDownLatch, PermitExpirableSemaphore, Semaphore
from django_rlock.locks import counters
from django_rlock.locks.holds import WAITS


async def wait(face, done):
    return await done.await_() if face.name == "async" else done.wait()


async def test_semaphore(face, topology):
    printers = Semaphore("printers")
    waiter = face.start(face.call, printers, "acquire")
    await face.until(WAITS.snapshot)
    await face.call(printers, "try_set_permits", 2)
    assert await face.result(waiter)
    await face.call(printers, "add_permits", 4)
    assert await face.call(printers, "drain_permits") == 5
    assert await face.call(printers, "delete")


async def test_expirable_semaphore(face, topology):
    licences = PermitExpirableSemaphore("licences")
    waiter = face.start(face.call, licences, "acquire", 2)
    await face.until(WAITS.snapshot)
    await face.call(licences, "set_permits", 2)
    permit = await face.result(waiter)
    assert await face.call(licences, "update_lease_time", permit.ids[0], 60)
    assert await face.call(licences, "try_release", permit) == 2
    renewed = await face.call(licences, "acquire", renewed=True)
    assert await face.call(licences, "acquired_permits") == 1
    await face.call(renewed, "release")


async def test_expirable_semaphore_under_a_prefix(face, started, use):
    """Redisson's testGetInClusterNameMapper: all its keys are in one slot still."""
    cluster = started("cluster")
    use(cluster, KEY_PREFIX="rlock:mapped:")
    licences = PermitExpirableSemaphore("licences")
    assert await face.call(licences, "try_set_permits", 2)
    permit = await face.call(licences, "acquire", lease_time=60)
    keys = "rlock:mapped:licences", "{rlock:mapped:licences}:timeout"
    assert [cluster.redis.exists(key) for key in keys] == [1, 1]
    await face.call(permit, "release")
    cluster.redis.flushall()


async def test_latch(face, topology):
    done = CountDownLatch("import:42")
    for opening in ("count_down", "delete"):
        await face.call(done, "try_set_count", 1)
        waiter = face.start(wait, face, done)
        await face.until(WAITS.snapshot)
        await face.call(done, opening)
        assert await face.result(waiter)


async def test_latch_whose_name_has_a_hash_tag(face, topology, monkeypatch):
    """Redisson's channel for it is in another slot of a cluster, where its waiters have to ask."""
    monkeypatch.setattr(counters, "UNHEARD_REPOLL", 0.05)

    done = CountDownLatch("{import}:42")
    await face.call(done, "try_set_count", 1)
    waiter = face.start(wait, face, done)
    await face.until(WAITS.snapshot)
    await face.call(done, "count_down")
    assert await face.result(waiter)
