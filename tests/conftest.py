"""Fixtures for every test: the suite's server, a client for it, and servers that a test may break."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import hypothesis
import pytest
import redis
from pytest_django import Settings

from django_rlock._monitoring import reporter
from django_rlock._monitoring.recorder import Recorder
from example_project.embedded import EmbeddedServer
from tests.background import caplog  # noqa: F401 - a fixture
from tests.forms import THOROUGH, is_of_the_short_form
from tests.plugin import server_key

# A machine that stalls fails no example. In CI, the profile that hypothesis takes there stays what it is otherwise.
hypothesis.settings.register_profile("suite", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("suite")

OwnServer = Callable[..., EmbeddedServer]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is of the long form, unless asked for it."""
    if THOROUGH:
        return
    short = [item for item in items if is_of_the_short_form(item)]
    config.hook.pytest_deselected(items=[item for item in items if not is_of_the_short_form(item)])
    items[:] = short


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
    reporter._handed_over.value.clear()  # otherwise their report is written until their leases would have ended
    _session_client.flushall()


@pytest.fixture(autouse=True, scope="session")
def _no_history() -> Iterator[None]:
    """The tests' own process does not write its counts in the midst of a test that looks at every key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "round", lambda *_: math.inf)
        yield


@pytest.fixture
def redis_client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the suite's server that returns text."""
    with server.client() as client:
        yield client


@pytest.fixture
def brief_collections() -> Iterator[None]:
    """Let the garbage collector look at new objects only."""
    gc.collect()  # what is garbage by now would stay for ever, and a connection with it
    gc.freeze()
    yield
    gc.unfreeze()


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
