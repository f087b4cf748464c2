"""Tests of the locks' behaviour: each body runs through both bindings, most with every kind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_rlock import FairLock, FencedLock, MultiLock, ReadLock, RLock, SpinLock, WriteLock
from django_rlock.locks import BaseLock
from django_rlock.signals import lock_lost
from tests.background import settle
from tests.bindings import binding, nothing_left, nothing_reported, pytest_pyfunc_call
from tests.faults.conftest import proxy
from tests.heard import heard, lock_name

__all__ = ["binding", "nothing_left", "nothing_reported", "proxy", "pytest_pyfunc_call"]


@pytest.fixture(params=[FairLock, RLock, SpinLock, FencedLock], ids=lambda each: each.kind)
def kind(request: pytest.FixtureRequest) -> type[BaseLock]:
    """Each kind of exclusive lock in turn."""
    return request.param


def several(name: str, **options: Any) -> MultiLock:
    """Three locks of different kinds as one."""
    return MultiLock(RLock(name), FairLock(f"{name}:2"), ReadLock(f"{name}:3"), **options)


ANY_KIND = [FairLock, RLock, SpinLock, FencedLock, ReadLock, WriteLock, several]


@pytest.fixture(params=ANY_KIND, ids=lambda each: each.__name__)
def any_kind(request: pytest.FixtureRequest) -> Callable[..., BaseLock]:
    """Each kind of lock, and several of them as one."""
    return request.param


@pytest.fixture
def losses() -> Iterator[list[str]]:
    """The names of the locks whose loss was reported."""
    settle()  # an earlier test's
    with heard(lock_lost, note=lock_name) as told:
        yield told
