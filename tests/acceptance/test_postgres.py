"""The shop on PostgreSQL: buyers wait for the row, and nothing is left in the database."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import psycopg
import pytest

from benchmarks.postgres import PostgresServer
from example_project.stack import Stack
from tests.programs import started


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    yield from started(PostgresServer)


@pytest.fixture
def database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A connection to the database that the environment names for the shop."""
    where = postgres.database
    monkeypatch.setenv("SHOP_POSTGRES", where["NAME"])
    monkeypatch.setenv("PGHOST", where["HOST"])
    monkeypatch.setenv("PGUSER", where["USER"])
    with psycopg.connect(dbname=where["NAME"], autocommit=True) as connection:
        yield connection


@pytest.mark.thorough
def test_sells_from_a_locked_row_and_leaves_nothing(
    database: psycopg.Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    with Stack() as stack:
        url = stack.start_site()
        options = ["--buyers=60", "--stock=50", "--strict", "--lane=database", "--lane=locked", "--json"]
        assert stack.manage("flashsale", f"--url={url}", *options) == 0
        with urllib.request.urlopen(url) as page:
            assert b"select_for_update()" in page.read()
        assert _schemas(database) == 1
    printed = capfd.readouterr()
    assert printed.err == ""
    for result in json.loads(printed.out):
        assert (result["sold"], result["sold_out"], result["oversold"]) == (50, 10, 0)
    assert _schemas(database) == 0


def _schemas(database: psycopg.Connection) -> int:
    return len(database.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'shop%'").fetchall())
