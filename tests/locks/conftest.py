"""Tests of the locks' behaviour: each body runs through both bindings, most with every kind."""

import pytest

from django_rlock import FairLock, FencedLock, RLock, SpinLock
from django_rlock.locks import BaseLock
from tests.bindings import binding, nothing_left, nothing_reported, pytest_pyfunc_call
from tests.faults.conftest import proxy

__all__ = ["binding", "nothing_left", "nothing_reported", "proxy", "pytest_pyfunc_call"]


@pytest.fixture(params=[FairLock, RLock, SpinLock, FencedLock], ids=lambda each: each.kind)
def kind(request: pytest.FixtureRequest) -> type[BaseLock]:
    """Each kind of exclusive lock in turn."""
    return request.param
