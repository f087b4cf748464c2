"""Tests of the locks' behaviour: each body runs through both bindings, most with every kind."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_rlock import FairLock, FencedLock, RLock, SpinLock
from django_rlock.locks import BaseLock
from django_rlock.signals import lock_lost
from tests.background import settle
from tests.bindings import binding, nothing_left, nothing_reported, pytest_pyfunc_call
from tests.faults.conftest import proxy

__all__ = ["binding", "nothing_left", "nothing_reported", "proxy", "pytest_pyfunc_call"]


@pytest.fixture(params=[FairLock, RLock, SpinLock, FencedLock], ids=lambda each: each.kind)
def kind(request: pytest.FixtureRequest) -> type[BaseLock]:
    """Each kind of exclusive lock in turn."""
    return request.param


@pytest.fixture
def losses() -> Iterator[list[str]]:
    """The names of the locks whose loss was reported."""
    settle()  # an earlier test's
    told: list[str] = []

    def note(lock: BaseLock, **_: Any) -> None:
        told.append(lock.name)

    lock_lost.connect(note)
    yield told
    lock_lost.disconnect(note)
