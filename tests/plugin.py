"""Starts the server of the test process before pytest-django reads the settings, which name its address.

With xdist each worker process has a server of its own, and the process that only directs them has none. With
RLOCK_TEST_IN_PROCESS set, it is the server of ``django_rlock.testing``, which must pass the same tests.
"""

import os
import signal
import threading
from collections.abc import Generator
from typing import Any

import django.test.signals  # noqa: F401 - so that Django forgets its caches before the package makes connections anew
import pytest
import redis

from example_project.embedded import EmbeddedServer, ServerError


class InProcess(EmbeddedServer):
    """The server of ``django_rlock.testing``."""

    def start(self) -> None:
        from django_rlock._memory import InProcessServer

        self._server = InProcessServer()
        self._listener = self._server._server  # which listens here, and nowhere else
        self._listener.server_bind()
        self._listener.server_activate()
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """It ends with the process."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.server_address[1]}/0"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(self.url, **{"decode_responses": True, **options})


def _hear_signals() -> None:
    """A shell that runs the tests in the background, or under nohup, has these ignored, in all that they start too."""
    for number, handler in (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


_hear_signals()

server_key = pytest.StashKey[EmbeddedServer]()


# A wrapper runs before pytest-django's own hook of this name, which loads the settings.
@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    try:
        server = InProcess() if os.environ.get("RLOCK_TEST_IN_PROCESS") else EmbeddedServer()
        if not _only_directs_workers(early_config):
            server.start()
            early_config.stash[server_key] = server
            os.environ["RLOCK_TEST_URL"] = server.url
    except ServerError as error:
        raise pytest.UsageError(str(error)) from error
    return (yield)


@pytest.hookimpl(tryfirst=True, optionalhook=True)  # before the one that xdist comes with
def pytest_xdist_auto_num_workers() -> int:
    """Two for each core and one more, because the tests wait more than they compute."""
    return 2 * (os.cpu_count() or 1) + 1


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(server_key, None):
        server.stop()


def _only_directs_workers(config: pytest.Config) -> bool:
    return "PYTEST_XDIST_WORKER" not in os.environ and bool(config.known_args_namespace.numprocesses)
