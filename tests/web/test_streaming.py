"""Streaming responses keep the lock until they are closed, whoever closes them."""

import asyncio
import gc
import http.client
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
import uvicorn
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from django_rlock import distributed_lock, rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_released
from tests.background import until_clean
from tests.beside import beside
from tests.eventually import PATIENCE
from tests.operators import free_by_force

CHUNK = b"x" * 1000
HUGE = 100_000
"""Chunks that no socket buffer takes, so that a client which goes away is noticed."""


@distributed_lock("export:<pk>")
def export(request: HttpRequest, pk: int, chunks: int = 3) -> StreamingHttpResponse:
    return StreamingHttpResponse(CHUNK for _ in range(chunks))


@distributed_lock("export:<pk>")
async def aexport(request: HttpRequest, pk: int, chunks: int = 3) -> StreamingHttpResponse:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(chunks):
            await asyncio.sleep(0)
            yield CHUNK

    return StreamingHttpResponse(content())


@distributed_lock("export:<pk>")
def download(request: HttpRequest, pk: int) -> FileResponse:
    return FileResponse(open(__file__, "rb"))  # noqa: PTH123


@distributed_lock("export:<pk>", "archive:<pk>")
def export_archive(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    return export.__wrapped__(request, pk)  # type: ignore[attr-defined]


urlpatterns = [
    path("export/<int:pk>/", export),
    path("export/<int:pk>/<int:chunks>/", export),
    path("aexport/<int:pk>/", aexport),
    path("aexport/<int:pk>/<int:chunks>/", aexport),
    path("download/<int:pk>/", download),
]

# Closing a response ends its request, where Django closes old database connections.
pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db]


@pytest.fixture
def released() -> Iterator[SimpleQueue[str]]:
    """The names of the locks that are released."""
    names: SimpleQueue[str] = SimpleQueue()

    def tell(lock: Any, **_: Any) -> None:
        names.put(lock.name)

    lock_released.connect(tell)
    yield names
    lock_released.disconnect(tell)


def post() -> HttpRequest:
    return RequestFactory().post("/")


def test_the_lock_is_held_until_close() -> None:
    response = export(post(), pk=7)
    assert rlock("export:7").locked()
    assert b"".join(response) == CHUNK * 3
    assert rlock("export:7").locked()
    response.close()
    assert not rlock("export:7").locked()
    assert not HOLDS.snapshot()


def test_of_several_the_one_that_is_held_already_stays_with_its_holder() -> None:
    with rlock("export:7"):
        response = export_archive(post(), pk=7)
        assert rlock("export:7").hold_count() == 1
    assert not rlock("export:7").locked()
    assert rlock("archive:7").locked()
    response.close()
    assert not rlock("archive:7").locked()


# It collects the garbage of earlier tests too: sockets of connections that a signal interrupted while they were made.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_response_that_nobody_closes_gives_it_back() -> None:
    response = export(post(), pk=7)
    assert rlock("export:7").locked()
    del response
    gc.collect()
    assert HOLDS.snapshot() == []
    until_clean()
    assert not rlock("export:7").locked()


def test_the_watchdog_renews_it_meanwhile(settings: Any) -> None:
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3.0}}
    response = export(post(), pk=7)
    (hold,) = HOLDS.snapshot()
    first = hold.deadline
    while hold.deadline < first + 0.3:
        assert hold.lost is None
        threading.Event().wait(0.02)
    assert rlock("export:7").locked()
    response.close()


def test_one_that_is_held_already_stays_with_its_holder() -> None:
    with rlock("export:7"):
        response = export(post(), pk=7)
        assert HOLDS.snapshot()[0].count == 1
        response.close()
        assert rlock("export:7").owned()
    assert not rlock("export:7").locked()


def test_a_lock_that_was_lost_meanwhile_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    response = export(post(), pk=7)
    free_by_force("export:7")
    response.close()
    assert "A response was completed" in caplog.text


def test_the_middleware_leaves_it_to_the_response(
    client: Client, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django_rlock.middleware.LockMiddleware"]
    response: Any = client.get("/export/7/")
    assert rlock("export:7").locked()
    assert not caplog.records
    response.close()
    assert not rlock("export:7").locked()


def test_an_async_response_may_be_closed_in_a_thread() -> None:
    async def main() -> None:
        response = await aexport(post(), pk=7)
        assert [part async for part in response] == [CHUNK] * 3
        assert await rlock("export:7").alocked()
        await asyncio.to_thread(response.close)
        assert not await rlock("export:7").alocked()

    asyncio.run(main())


# ---- real servers --------------------------------------------------------------------------------------------


class ThreadedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def wsgi_server() -> Iterator[int]:
    with ThreadedServer(("127.0.0.1", 0), QuietHandler) as server:
        server.set_app(WSGIHandler())
        with beside(server.serve_forever, 0.05):
            yield server.server_port
            server.shutdown()


@contextmanager
def asgi_server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(ASGIHandler(), lifespan="off", log_level="critical"))
        with beside(server.run, [listener]):
            yield listener.getsockname()[1]
            server.should_exit = True


SERVERS = [
    pytest.param(wsgi_server, "/export/7/", id="WSGI"),
    pytest.param(wsgi_server, "/download/7/", id="WSGI file"),
    pytest.param(asgi_server, "/aexport/7/", id="ASGI"),
]


@pytest.mark.parametrize(("serve", "url"), SERVERS)
def test_a_server_closes_it(serve: Any, url: str, released: SimpleQueue[str]) -> None:
    with serve() as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", url, headers={"Host": "testserver"})
        assert connection.getresponse().read()
        connection.close()
        assert released.get(timeout=PATIENCE) == "export:7"
    assert not rlock("export:7").locked()


@pytest.mark.parametrize(
    ("serve", "url"),
    [
        pytest.param(wsgi_server, f"/export/7/{HUGE}/", id="WSGI"),
        pytest.param(asgi_server, f"/aexport/7/{HUGE}/", id="ASGI"),
    ],
)
def test_a_client_that_goes_away(serve: Any, url: str, released: SimpleQueue[str]) -> None:
    with serve() as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", url, headers={"Host": "testserver"})
        response = connection.getresponse()
        assert response.read(1000) == CHUNK
        assert rlock("export:7").locked()
        response.close()
        connection.close()
        assert released.get(timeout=PATIENCE) == "export:7"
    assert not rlock("export:7").locked()
