"""Starts the server of the test process before pytest-django reads the settings, which name its address.

With xdist each worker process has a server of its own, and the process that only directs them has none.
"""

import os
from collections.abc import Generator

import pytest

from example_project.embedded import EmbeddedServer, ServerError

server_key = pytest.StashKey[EmbeddedServer]()


# A wrapper runs before pytest-django's own hook of this name, which loads the settings.
@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    try:
        server = EmbeddedServer()
        if not _only_directs_workers(early_config):
            server.start()
            early_config.stash[server_key] = server
            os.environ["RLOCK_TEST_URL"] = server.url
    except ServerError as error:
        raise pytest.UsageError(str(error)) from error
    return (yield)


@pytest.hookimpl(tryfirst=True, optionalhook=True)  # before the one that xdist comes with
def pytest_xdist_auto_num_workers() -> int:
    """Two for each core, because the tests wait more than they compute."""
    return 2 * (os.cpu_count() or 1)


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(server_key, None):
        server.stop()


def _only_directs_workers(config: pytest.Config) -> bool:
    return "PYTEST_XDIST_WORKER" not in os.environ and bool(config.known_args_namespace.numprocesses)
