"""The real Redisson beside ours: a JVM for the tests of a process, and a server that both talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pytest_django import Settings

from example_project.embedded import EmbeddedServer
from tests.faces import face, nothing_left, pytest_pyfunc_call
from tests.interop.building import UnavailableError, build
from tests.interop.redisson import JavaThread, Redisson
from tests.interop.sites import SingleServer

__all__ = ["face", "nothing_left", "pytest_pyfunc_call"]

_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("interop")
            # Maven's first run downloads, which may take longer than a test may.
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def redisson() -> Iterator[Redisson]:
    try:
        program = build()
    except UnavailableError as error:
        pytest.skip(str(error))
    process = Redisson(program)
    yield process
    process.end()


@pytest.fixture(scope="session")
def _single_server() -> Iterator[SingleServer]:
    with EmbeddedServer(port=0) as server:
        yield SingleServer(server)


@pytest.fixture
def site(redisson: Redisson, _single_server: SingleServer, settings: Settings) -> Iterator[SingleServer]:
    """Where both sides meet: empty, and the alias "default" of our side."""
    settings.CACHES = {**settings.CACHES, "interop": _single_server.cache}
    settings.RLOCK = _single_server.locks
    _single_server.empty()
    yield _single_server
    assert redisson.complaints() == "", "Redisson met something that it did not expect"


@pytest.fixture
def java(redisson: Redisson, site: SingleServer) -> Callable[..., JavaThread]:
    """``java("alice")`` is a thread on the other side; ``hasty=True`` gives it a client with a short watchdog."""
    number = next(_numbers)

    def thread(name: str, *, hasty: bool = False) -> JavaThread:
        return redisson.thread(f"{name}-{number}", site.hasty if hasty else site.address)

    return thread


@pytest.fixture(params=["stock:{}", "{{shop}}:stock:{}"], ids=["bare", "tagged"])
def name(request: pytest.FixtureRequest) -> str:
    """A name that no test has used, without a hash tag and with one."""
    return request.param.format(next(_numbers))
