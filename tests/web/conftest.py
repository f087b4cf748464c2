"""Fixtures for decorated functions and views."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import connection, connections
from pytest_django import Settings

from django_rlock import rlock
from django_rlock.signals import lock_acquired, lock_released
from tests.web.sale import told

Holder = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def taken() -> Holder:
    """``with taken("stock:7"):`` another owner has that lock."""

    def take(name: str, **options: Any) -> AbstractContextManager[Any]:
        return rlock(name, owner="another:1", wait_time=0, **options)

    return take


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def no_users(settings: Settings) -> None:
    """Django REST framework authenticates nobody."""
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None}


@pytest.fixture
def events(transactional_db: None) -> Iterator[list[str]]:
    """The events in order: of locks by their signals, of transactions by SQLite itself, of views as they tell them."""
    seen: list[str] = []

    def acquired(lock: Any, **_: Any) -> None:
        seen.append(f"acquire {lock.name}")

    def released(lock: Any, **_: Any) -> None:
        seen.append(f"release {lock.name}")

    def hear(what: str, **_: Any) -> None:
        seen.append(what)

    def traced(statement: str) -> None:
        if statement in {"BEGIN", "COMMIT", "ROLLBACK"}:
            seen.append(statement)

    connection.ensure_connection()
    connection.connection.set_trace_callback(traced)
    lock_acquired.connect(acquired)
    lock_released.connect(released)
    told.connect(hear)
    yield seen
    told.disconnect(hear)
    lock_acquired.disconnect(acquired)
    lock_released.disconnect(released)
    connection.connection.set_trace_callback(None)
