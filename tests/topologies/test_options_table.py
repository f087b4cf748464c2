"""The table of options in docs/connection-options.md is complete, and true."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django_redis
import pytest
import redis
from redis.sentinel import SentinelConnectionPool

from django_rlock._transport.pool import Source
from django_rlock._transport.servers import SENTINEL_WITHIN
from tests.topologies.documented import OPTIONS

SECTION = OPTIONS.read_text(encoding="utf-8").partition("## Options of the entry\n")[2].partition("\n## ")[0]
ROWS = [row.split(" | ") for row in re.findall(r"^\| (`.*) \|$", SECTION, re.MULTILINE)]
VERDICTS = {name: says.split()[0].strip(",;:") for names, says in ROWS for name in re.findall(r"`(\w+)`", names)}
CONNECTIONS = redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection
POOLS = redis.ConnectionPool, redis.BlockingConnectionPool, SentinelConnectionPool
INTERNAL = {"self", "args", "kwargs", "parser"}
VALUES: dict[str, Any] = {"protocol": 3, "health_check_interval": 30}


def parameters(*classes: type[Any]) -> Iterator[str]:
    for each in {base for given in classes for base in given.__mro__ if base is not object}:
        yield from inspect.signature(each.__init__).parameters  # type: ignore[misc]


def options_of_django_redis() -> set[str]:
    sources = Path(django_redis.__file__).parent.rglob("*.py")
    return {name for each in sources for name in re.findall(r'options\.get\(\s*"([A-Z_]+)"', each.read_text())}


def test_each_option_is_in_one_row() -> None:
    named = [name for names, _ in ROWS for name in re.findall(r"`(\w+)`", names)]
    assert len(named) == len(set(named))
    known = {*parameters(*CONNECTIONS, *POOLS), *options_of_django_redis()} - INTERNAL
    assert known - set(named) == set()
    assert set(VERDICTS.values()) == {"honoured", "replaced", "not"}


@pytest.mark.parametrize("name", sorted({*parameters(*CONNECTIONS)} - INTERNAL))
def test_an_option_of_a_connection_is_what_its_row_says(name: str) -> None:
    marker = VALUES.get(name, object())
    options = Source(SimpleNamespace(connection_kwargs={name: marker})).options
    reaches_links = options.get(name) == marker
    if VERDICTS[name] != "not":
        assert reaches_links == (VERDICTS[name] == "honoured")


def test_a_silent_sentinel_takes_as_long_as_its_row_says() -> None:
    [says] = [says for names, says in ROWS if "`SENTINELS`" in names]
    assert f"at most {SENTINEL_WITHIN:g} s;" in says
