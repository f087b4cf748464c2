"""Demos as users start them, and one shop for the tests that only look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from example_project.stack import Stack
from tests.acceptance.running import Running


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """Starts commands; whatever they leave behind is ended after the test."""
    with ExitStack() as started:

        def start(*command: str) -> Running:
            running = Running([*command])
            started.callback(running.close)
            return running

        yield start


@dataclass
class Shop:
    """A shop that runs at ``url``."""

    stack: Stack
    url: str


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A shop with a worker, of this module, whose report waits for a slow browser."""
    with opened(SHOP_REPORT_TIME="20", SHOP_LONG_EXPIRY="1") as shop:
        yield shop


@pytest.fixture
def shop_with_long_leases() -> Iterator[Shop]:
    """A shop of one test, whose leases end no sooner than the test gives up."""
    with opened(SHOP_LEASE="1200") as shop:
        yield shop


@contextmanager
def opened(**variables: str) -> Iterator[Shop]:
    """A shop with a worker, and with these environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        with Stack() as stack:
            shop = Shop(stack, stack.start_site())
            worker = stack.start_worker()
            worker.wait_until_ready()
            yield shop
