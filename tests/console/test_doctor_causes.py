"""Causes outside of the server, and what a server tells about itself, each with its advice."""

import ssl
from typing import Any

import pytest
import redis

from django_rlock._core.errors import is_down
from django_rlock._transport.calls import unavailable
from django_rlock._transport.servers import source
from django_rlock.console.causes import cause_of
from django_rlock.console.diagnosis import INFO_CHECKS
from django_rlock.settings import get_settings
from tests.conftest import OwnServer

VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed:"


@pytest.mark.parametrize(
    ("error", "check", "advice"),
    [
        (PermissionError(13, "Permission denied"), "connection", "read and write the server's socket"),
        (PermissionError(13, "Permission denied", "/etc/key.pem"), "tls", "correct its path and its rights"),
        (ssl.SSLError(1, f"{VERIFY} certificate has expired (_ssl.c:1006)"), "tls", "Renew the server's certificate"),
        (ssl.SSLError(1, f"{VERIFY} certificate is not yet valid"), "tls", "clock"),
        (
            ssl.SSLError(1, f"{VERIFY} IP address mismatch, certificate is not valid for '10.0.0.4'."),
            "tls",
            "NODE_ADDR",
        ),
        (
            ssl.SSLError(1, f"{VERIFY} Hostname mismatch, certificate is not valid for 'a'."),
            "tls",
            "ssl_check_hostname",
        ),
    ],
)
def test_causes_outside_of_the_server_have_their_advice(error: OSError, check: str, advice: str) -> None:
    wrapped = redis.ConnectionError(f"Error connecting to localhost:6379. {error}.")
    wrapped.__context__ = error
    cause = cause_of(wrapped, "localhost:6379")
    assert cause.check == check
    assert advice in cause.advice


@pytest.mark.parametrize(
    ("info", "check", "level", "text", "advice"),
    [
        ({"role": "active-replica"}, "replicas", "error", "to two owners", "active-replica"),
        ({"maxmemory": 1}, "eviction", "warning", "INFO hides maxmemory-policy", "console"),
        ({"maxmemory": 1, "maxmemory_policy": "allkeys-lru"}, "eviction", "error", "allkeys-lru", "parameter group"),
        ({"aof_enabled": 0}, "persistence", "warning", "a restart loses held locks", "managed service"),
    ],
)
def test_what_a_service_tells_has_advice_for_its_users(
    info: dict[str, Any], check: str, level: str, text: str, advice: str
) -> None:
    seen = {found[0]: found for examine in INFO_CHECKS if (found := examine(info, get_settings()))}
    assert seen[check][1] == level
    assert text in seen[check][2]
    assert advice in seen[check][3]


def test_a_missing_file_does_not_mean_that_nothing_listens(settings: Any, own_server: OwnServer) -> None:
    """So a call waits for a certificate that is being renewed."""
    missing = "/nowhere/ca.pem"
    url = own_server(None, port=0).url.replace("redis:", "rediss:")
    entry = {"LOCATION": url, "OPTIONS": {"CONNECTION_POOL_KWARGS": {"ssl_ca_certs": missing}}}
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", **entry}}
    with pytest.raises(redis.ConnectionError, match=f"^{missing} cannot be read") as caught:
        source("default").connect()
    assert not is_down(caught.value)
    assert str(unavailable("stock:1", caught.value)) == (
        f"Lock 'stock:1' is unavailable: {missing} cannot be read: No such file or directory. Nothing was changed; "
        f"restore this file, or correct its path and its rights in the ssl_… options of CACHES."
    )
