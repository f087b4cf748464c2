"""One start of each server for all that is tried with it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import count
from typing import Any

import pytest
import redis

from tests.servers.running import SERVERS, Server, Site
from tests.servers.views import Views

_numbers = count(1)

SHORT = {"gunicorn-gthread", "uvicorn"}
"""One of each interface. The others are tried in the long form."""


def _each(server: Server) -> Any:
    long = () if server.name in SHORT else pytest.mark.thorough
    return pytest.param(server, id=server.name, marks=long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the server's log where a test failed."""
    report = yield
    site = getattr(item, "funcargs", {}).get("site")
    if report.failed and site is not None:
        report.sections.append((f"Log of {site.server.name}", site.log()))
    return report


@pytest.fixture(scope="module", params=map(_each, SERVERS))
def _started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server = request.param
    pytest.importorskip(server.package, reason=f"{server.package} is not installed")
    with Site(server, tmp_path_factory.mktemp(server.name)) as site:
        yield site


@pytest.fixture
def site(_started: Site) -> Iterator[Site]:
    """Two processes of a server, without connections from tests before."""
    yield _started
    _started.disconnect()


@pytest.fixture
def views(site: Site, redis_client: redis.Redis) -> Views:
    """Views of the kind that the server is for, under locks that no other test uses."""
    return Views(redis_client, f"cake{next(_numbers)}", is_async=site.server.speaks_asgi)
