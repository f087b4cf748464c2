"""Names, owners and durations that callers give."""

import asyncio
import math
import threading
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    PermitExpirableSemaphore,
    ReadWriteLock,
    RedLock,
    RLock,
    Semaphore,
    SpinLock,
    rlock,
)
from django_rlock._redis import keys
from django_rlock.compat import Lock
from django_rlock.locks import options
from django_rlock.locks.options import lease_seconds, milliseconds, wait_seconds

BAD_NUMBERS = [-1, -0.001, math.nan, math.inf, -math.inf, 1e12, 10**400, timedelta(seconds=-1)]
NOT_NUMBERS = ["3", b"3", True, False, Decimal(3), [3], {}, object()]
ARGUMENTS = ["wait_time", "lease_time", "max_hold_time"]


@pytest.fixture(params=[FairLock, RLock], ids=["fair", "rlock"])
def kind(request):
    return request.param


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: str(value)[:12])
def test_bad_number(kind, argument, value):
    with pytest.raises(ValueError, match=f"^{argument} must be a number of seconds"):
        kind("stock:42", **{argument: value})


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize(
    "value", [threading.TIMEOUT_MAX, math.inf, 10**400, timedelta.max], ids=lambda value: str(value)[:9]
)
def test_a_duration_that_is_too_long_is_told_the_longest(kind, argument, value):
    """It was told to be a number of seconds, which it is."""
    with pytest.raises(ValueError, match=r"; None .*; not .* \(the longest is 3153600000 s, 100 years\)\.$"):
        kind("stock:42", **{argument: value})


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: type(value).__name__)
def test_not_a_number(kind, argument, value):
    with pytest.raises(TypeError, match=f"^{argument} must be seconds"):
        kind("stock:42", **{argument: value})


@pytest.mark.parametrize("argument", ["lease_time", "max_hold_time"])
def test_lease_below_a_millisecond(kind, argument):
    with pytest.raises(ValueError, match=f"^{argument} must be at least 0.001 s"):
        kind("stock:42", **{argument: 0})


@pytest.mark.parametrize("value", [3, 0, 1, 0.5, timedelta(seconds=3), "no", None], ids=repr)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "acquires",
    [
        FairLock("stock:42"),
        SpinLock("stock:42"),
        ReadWriteLock("stock:42").read_lock,
        rlock("stock:42", "stock:43"),
        rlock("stock:42", permits=2),
        Semaphore("permits"),
        PermitExpirableSemaphore("permits"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_wait_time_as_first_argument_is_told(acquires, asynchronous, value):
    """Redisson's tryLock(3) and the locks of other libraries have it there; it counted as blocking=True."""
    permits = [1] if isinstance(acquires, Semaphore | PermitExpirableSemaphore) else []
    with pytest.raises(TypeError, match="blocking must be True or False") as caught:
        if asynchronous:
            asyncio.run(acquires.aacquire(*permits, value))
        else:
            acquires.acquire(*permits, value)
    is_time = not isinstance(value, str | None)
    assert (f"acquire({value!r}): use wait_time={value!r}" in str(caught.value)) == is_time


@pytest.mark.parametrize(
    ("value", "is_doubted"),
    [(30000, True), (5000.0, True), (30, False), (3600, False), (36000, False), (90, False), (86400, False)],
)
def test_a_lease_in_milliseconds_is_told_once(value, is_doubted, caplog, monkeypatch):
    monkeypatch.setattr(options, "_doubted", set())
    for _ in range(2):
        FairLock("stock:42", lease_time=value)
        FairLock("stock:42", lease_time=timedelta(seconds=value))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == is_doubted
    assert not is_doubted or f"Write lease_time={value / 1000:g} for {value:g} milliseconds" in texts[0]


@pytest.mark.parametrize("value", [-1, 1e16, "3"])
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda value: FairLock("stock:42", at_least=value), "at_least must .*; None adds nothing, as 0; not"),
        (
            lambda value: FairLock("stock:42").extend(value),
            "lease_time must .* above 0; not",
        ),
        (lambda value: FairLock("stock:42").leave(value), "seconds must .* 0 or more; not"),
        (lambda value: PermitExpirableSemaphore("s").acquire(lease_time=value), "lease_time must .*; None has no end"),
        (lambda value: PermitExpirableSemaphore("s").update_lease_time("0" * 32, value), "lease_time .* has no end"),
        (lambda value: Semaphore("s").try_set_permits(1, ttl=value), "ttl must .*; None keeps it; not"),
        (lambda value: Lock("stock:42", value), "timeout must .*; None is renewed by the watchdog"),
        (lambda value: Lock("stock:42", blocking_timeout=value), "blocking_timeout must .*; None waits forever"),
        (lambda value: Lock("stock:42").acquire(blocking_timeout=value), "blocking_timeout must"),
    ],
)
def test_an_error_names_its_own_argument_and_the_meaning_of_none(use, expected, value):
    with pytest.raises((ValueError, TypeError), match=f"^({expected})"):
        use(value)


def test_bad_durations_of_a_call_lock_nothing(kind, redis_client):
    lock = kind("stock:42")
    for bad in ({"wait_time": -1}, {"lease_time": 0}, {"wait_time": "3"}, {"blocking": False, "wait_time": 3}):
        with pytest.raises((ValueError, TypeError)):
            lock.acquire(**bad)
    with pytest.raises(TypeError):
        lock.acquire(True, 5)  # is it the wait or the lease?
    assert redis_client.keys() == []
    lock.acquire()
    for lease in (0, -1, None, "3"):
        with pytest.raises((ValueError, TypeError)):
            lock.extend(lease)
    lock.release()


@pytest.mark.parametrize("value", ["", None, 5, b"stock", ["stock"]])
@pytest.mark.parametrize("argument", ["name", "owner"])
def test_bad_name_or_owner(kind, argument, value):
    if (argument, value) == ("owner", None):
        return  # which means the running thread or task
    with pytest.raises((ValueError, TypeError), match=argument):
        kind(**{"name": "stock:42", argument: value})


def test_text_that_cannot_be_encoded(kind):
    """It must not get as far as the background thread, which would try to clean up for a whole lease."""
    with pytest.raises(ValueError, match="name"):
        kind("stock:\ud800")


@pytest.mark.parametrize("name", ["stock:42", "ein Lager", "库存:42", "a{b}c", "{", "a b", "x" * 1024, "\x00"])
def test_names_of_all_sorts(kind, name, redis_client):
    with kind(name):
        assert redis_client.exists(f"rlock:{name}")
        assert kind(name, owner="another owner").acquire(wait_time=0.02) is False


EVERY_KIND = [
    *(FairLock, RLock, SpinLock, FencedLock, ReadWriteLock, RedLock),
    *(Semaphore, PermitExpirableSemaphore, CountDownLatch, rlock),
]
TOO_LONG = [("x" * 1025, 1025), ("库" * 342, 1026), ("x" * 100_000, 100_000)]


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("name", "size"), TOO_LONG, ids=["bytes", "characters", "huge"])
def test_name_that_is_too_long(make, name, size):
    with pytest.raises(ValueError, match=f"name must not be longer than 1024 bytes in UTF-8, .*… has {size}") as caught:
        make(name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("make", [FairLock, RLock, SpinLock, FencedLock, ReadWriteLock, RedLock, rlock])
def test_owner_that_is_too_long(make):
    make("stock:42", owner="x" * 1024)
    with pytest.raises(ValueError, match="owner must not be longer than 1024 bytes in UTF-8"):
        make("stock:42", owner="x" * 1025)


def test_wrong_names_are_shortened_in_errors(kind):
    for wrong in ("\ud800" * 5000, ["x"] * 5000):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind(wrong)
        assert len(str(caught.value)) < 300


def test_locks_that_are_taken_together_may_have_long_names_together(redis_client):
    names = [f"{number}:{'x' * 1000}" for number in range(5)]
    with rlock(*names) as lock:
        assert lock.name == ", ".join(names)
        assert len(redis_client.keys("rlock:*")) == 5


@pytest.mark.parametrize("make", EVERY_KIND, ids=lambda make: make.__name__)
@pytest.mark.parametrize("using", [["default"], {}, 5, None, b"default"], ids=repr)
def test_alias_that_is_no_string(make, using):
    with pytest.raises(ImproperlyConfigured, match="RLOCK has no alias"):
        make("stock:42", using=using)


def test_durations():
    assert wait_seconds(None) is None
    assert lease_seconds(None) is None
    assert wait_seconds(0) == 0.0
    assert wait_seconds(timedelta(milliseconds=1500)) == 1.5
    assert lease_seconds(0.001) == 0.001
    assert [milliseconds(value) for value in (0.0001, 0.0014, 1.5)] == [1, 1, 1500]


def test_front_door_chooses_the_kind(settings):
    assert type(rlock("stock:42")) is FairLock
    assert type(rlock("stock:42", kind="rlock")) is RLock
    settings.RLOCK = {"default": {"KIND": "rlock"}}
    lock = rlock("stock:42", wait_time=1, lease_time=2, owner="me")
    assert (type(lock), lock.wait_time, lock.lease_time, lock.owner) == (RLock, 1.0, 2.0, "me")
    with pytest.raises(ValueError, match="nknown kind of lock 'sping'; choose one of 'fair', 'rlock'"):
        rlock("stock:42", kind="sping")  # type: ignore[call-overload]


def test_names_of_keys():
    assert keys.redisson_channel("stock:42") == "redisson_lock__channel:{stock:42}"
    assert keys.redisson_channel("{shop}:42") == "redisson_lock__channel:{shop}:42"
    assert keys.queue_key("stock:42") == "rlock_queue:{stock:42}"
    assert keys.fair_keys("a{b}")[2] == "rlock_alive:a{b}"
    assert keys.wake_channel("id") == "rlock_wake:id"
    assert keys.fair_keys("k") == ("k", "rlock_queue:{k}", "rlock_alive:{k}")
