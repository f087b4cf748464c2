"""Fixtures for pytest, which finds them once the package is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def rlocks() -> Iterator[ModuleType]:
    """Locks in the test process, without Redis, for one test. The test fails if it leaves a lock held.

    Returns ``django_rlock.testing``, as in ``rlocks.assert_not_locked("stock:1")``.
    """
    from django_rlock import testing

    with testing.override_locks():
        yield testing
        testing.assert_no_locks_left()


@pytest.fixture
def held_lock(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """``held_lock("stock:1")`` makes another owner hold a lock until the test ends; the arguments are those of
    ``hold()``."""
    from django_rlock.testing import hold

    if "rlocks" in request.fixturenames:
        request.getfixturevalue("rlocks")  # so that it ends after this one
    with ExitStack() as holds:

        def keep(*names: str, **options: Any) -> None:
            holds.enter_context(hold(*names, **options))

        yield keep
