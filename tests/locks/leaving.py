"""Helpers for tests of jobs, requests and tasks that leave a lock held."""

from collections.abc import Callable
from typing import Any

import pytest

from django_rlock import FairLock, MultiLock, ReadWriteLock, RLock
from django_rlock.locks.holds import HOLDS
from tests.background import renew_now

LOCKS: dict[str, Callable[[], Any]] = {
    "fair": lambda: FairLock("stock:42"),
    "plain": lambda: RLock("stock:42"),
    "read": lambda: ReadWriteLock("stock:42").read_lock,
    "multi": lambda: MultiLock(FairLock("stock:42"), RLock("stock:43")),
}


@pytest.fixture(params=LOCKS)
def lock(request: pytest.FixtureRequest) -> Any:
    return LOCKS[request.param]()


def take(lock: Any) -> bool:
    """Whether it was taken. A job that returned what acquire() returns would be refused."""
    return lock.acquire(wait_time=0) is True


def visit(lock: Any) -> int:
    """How often it is held inside."""
    with lock:
        return HOLDS.snapshot()[0].count


def given_back(redis_client: Any) -> bool:
    renew_now()
    return not redis_client.exists("rlock:stock:42", "rlock:stock:43") and not HOLDS
