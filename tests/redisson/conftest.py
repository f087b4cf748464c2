"""Redisson's own tests, ported: the same meaning, through both bindings. The table is docs/design/redisson-tests.md.

Seconds have become tenths, and sleeps have become events. What the table points at elsewhere is not repeated here.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_rlock import FairLock, MultiLock, RLock, SpinLock
from django_rlock.locks import BaseLock
from example_project.embedded import EmbeddedServer
from tests.bindings import binding, nothing_left, nothing_reported, pytest_pyfunc_call
from tests.processes import ClientProcess

__all__ = ["binding", "nothing_left", "nothing_reported", "pytest_pyfunc_call"]


def several(name: str, **options: Any) -> MultiLock:
    """In place of Redisson's group lock: the values of a group, locked as one."""
    return MultiLock(RLock(f"{name}:1"), RLock(f"{name}:2"), **options)


@pytest.fixture(params=[RLock, FairLock, SpinLock, several], ids=["lock", "fair", "spin", "group"])
def kind(request: pytest.FixtureRequest) -> Callable[..., BaseLock]:
    """The kinds whose test classes in Redisson are copies of one another, in turn."""
    return request.param


@pytest.fixture
def clients(server: EmbeddedServer) -> Iterator[Callable[..., list[ClientProcess]]]:
    """``clients(3, WATCHDOG_TIMEOUT=1)``: this many processes, each of them a client in Redisson's terms."""
    with ExitStack() as processes:

        def start(number: int, **options: Any) -> list[ClientProcess]:
            return [processes.enter_context(ClientProcess(server.url, options)) for _ in range(number)]

        yield start
