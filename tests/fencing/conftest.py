"""Real databases with the tables of ``models``: SQLite in a file, and PostgreSQL where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker, Settings

from benchmarks.postgres import PostgresServer
from tests.bindings import binding, nothing_left, pytest_pyfunc_call
from tests.fencing.models import MODELS
from tests.programs import started

__all__ = ["binding", "nothing_left", "pytest_pyfunc_call"]


class Router:
    """Leads the models to the database of the running test. Reading goes nowhere else than writing."""

    alias = ""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return self.alias if model._meta.app_label == "fencing" else None

    db_for_read = db_for_write


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    file = tmp_path_factory.mktemp("fencing") / "db.sqlite3"
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": options}
    with django_db_blocker.unblock():
        yield from _database("fencing_sqlite", entry)


@pytest.fixture(scope="session")
def postgres(django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    with contextmanager(started)(PostgresServer) as server, django_db_blocker.unblock():
        yield from _database("fencing_postgres", server.database)


def _database(alias: str, entry: dict[str, Any]) -> Iterator[str]:
    """Add a database with empty tables. Threads and tests have connections of their own."""
    connections.databases[alias] = {**connections.databases["default"], **entry}
    with connections[alias].schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    connections[alias].close()
    yield alias
    connections[alias].close()
    del connections.databases[alias]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def tables(database: str, settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The empty tables, in the database that the models use from now on."""
    router = Router()
    router.alias = database
    settings.DATABASE_ROUTERS = [router]
    with django_db_blocker.unblock():
        yield database
        with connections[database].cursor() as cursor:
            for model in reversed(MODELS):
                cursor.execute(f'DELETE FROM "{model._meta.db_table}"')
        connections[database].close()
