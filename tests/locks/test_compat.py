"""``django_rlock.compat``: what redis-py's own lock does in each test, ours does, too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.cache import caches
from redis.exceptions import LockError, LockNotOwnedError

from django_rlock import LockTimeoutError, compat, rlock
from django_rlock.locks.holds import HOLDS
from tests.eventually import UNTIL_SERVED, eventually, in_threads

Make = Callable[..., Any]


@pytest.fixture(params=["redis-py", "ours"])
def make(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Make:
    """redis-py's lock, which says what is right, and ours."""
    return redis_client.lock if request.param == "redis-py" else compat.lock


def elsewhere(call: Callable[[], Any]) -> Any:
    """What a call returns, or raises, in another thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except (LockError, AttributeError) as error:
            outcome.append(type(error))

    in_threads(run)
    return outcome[0]


def test_it_excludes_others_and_its_own_holder(make: Make) -> None:
    lock = make("stock:42", 60)
    assert lock.acquire() is True
    assert lock.acquire(blocking=False) is False
    assert lock.acquire(blocking_timeout=0.05) is False
    assert make("stock:42", blocking=False).acquire() is False
    assert (lock.locked(), lock.owned(), make("stock:42").owned()) == (True, True, False)
    lock.release()
    assert (lock.locked(), lock.owned()) == (False, False)


def test_a_release_without_an_acquire_is_an_error(make: Make) -> None:
    lock = make("stock:42")
    with pytest.raises(LockError) as caught:
        lock.release()
    assert not isinstance(caught.value, LockNotOwnedError)
    with lock:
        pass
    with pytest.raises(LockError):
        lock.release()


def test_a_block_that_does_not_get_the_lock_raises(make: Make) -> None:
    with make("stock:42", timeout=60):
        with pytest.raises(LockError), make("stock:42", blocking_timeout=0.05):
            raise AssertionError("The body ran.")
        with pytest.raises(LockError), make("stock:42", blocking=False):
            raise AssertionError("The body ran.")


def test_the_timeout_is_not_renewed(make: Make) -> None:
    lock = make("stock:42", timeout=0.05)
    lock.acquire()
    eventually(lambda: not lock.locked())
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockError):
        lock.release()


def test_who_releases_it(make: Make) -> None:
    own, shared = make("a"), make("b", thread_local=False)
    own.acquire()
    shared.acquire()
    assert elsewhere(own.release) in {LockError, AttributeError}  # redis-py has no token at all there
    assert elsewhere(shared.release) is None
    assert (own.locked(), shared.locked()) == (True, False)
    own.release()


def test_extend_and_reacquire(make: Make) -> None:
    lock = make("stock:42", timeout=5)
    with pytest.raises(LockError):
        lock.extend(1)
    with lock:
        assert lock.extend(20) is True
        assert lock.extend(60, replace_ttl=True) is True
        assert lock.owned()
    with lock:
        assert lock.reacquire() is True
    endless = make("stock:43")
    with endless:
        for deed in lambda: endless.extend(1), endless.reacquire:
            with pytest.raises(LockError):
                deed()


def test_a_token_of_the_callers(make: Make) -> None:
    lock = make("stock:42", timeout=60)
    assert lock.acquire(token="mine")
    assert lock.owned()
    lock.release()


# ---- what redis-py's lock has not ------------------------------------------------------------------------------------


def test_it_excludes_rlock_of_the_same_name() -> None:
    with compat.lock("stock:42"):
        assert not rlock("stock:42").acquire(blocking=False)
    with rlock("stock:42"):
        assert not compat.lock("stock:42").acquire(blocking=False)
        with pytest.raises(LockTimeoutError), compat.lock("stock:42", blocking_timeout=0):
            pass


def test_leases() -> None:
    with compat.lock("stock:42"):
        assert [hold.renewed for hold in HOLDS.snapshot()] == [True]
    with compat.lock("stock:42", timeout=60):
        assert [hold.renewed for hold in HOLDS.snapshot()] == [False]


def test_waiter_is_woken() -> None:
    lock = compat.lock("stock:42")
    lock.acquire()
    waiter = threading.Thread(target=lambda: compat.lock("stock:42", sleep=3600).acquire())
    waiter.start()
    eventually(lambda: (info := rlock("stock:42").info()) is not None and info.waiting)
    lock.release()
    waiter.join(UNTIL_SERVED)
    [hold] = HOLDS.snapshot()
    rlock("stock:42", owner=hold.owner_id).release()


def test_an_interrupted_block_releases_it() -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(InterruptedError), compat.lock("stock:42"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert not rlock("stock:42").locked()


@pytest.mark.parametrize("backend", ["RedisCache", "BuiltinRedisCache"])
def test_cache_lock_by_one_line_of_settings(settings: Any, server: Any, backend: str) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "default": {"BACKEND": f"django_rlock.compat.{backend}", "LOCATION": server.url, "KEY_PREFIX": "site"},
        "other": {"BACKEND": f"django_rlock.compat.{backend}", "LOCATION": server.url.replace("db=0", "db=1")},
    }
    settings.RLOCK = {"default": {}, "elsewhere": {"CACHE": "other"}}
    cache: Any
    other: Any
    cache, other = caches["default"], caches["other"]
    with cache.lock("stock:42", timeout=60, blocking_timeout=3):
        assert not rlock("stock:42").acquire(blocking=False)
        assert cache.lock("stock:42", version=2).acquire(blocking=False)
        assert not rlock("2:stock:42").acquire(blocking=False)
        assert not rlock("stock:42", using="elsewhere").locked()
    with other.lock("stock:42"):
        assert rlock("stock:42", using="elsewhere").locked()
    cache.set("a", 1)
    assert cache.get("a") == 1
    rlock("2:stock:42").force_release()
    HOLDS.clear()
