"""One test body over every topology, through both faces and with several kinds of lock."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pytest_django import Settings

from tests.faces import face, kind, pytest_pyfunc_call
from tests.topologies.servers import TOPOLOGIES, Topology

__all__ = ["face", "kind", "pytest_pyfunc_call"]

Started = Callable[[str], Topology]


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    """Starts a topology when it is first asked for; all tests of the session share it, and break nothing."""
    running: dict[str, Topology] = {}
    with ExitStack() as stack:

        def start(name: str) -> Topology:
            if name not in running:
                running[name] = stack.enter_context(TOPOLOGIES[name]())
            return running[name]

        yield start


@pytest.fixture(params=list(TOPOLOGIES))
def topology(request: pytest.FixtureRequest, started: Started, use: Callable[[Topology], None]) -> Iterator[Topology]:
    """Each topology in turn, as the default alias."""
    chosen = started(request.param)
    use(chosen)
    yield chosen
    chosen.redis.flushall()


@pytest.fixture
def use(settings: Settings) -> Callable[..., None]:
    """Makes a topology the default cache and lock alias; keywords are options of RLOCK."""

    def point(topology: Topology, **options: object) -> None:
        settings.CACHES = {**settings.CACHES, "default": topology.cache}
        settings.RLOCK = {"default": options}

    return point
