"""How long a lock waits if nobody says: as its alias does, which may change after the lock was made."""

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import Settings

from django_rlock import (
    CountDownLatch,
    LockTimeoutError,
    MultiLock,
    PermitExpirableSemaphore,
    RLock,
    Semaphore,
    distributed_lock,
    rlock,
)
from django_rlock.locks import BaseLock
from tests.beside import beside, visit
from tests.bindings import BlockingBinding
from tests.eventually import eventually

MADE_EARLY = rlock("stock:42", owner="early")
WAYS: dict[str, Callable[[], BaseLock]] = {
    "rlock": lambda: rlock("stock:42"),
    "class": lambda: RLock("stock:42"),
    "named": lambda: rlock("stock:42", owner="me"),
    "early": lambda: MADE_EARLY,
    "several": lambda: rlock("stock:42", "stock:43"),
    "MultiLock": lambda: MultiLock(RLock("stock:42", wait_time=None), RLock("stock:43")),
    "copied": lambda: copy.deepcopy(rlock("stock:42", lease_time=30)),
    "pickled": lambda: pickle.loads(pickle.dumps(rlock("stock:42", lease_time=30))),
}


@pytest.fixture
def tries_once(settings: Settings) -> None:
    settings.RLOCK = {"default": {"WAIT_TIME": 0}}


@pytest.fixture
def taken(tries_once: None) -> Iterator[None]:
    with rlock("stock:42", owner="another"):
        yield


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("taken")
async def test_a_lock_waits_as_its_alias_says(binding: BlockingBinding, way: str) -> None:
    lock = WAYS[way]()
    assert not await binding.acquire(lock)
    with pytest.raises(LockTimeoutError):
        async with binding.inside(lock):
            pass


@pytest.mark.usefixtures("tries_once")
def test_none_waits_forever() -> None:
    holder = rlock("stock:42", owner="another")
    holder.acquire()

    def wait_in_call() -> None:
        lock = rlock("stock:42")
        assert lock.acquire(wait_time=None)
        lock.release()

    with beside(visit, rlock("stock:42", wait_time=None)), beside(wait_in_call):
        eventually(lambda: (info := holder.info()) is not None and info.waiting == 2)
        holder.release()


@pytest.mark.usefixtures("tries_once")
def test_semaphores_follow_and_latches_wait() -> None:
    assert Semaphore("seats").try_set_permits(0)
    assert not Semaphore("seats").acquire()
    assert not Semaphore("seats", wait_time=0.01).acquire()
    licences = PermitExpirableSemaphore("licences")
    licences.try_set_permits(1)
    with licences.permit():
        assert licences.acquire() is None
        with pytest.raises(LockTimeoutError), licences.permit():
            pass
    assert CountDownLatch("done").wait_time is None


@pytest.mark.usefixtures("taken")
def test_who_decides_for_decorated_callables(settings: Settings) -> None:

    @distributed_lock("stock:42")
    def function() -> None: ...

    @distributed_lock("stock:42")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("sold")

    with pytest.raises(LockTimeoutError):
        function()
    settings.RLOCK = {"default": {"WAIT_TIME": None, "VIEW_WAIT_TIME": 0}}
    assert view(RequestFactory().post("/")).status_code == 423
