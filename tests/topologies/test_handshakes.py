"""A connection that fails on its way through TLS, at whichever step, is closed: no socket is left to the garbage
collector. Nor is one to a sentinel."""

import asyncio
import gc
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_rlock import LockUnavailableError, RLock
from django_rlock._core.redis_py import noted, noting_replies
from tests.answering import Answer, refusing, saying, serving
from tests.eventually import eventually
from tests.topologies.servers import command

RESET = struct.pack("ii", 1, 0)
NAMED = "subjectAltName=IP:127.0.0.1\n"


@dataclass
class Certificates:
    """Each is its own authority, except for that of the stranger."""

    folder: Path

    def make(self, name: str, extension: str = NAMED, days: int = 1) -> str:
        """A certificate with its key, in one file."""
        files = {kind: str(self.folder / f"{name}.{kind}") for kind in ("key", "csr", "ext", "crt", "pem")}
        Path(files["ext"]).write_text(extension)
        asked = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=django-rlock", "-keyout"]
        signed = f"openssl x509 -req -days {days} -extfile".split()
        subprocess.run([*asked, files["key"], "-out", files["csr"]], check=True, capture_output=True)
        own = [files["ext"], "-in", files["csr"], "-signkey", files["key"], "-out", files["crt"]]
        subprocess.run([*signed, *own], check=True, capture_output=True)
        Path(files["pem"]).write_text(Path(files["crt"]).read_text() + Path(files["key"]).read_text())
        return files["pem"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("There is no openssl command to make certificates with.")
    folder = Certificates(tmp_path_factory.mktemp("certificates"))
    return {
        "valid": folder.make("valid"),
        "stranger": folder.make("stranger"),
        "expired": folder.make("expired", days=-1),
        "elsewhere": folder.make("elsewhere", extension="subjectAltName=DNS:elsewhere.invalid\n"),
    }


def encrypted(certificate: str, then: Answer, authority: str = "") -> Answer:
    """Answers over TLS; wants a certificate of the client if an ``authority`` is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority)

    def answer(client: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(client, server_side=True) as link:
            then(link)

    return answer


def resets(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


def is_silent(client: socket.socket) -> None:
    while client.recv(1024):
        pass


class AfterTheEnd(redis.SSLConnection):
    """Begins the handshake when the server has left already."""

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        ends = select.poll()
        ends.register(sock, 0)
        assert ends.poll(10_000)
        return super()._wrap_socket_with_ssl(sock)


WRONG = refusing("WRONGPASS invalid username-password pair or user is disabled.")
STEPS: dict[str, tuple[Callable[[dict[str, str]], Answer], dict[str, Any]]] = {
    "reset before the handshake": (lambda _: resets, {"connection_class": AfterTheEnd}),
    "closed before the handshake": (lambda _: saying(b""), {}),
    "no TLS": (lambda _: saying(b"-ERR unknown command\r\n"), {}),
    "no reply": (lambda _: is_silent, {"socket_timeout": 0.2}),
    "unknown authority": (lambda found: encrypted(found["stranger"], WRONG), {}),
    "expired": (lambda found: encrypted(found["expired"], WRONG), {"ssl_ca_certs": "expired"}),
    "other host": (lambda found: encrypted(found["elsewhere"], WRONG), {"ssl_ca_certs": "elsewhere"}),
    "no certificate of the client": (lambda found: encrypted(found["valid"], WRONG, found["valid"]), {}),
    "unknown files": (lambda _: is_silent, {"ssl_certfile": __file__}),
    "OCSP": (lambda found: encrypted(found["valid"], WRONG), {"ssl_validate_ocsp": True}),
    "refused login": (lambda found: encrypted(found["valid"], WRONG), {}),
    "closed after the handshake": (lambda found: encrypted(found["valid"], saying(b"")), {}),
}


def unclosed() -> list[ssl.SSLSocket]:
    """The sockets of clients with TLS that are still open."""
    # By the type: isinstance() evaluates Django's lazy objects, such as the user of an earlier test's request.
    found = [each for each in gc.get_objects() if issubclass(type(each), ssl.SSLSocket)]
    return [each for each in found if not each.server_side and each.fileno() >= 0]


@pytest.fixture
def point(settings: Any, certificates: dict[str, str]) -> Callable[..., None]:
    """Has locks use TLS with the server of a URL."""

    def use(url: str, **kwargs: Any) -> None:
        kwargs["ssl_ca_certs"] = certificates[kwargs.get("ssl_ca_certs", "valid")]
        options = {"SOCKET_TIMEOUT": 5, "PASSWORD": "secret", "CONNECTION_POOL_KWARGS": kwargs}
        location = url.replace("redis:", "rediss:")
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "default": entry}
        settings.RLOCK = {"default": {}}

    return use


@pytest.mark.parametrize("step", STEPS)
async def test_one_that_fails_at_a_step(
    binding: Any, certificates: dict[str, str], point: Callable[..., None], step: str
) -> None:
    answer, kwargs = STEPS[step]
    with serving(answer(certificates)) as url:
        point(url, **kwargs)
        before = unclosed()
        with pytest.raises(LockUnavailableError):
            await binding.acquire(RLock("stock:42"), wait_time=0)
        await binding.until(lambda: unclosed() == before)


async def test_one_that_the_class_of_the_project_keeps(
    binding: Any, certificates: dict[str, str], point: Callable[..., None]
) -> None:
    kept: list[ssl.SSLSocket] = []

    class Keeping(redis.SSLConnection):
        def _wrap_socket_with_ssl(self, sock: Any) -> Any:
            if not kept:
                link = super()._wrap_socket_with_ssl(sock)
                kept.append(link)
            raise redis.ConnectionError("The project wants it later.")

    with serving(encrypted(certificates["valid"], is_silent)) as url:
        point(url, connection_class=Keeping)
        with pytest.raises(LockUnavailableError):
            await binding.acquire(RLock("stock:42"), wait_time=0)
        (link,) = kept
        assert link.fileno() >= 0
        link.close()


def test_one_whose_task_is_cancelled(certificates: dict[str, str], point: Callable[..., None]) -> None:
    asked, leave = threading.Event(), threading.Event()

    def answer(_: socket.socket) -> None:
        asked.set()
        leave.wait()

    async def take() -> None:
        async with RLock("stock:42"):
            pytest.fail("There is no such server.")

    async def cancel() -> None:
        task = asyncio.create_task(take())
        await asyncio.to_thread(asked.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serving(answer) as url:
        point(url)
        before = unclosed()
        asyncio.run(cancel())
        leave.set()
        eventually(lambda: unclosed() == before)


def lock_once() -> None:
    with RLock("stock:42"):
        pass


def doctor() -> None:
    call_command("rlock_doctor", stdout=StringIO())


@pytest.mark.parametrize("ask", [lock_once, doctor])
def test_one_to_a_sentinel(started: Any, use: Any, ask: Callable[[], None]) -> None:
    topology = started("sentinel")
    use(topology)
    before = connections(topology.sentinel)
    ask()
    eventually(lambda: connections(topology.sentinel) <= before)


def connections(sentinel: Any) -> int:
    """How many a sentinel has."""
    return len(command(sentinel, "CLIENT LIST").splitlines())


def test_replies_after_a_block_within_a_block_are_the_outer_blocks(redis_client: redis.Redis) -> None:
    """A connection may be opened while another one is: a project's credential provider may take a lock."""
    outer, inner = list[bool](), list[bool]()
    connection = noted(redis_client.connection_pool.make_connection())
    try:
        with noting_replies(lambda: outer.append(True)):
            with noting_replies(lambda: inner.append(True)):
                connection.connect()
            assert (bool(inner), outer) == (True, [])
            connection.send_command("PING")
            connection.read_response()
            assert outer == [True]
    finally:
        connection.disconnect()
