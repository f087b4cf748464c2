"""Public objects can be sent to another process, and serve there."""

import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import django_rlock
from django_rlock import (
    ConstantBackoff,
    CountDownLatch,
    ExponentialBackoff,
    FairLock,
    FencedLock,
    LimitedLock,
    MultiLock,
    Permit,
    PermitExpirableSemaphore,
    ReadLock,
    ReadWriteLock,
    RedLock,
    RLock,
    RLockError,
    Semaphore,
    SpinLock,
    WriteLock,
    rlock,
)

NODES = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
OPTIONS: dict[str, Any] = {"wait_time": 2, "lease_time": 40, "owner": "them", "max_hold_time": 9, "until_commit": True}

MADE: dict[type, Callable[[], Any]] = {
    RLock: lambda: RLock("stock:42", **OPTIONS),
    FairLock: lambda: FairLock("stock:42", **OPTIONS),
    SpinLock: lambda: SpinLock("stock:42", backoff=ExponentialBackoff(0.1, 1.0), **OPTIONS),
    FencedLock: lambda: FencedLock("stock:42", **OPTIONS),
    RedLock: lambda: RedLock("stock:42", using="quorum", fencing=False, lease_time=40),
    LimitedLock: lambda: LimitedLock("stock:42", permits=3, **OPTIONS),
    MultiLock: lambda: MultiLock(RLock("a"), FairLock("b"), wait_time=2, owner="them", max_hold_time=9),
    ReadWriteLock: lambda: ReadWriteLock("stock:42", prefer="writer"),
    ReadLock: lambda: ReadWriteLock("stock:42", wait_time=2).read_lock,
    WriteLock: lambda: ReadWriteLock("stock:42", wait_time=2).write_lock,
    Semaphore: lambda: Semaphore("printers", wait_time=2),
    PermitExpirableSemaphore: lambda: PermitExpirableSemaphore("licences", wait_time=2),
    CountDownLatch: lambda: CountDownLatch("ready"),
    ConstantBackoff: lambda: ConstantBackoff(0.3),
    ExponentialBackoff: lambda: ExponentialBackoff(0.1, 1.0),
}
"""An object of each public class, with what it may be given. A Permit and the errors have tests of their own."""


def content(of: Any) -> Any:
    """What an object is made of."""
    if isinstance(of, (list, tuple)):
        return [content(each) for each in of]
    if not type(of).__module__.startswith("django_rlock"):
        return of
    names = {name for kind in type(of).__mro__ for name in getattr(kind, "__slots__", ())} | getattr(
        of, "__dict__", {}
    ).keys()
    return type(of), {name: content(getattr(of, name)) for name in names if hasattr(of, name)}


@pytest.fixture(autouse=True)
def _quorum(settings: Any) -> None:
    settings.RLOCK = {"quorum": {"NODES": NODES}}


def test_each_public_class_is_tried():
    public = {getattr(django_rlock, name) for name in django_rlock.__all__}
    classes = {each for each in public if isinstance(each, type) and not issubclass(each, RLockError)}
    assert classes - {django_rlock.BaseLock, Permit, django_rlock.distributed_lock} == set(MADE)


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_copy_has_what_the_original_was_given(kind):
    original = MADE[kind]()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert content(pickle.loads(pickle.dumps(original, protocol))) == content(original)
    assert content(copy.deepcopy(original)) == content(original)


@pytest.mark.parametrize("make", [lambda: rlock("a", "b"), lambda: rlock("a", kind="fenced"), lambda: RLock("a")])
def test_held_lock_is_sent_without_its_hold(make, redis_client):
    lock = make()
    with lock:
        message = pickle.dumps(lock)
        assert b"settings" not in message.lower(), "it may contain passwords"
        copied = pickle.loads(message)
        assert copied.owned()
    with copied:
        assert lock.owned()


@pytest.mark.parametrize("renewed", [False, True])
def test_permit_is_released_by_its_copy(redis_client, renewed):
    semaphore = PermitExpirableSemaphore("licences")
    semaphore.try_set_permits(1)
    permit = semaphore.acquire(renewed=renewed)
    assert permit is not None
    copied = pickle.loads(pickle.dumps(permit))
    assert (copied.ids, copied.lost) == (permit.ids, False)
    copied.release()
    assert semaphore.available_permits() == 1


@pytest.mark.parametrize(
    "kind", [kind for kind in MADE if "Backoff" not in kind.__name__], ids=lambda kind: kind.__name__
)
def test_weak_references_are_possible(kind):
    """As those of a table of locks by key."""
    lock = MADE[kind]()
    assert weakref.ref(lock)() is lock
