"""``django_rlock.compat``: what redis-py's own lock does in each test, ours does, too."""

from __future__ import annotations

import contextlib
import inspect
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.cache import caches
from redis.exceptions import LockError, LockNotOwnedError

from django_rlock import LockTimeoutError, LockUnavailableError, compat, rlock
from django_rlock.locks.holds import HOLDS
from tests.beside import beside
from tests.conftest import OwnServer
from tests.eventually import eventually, in_threads

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


def test_a_block_may_end_quietly_after_its_lock(make: Make, redis_client: redis.Redis) -> None:
    if "raise_on_release_error" not in inspect.signature(redis_client.lock).parameters:
        pytest.skip("This redis-py raises.")
    for loud in False, True:
        lock = make("stock:42", timeout=60, raise_on_release_error=loud)
        with pytest.raises(LockError) if loud else contextlib.nullcontext(), lock:
            lock.release()
    with pytest.raises(LockError):  # other releases raise
        make("stock:42", raise_on_release_error=False).release()
    with pytest.raises(ZeroDivisionError), make("stock:42", timeout=60, raise_on_release_error=False) as lock:
        lock.release()
        raise ZeroDivisionError
    assert not lock.locked()


def test_a_token_of_the_callers(make: Make) -> None:
    lock = make("stock:42", timeout=60)
    assert lock.acquire(token="mine")
    assert lock.owned()
    lock.release()


# ---- what redis-py's lock has not ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "ours"), [(redis.Redis.lock, compat.lock), (redis.lock.Lock, compat.Lock)])
def test_each_argument_of_redis_py_is_taken(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    def arguments(function: Callable[..., Any], apart: set[str]) -> list[tuple[str, Any]]:
        parameters = inspect.signature(function).parameters.values()
        return [(each.name, each.default) for each in parameters if each.name not in apart]

    wanted = arguments(theirs, {"self", "redis"})
    here = arguments(ours, {"using"})
    assert [each for each in here if each in wanted] == wanted
    assert wanted == here or redis.VERSION < (8,)


def test_classes_of_locks() -> None:
    class Counted(compat.Lock):
        pass

    assert type(compat.lock("stock:42", lock_class=Counted)) is Counted
    for other in redis.lock.Lock, compat.lock, "Lock":
        with pytest.raises(TypeError, match="do not exclude each other"):
            compat.lock("stock:42", lock_class=other)


def test_a_quiet_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with compat.lock("stock:42", raise_on_release_error=False):
        rlock("stock:42").force_release()
    assert "The block of lock 'stock:42' has ended, but: Lock 'stock:42' was lost" in caplog.text


def test_an_unreachable_server_is_no_quiet_end(own_server: OwnServer) -> None:
    server = own_server()
    with pytest.raises(LockUnavailableError), compat.lock("stock:42", timeout=60, raise_on_release_error=False):
        server.kill()


def test_errors_name_the_holder_as_those_of_rlock_do() -> None:
    with rlock("stock:42", owner="another"):
        with pytest.raises(LockTimeoutError) as usual, rlock("stock:42", wait_time=0):
            pass
        with pytest.raises(LockTimeoutError) as caught, compat.lock("stock:42", blocking=False):
            pass
    assert caught.value.holder == usual.value.holder
    assert caught.value.holder
    assert caught.value.retry_after
    assert caught.value.option == "blocking_timeout"


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
    with beside(lambda: compat.lock("stock:42", sleep=3600).acquire() is True):
        eventually(lambda: (info := rlock("stock:42").info()) is not None and info.waiting)
        lock.release()
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
    with other.lock("stock:42", raise_on_release_error=False):
        assert rlock("stock:42", using="elsewhere").locked()
    cache.set("a", 1)
    assert cache.get("a") == 1
    rlock("2:stock:42").force_release()
    HOLDS.clear()
