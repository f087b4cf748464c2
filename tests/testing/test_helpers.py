"""The assertions of ``django_rlock.testing``, over Redis and in the process alike."""

import asyncio
from typing import Any

import pytest
from django.db import transaction

from django_rlock import LockLostError, LockUnavailableError, RLock, rlock, testing
from django_rlock.testing import hold, override_locks
from example_project.embedded import EmbeddedServer


@pytest.fixture(params=["Redis", "in process"], autouse=True)
def place(request):
    """Where the locks live."""
    if request.param == "Redis":
        yield
        return
    pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")
    with override_locks():
        yield


KINDS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind} for kind in ("fair", "rlock", "spin", "fenced", "read", "write")},
    "limited": {"permits": 1},
    "named": {"owner": "night shift"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [["stock:1"], ["stock:1", "stock:2"]], ids=["lock", "MultiLock"])
def test_another_owner_holds_a_lock_of_each_kind(kind, names):
    options = KINDS[kind]
    other = {"kind": "write"} if kind == "read" else {} if kind == "named" else options
    with hold(*names, **options):
        assert not rlock("stock:1", **other).acquire(blocking=False)
        testing.assert_locked("stock:1")
        testing.assert_not_locked("stock:3")
    testing.assert_no_locks_left()
    with rlock(*names, **other, wait_time=0):
        pass


@pytest.mark.parametrize("place", ["in process"], indirect=True)
def test_another_owner_holds_a_redlock(settings):
    settings.RLOCK = {"quorum": {"NODES": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]}}
    holds_a_redlock()


def holds_a_redlock() -> None:
    with hold("stock:1", using="quorum"):
        assert not rlock("stock:1", using="quorum").acquire(blocking=False)
        testing.assert_locked("stock:1", using="quorum")
        testing.assert_not_locked("stock:1")
        with pytest.raises(AssertionError, match="already held: stock:1"), hold("stock:1", using="quorum"):
            pass
    testing.assert_no_locks_left("quorum")

    async def body() -> None:
        async with hold("stock:1", "stock:2", using="quorum"):
            assert not await rlock("stock:2", using="quorum").aacquire(blocking=False)
        await testing.aassert_no_locks_left("quorum")

    asyncio.run(body())


@pytest.mark.parametrize("place", ["Redis"], indirect=True)
def test_another_owner_holds_a_redlock_on_servers(settings):
    with EmbeddedServer() as one, EmbeddedServer() as two, EmbeddedServer() as three:
        nodes = [one.url, two.url, three.url]
        settings.RLOCK = {"quorum": {"NODES": nodes, "QUARANTINE": 0, "NODE_TIMEOUT": 1.0}}
        holds_a_redlock()


def test_errors_of_the_lock_are_raised_to_the_test():
    with pytest.raises(LockLostError), hold("stock:1"):
        rlock("stock:1").force_release()
    with pytest.raises(ValueError, match="Unknown kind"):
        hold("stock:1", kind="fare")
    testing.assert_no_locks_left()


# --- in Django's TestCase --------------------------------------------------------------------------------------------


def sell() -> None:
    """The code under test: right in production, where its transaction ends with the block."""
    with transaction.atomic():
        rlock("stock:1", until_commit=True).acquire()


@pytest.mark.django_db
def test_a_transaction_inside_that_of_a_test_counts_as_ended():
    sell()
    testing.assert_not_locked("stock:1")
    sell()
    with hold("stock:1"):
        pass
    sell()
    testing.assert_no_locks_left()


@pytest.mark.django_db
def test_a_lock_is_kept_in_an_open_transaction():
    with transaction.atomic():
        sell()
        testing.assert_locked("stock:1")
        with pytest.raises(AssertionError, match="already held: stock:1"), hold("stock:1"):
            pass
    testing.assert_no_locks_left()


@pytest.mark.django_db
def test_a_rollback_of_the_test_reports_nothing(caplog):
    sell()
    testing.assert_not_locked("stock:1")
    transaction.set_rollback(True)
    assert not caplog.records


def test_another_owner_holds_in_async_code():
    async def body() -> None:
        async with hold("stock:1"):
            assert not await rlock("stock:1").aacquire(blocking=False)
            await testing.aassert_locked("stock:1")
        await testing.aassert_not_locked("stock:1")
        await testing.aassert_no_locks_left()

    asyncio.run(body())


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
            with pytest.raises(AssertionError, match=r"already held: stock:1 by .* pid"):
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
