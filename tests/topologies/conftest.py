"""One test body over every topology, through both bindings and with several kinds of lock."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pytest_django import Settings

from tests.bindings import binding, kind, nothing_left, pytest_pyfunc_call
from tests.console.conftest import past
from tests.forms import long
from tests.topologies.servers import TOPOLOGIES, Topology

__all__ = ["binding", "kind", "nothing_left", "past", "pytest_pyfunc_call"]

Started = Callable[[str], Topology]


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    """Starts a topology on first use; all tests of the session share it, and break nothing."""
    running: dict[str, Topology] = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # Else each connection with TLS reads all authorities that the system trusts: 50 ms of a core.
        patch.setenv("SSL_CERT_FILE", os.devnull)
        patch.setenv("SSL_CERT_DIR", os.devnull)

        def start(name: str) -> Topology:
            if name not in running:
                running[name] = stack.enter_context(TOPOLOGIES[name]())
            return running[name]

        yield start


SHORT = "single", "tls", "django", "sentinel", "cluster"


@pytest.fixture(params=[*SHORT, *long(*(name for name in TOPOLOGIES if name not in SHORT))])
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
