"""The race that the decorator is made for, with a database that can show it: SQLite has one writer at a time."""

import http.client
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.postgres import PostgresServer
from example_project.embedded import EmbeddedServer
from tests.eventually import PATIENCE
from tests.programs import started

BUYERS = 24
ITEMS = 10


pytestmark = pytest.mark.thorough  # test_transactions.py shows the same by the order of events


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    yield from started(PostgresServer)


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, server: EmbeddedServer) -> Iterator[int]:
    """The port of the shop."""
    given = json.dumps({"database": postgres.database, "redis": server.url})
    with subprocess.Popen(
        [sys.executable, "-m", "tests.web.shop", given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=PATIENCE)


def sell(port: int, url: str) -> Counter[int]:
    """How often each status was returned, when all requests come at once."""

    def buy(_: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", url)
        status = connection.getresponse().status
        connection.close()
        return status

    with ThreadPoolExecutor(BUYERS) as buyers:
        return Counter(buyers.map(buy, range(BUYERS)))


@pytest.mark.parametrize("url", ["/safe/1/", "/action/3/", "/operation/4/"])
def test_the_stock_is_never_oversold(shop: int, url: str) -> None:
    assert sell(shop, url) == {200: ITEMS, 409: BUYERS - ITEMS}


def test_released_before_commit_it_is(shop: int) -> None:
    """The same with ``atomic=False``, where Django commits after the release: without it the test above is no proof."""
    answers = sell(shop, "/late/2/")
    assert set(answers) <= {200, 409}
    assert answers[200] > ITEMS
