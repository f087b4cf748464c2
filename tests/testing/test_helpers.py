"""What projects assert in their tests, over Redis and in the process alike."""

import asyncio

import pytest

from django_rlock import LockUnavailableError, RLock, rlock, testing
from django_rlock.testing import hold, override_locks


@pytest.fixture(params=["Redis", "in process"], autouse=True)
def place(request):
    """Where the locks live."""
    if request.param == "Redis":
        yield
        return
    pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")
    with override_locks():
        yield


def test_another_owner_holds():
    with hold("stock:1"):
        assert not rlock("stock:1").acquire(blocking=False)
    with rlock("stock:1", wait_time=0):
        pass


def test_another_owner_holds_in_async_code():
    async def body() -> None:
        async with hold("stock:1"):
            assert not await rlock("stock:1").aacquire(blocking=False)
            await testing.aassert_locked("stock:1")
        await testing.aassert_not_locked("stock:1")
        await testing.aassert_no_locks_left()

    asyncio.run(body())


def test_several_at_once():
    with hold("stock:1", "stock:2"):
        for name in "stock:1", "stock:2":
            testing.assert_locked(name)


def test_two_holds_exclude_each_other():
    with hold("stock:1"), pytest.raises(AssertionError, match=r"already held: stock:1 by .* pid"), hold("stock:1"):
        pass


def test_with_may_be_used_in_async_code():
    async def body() -> None:
        with hold("stock:1"):
            assert not await rlock("stock:1").aacquire(blocking=False)
            with pytest.raises(AssertionError, match="already held: stock:1"), hold("stock:1"):
                pass
        assert not await rlock("stock:1").alocked()

    asyncio.run(body())


def test_two_holds_exclude_each_other_in_async_code():
    async def body() -> None:
        async with hold("stock:1"):
            with pytest.raises(AssertionError, match="already held: stock:1 by"):
                async with hold("stock:1"):
                    pass

    asyncio.run(body())


def test_what_is_locked():
    testing.assert_not_locked("stock:1")
    with pytest.raises(AssertionError, match="Lock 'stock:1' is not locked"):
        testing.assert_locked("stock:1")
    with RLock("stock:1"):
        testing.assert_locked("stock:1")
        with pytest.raises(AssertionError, match=r"The lock is held: stock:1 by .* pid"):
            testing.assert_not_locked("stock:1")


def test_what_is_left():
    testing.assert_no_locks_left()
    lock = RLock("stock:1")
    lock.acquire()
    with pytest.raises(AssertionError, match=r"Locks are left: stock:1 by .* pid"):
        testing.assert_no_locks_left()
    lock.release()
    testing.assert_no_locks_left("default")


@pytest.mark.parametrize("place", ["Redis"], indirect=True)
def test_no_server_is_no_proof(settings):
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
    }
    settings.RLOCK = {}
    with pytest.raises(LockUnavailableError):
        testing.assert_no_locks_left()
