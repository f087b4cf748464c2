"""Tests of what goes wrong: lost replies, signals, cancellations, dead and paused processes and servers."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pytest_django import Settings

from example_project.embedded import EmbeddedServer
from tests.bindings import binding, kind, nothing_left, pytest_pyfunc_call
from tests.conftest import _use as use_server
from tests.proxy import Proxy, load_scripts

__all__ = ["binding", "kind", "nothing_left", "pytest_pyfunc_call"]


@pytest.fixture
def proxy(server: EmbeddedServer, settings: Settings) -> Iterator[Proxy]:
    """A proxy before the suite's server; the cache "default" goes through it."""
    load_scripts(server)
    with TemporaryDirectory(prefix="rlock-") as folder, Proxy(server.folder / "server.sock", Path(folder)) as running:
        use_server(settings, "default", running.url)
        yield running
