"""An acquire ends a second after its wait time at the latest, however the server delays it."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from django_rlock import LockUnavailableError
from django_rlock._redis import scripts
from django_rlock._transport import calls, listener, subscriber
from django_rlock._transport.connection import Connection, ConnectionSlot
from django_rlock._transport.servers import server
from tests.background import forget_clean_up
from tests.beside import beside
from tests.eventually import PATIENCE
from tests.proxy import Proxy

KEY = "rlock:stock:42"
ACQUIRE = {"fair": scripts.FAIR_ACQUIRE, "rlock": scripts.RLOCK_ACQUIRE}
CLOSES_AFTER = 0.3
"""When the server closes a connection, in seconds; a caller has less than twice that."""


@pytest.fixture
def closing(settings) -> Iterator[None]:
    """A server that accepts connections, and closes them later without a word."""

    def serve() -> None:
        with contextlib.suppress(OSError):  # the test has ended
            while True:
                connection, _ = accepting.accept()
                threading.Timer(CLOSES_AFTER, connection.close).start()

    with socket.create_server(("127.0.0.1", 0)) as accepting:
        url = f"redis://127.0.0.1:{accepting.getsockname()[1]}/0"
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": url}}
        with beside(serve):
            yield
            accepting.shutdown(socket.SHUT_RDWR)
    forget_clean_up()


@pytest.mark.usefixtures("closing")
async def test_all_tries_of_a_call_share_its_time(binding, kind, monkeypatch):
    reached, tries = server("default"), []
    connect = reached._connect

    def note_and_connect(slot: ConnectionSlot | None) -> Connection:
        tries.append(slot)
        return connect(slot)

    monkeypatch.setattr(reached, "_connect", note_and_connect)
    monkeypatch.setattr(calls, "REPLY_GRACE", 0.35)
    with pytest.raises(LockUnavailableError):
        await binding.acquire(kind("stock:42"), wait_time=0.05)
    assert len(tries) <= 2, "the second one lasted until it was closed as well"


async def test_a_subscription_is_waited_for_no_longer_than_the_caller_has(binding, kind, redis_client, monkeypatch):
    """Here for an hour."""
    monkeypatch.setattr(listener, "CONFIRM_WITHIN", 3600)
    monkeypatch.setattr(subscriber.Subscriber, "_connect", _refuse)
    redis_client.hset(KEY, "another", 1)
    assert not await binding.result(binding.start(binding.acquire, kind("stock:42", wait_time=0.05)))


def _refuse(_: object) -> None:
    raise OSError("no route")


async def test_a_late_reply_ends_the_wait(binding, kind, proxy: Proxy, redis_client, monkeypatch):
    """There is no time to join the queue, and to leave it again."""
    monkeypatch.setattr(calls, "REPLY_GRACE", PATIENCE)
    redis_client.hset(KEY, "another", 1)
    late = proxy.hold_reply(ACQUIRE[kind.kind])
    acquiring = binding.start(binding.acquire, kind("stock:42", wait_time=0.05))
    await binding.until(late.served.is_set)
    until = time.monotonic() + 0.05
    await binding.until(lambda: time.monotonic() > until)
    again = proxy.cut_before(ACQUIRE[kind.kind])
    late.let_go.set()
    assert await binding.result(acquiring) is False
    assert not again.served.is_set()
