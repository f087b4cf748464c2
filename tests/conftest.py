"""Fixtures for every test: the suite's server, a client for it, and servers that a test may break."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import hypothesis
import pytest
import redis
from pytest_django import Settings

from django_rlock.drivers import base, pubsub
from example_project.embedded import EmbeddedServer
from tests import background
from tests.plugin import server_key

# A machine that stalls fails no example. What CI's own profile says stays as it is.
hypothesis.settings.register_profile("suite", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("suite")

OwnServer = Callable[..., EmbeddedServer]


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> EmbeddedServer:
    """The server of this test process, behind the cache "default"; take ``own_server`` to break one."""
    return pytestconfig.stash[server_key]


@pytest.fixture(scope="session")
def _session_client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture(autouse=True)
def _empty_server(_session_client: redis.Redis) -> None:
    _session_client.flushall()


@pytest.fixture(autouse=True)
def _nothing_left(settings: Settings) -> Iterator[None]:
    """No test leaves a hold, a wait or a hanging background thread to the next one.

    Those that lose locks on purpose take them off the books. It comes before the settings are put back, and with them
    the connections that the background thread may be using.
    """
    yield
    assert background.clear() == []


_BREAKING = {"own_server", "proxy", "topology", "nodes", "fragile"}
"""Fixtures with which a test has a server reply late or never."""

STALL = 5.0
"""For how long the machine may stand still in a test that breaks no server, in seconds."""


@pytest.fixture(autouse=True)
def _replies_in_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """A server that stalls with the whole machine is unavailable only to tests that are about that."""
    with pytest.MonkeyPatch.context() as patch:
        if not _BREAKING & {*request.fixturenames}:
            patch.setattr(base, "REPLY_GRACE", STALL)
            patch.setattr(pubsub, "CONFIRM_WITHIN", STALL)
        yield


@pytest.fixture
def redis_client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the suite's server that answers text."""
    with server.client() as client:
        yield client


@pytest.fixture
def own_server(settings: Settings) -> Iterator[OwnServer]:
    """Starts servers for one test alone, which may kill, pause and restart them.

    The cache "default", and with it the lock alias "default", use the server of ``own_server()`` from then
    on; ``own_server("locks1")`` adds a cache and a lock alias, and ``own_server(None)`` touches no settings.
    ``port`` and ``args`` are EmbeddedServer's.
    """
    with ExitStack() as servers:

        def start(
            alias: str | None = "default", *, port: int | None = None, args: Sequence[str] = ()
        ) -> EmbeddedServer:
            started = servers.enter_context(EmbeddedServer(port=port, args=args))
            if alias is not None:
                _use(settings, alias, started.url)
            return started

        yield start


def _use(settings: Settings, alias: str, url: str) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": url}
    settings.CACHES = {**settings.CACHES, alias: cache}
    locks = getattr(settings, "RLOCK", {})
    settings.RLOCK = {**locks, alias: {**locks.get(alias, {}), "CACHE": alias}}
