"""Settings that work have a password; locks are taken and lost; no log record, page or report contains the password."""

import gc
import io
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path
from prometheus_client import CollectorRegistry, generate_latest
from pytest_django import Settings

from django_rlock import FairLock, RedLock, distributed_lock, rlock
from django_rlock.console import diagnosis
from django_rlock.exceptions import LockLostError, RLockError
from django_rlock.metrics import prometheus
from tests.background import settle
from tests.bindings import BlockingBinding, TaskBinding
from tests.conftest import OwnServer
from tests.console.pages import FORCE, HISTORY, HISTORY_JSON, JSON, LIST, detail
from tests.console.past import Past
from tests.metrics.conftest import _signals_as_before  # noqa: F401 - a fixture
from tests.operators import free_by_force

PARTS = "Zq7one", "Zq7two", "Zq7three"
PASSWORD = "{}/{}@{}".format(*PARTS)
QUOTED = quote(PASSWORD, safe="")

UP = ["default", "query", "options"]
"""Aliases whose server replies; the password is in the URL's login, in its query, and in an option."""
DOWN = ["down", "refused", "quorum"]
"""Nobody listens; the server wants another password; one of two nodes is down."""


@distributed_lock("stock:<pk>", wait_time=0)
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("sold")


def sell(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("sold")


@wraps(sell)
def buy_elsewhere(request: HttpRequest, pk: int) -> HttpResponse:
    """Decorated only while it is called: the checks of other tests would find that their settings lack the alias."""
    return distributed_lock("stock:<pk>", wait_time=0, using="down")(sell)(request, pk=pk)


@distributed_lock("stock:<pk>")
def buy_in_vain(request: HttpRequest, pk: int) -> HttpResponse:
    free_by_force(f"stock:{pk}")
    return HttpResponse("sold")


urlpatterns = [
    path("", include("tests.urls")),
    path("buy/<int:pk>/", buy),
    path("elsewhere/<int:pk>/", buy_elsewhere),
    path("in-vain/<int:pk>/", buy_in_vain),
]


@pytest.fixture
def planted(own_server: OwnServer, settings: Settings) -> Iterator[redis.Redis]:
    """A client of the server, whose password the settings of several aliases have."""
    server = own_server(None, port=0)
    with server.client() as client:
        client.config_set("requirepass", PASSWORD)
    address = f"127.0.0.1:{server.port}"
    django_redis, djangos = "django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"
    settings.CACHES = {
        "default": {"BACKEND": django_redis, "LOCATION": f"redis://:{QUOTED}@{address}/0"},
        "query": {"BACKEND": djangos, "LOCATION": f"redis://{address}/1?password={QUOTED}"},
        "options": {"BACKEND": django_redis, "LOCATION": f"redis://{address}/2", "OPTIONS": {"PASSWORD": PASSWORD}},
        "down": {"BACKEND": django_redis, "LOCATION": f"redis://me:{QUOTED}@127.0.0.1:1/0"},
        "refused": {"BACKEND": django_redis, "LOCATION": f"redis://:{QUOTED}too@{address}/0"},
    }
    nodes = [f"redis://:{QUOTED}@{address}/3", f"redis://127.0.0.1:1?password={QUOTED}"]
    settings.RLOCK = {alias: {"CACHE": alias} for alias in settings.CACHES} | {"quorum": {"NODES": nodes}}
    settings.DEBUG = True
    settings.ROOT_URLCONF = __name__
    with server.client(password=PASSWORD) as client:
        yield client


@pytest.fixture
def _hasty_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for servers that are down."""
    monkeypatch.setattr(diagnosis, "WITHIN", 0.1)


def texts_of(error: BaseException) -> list[str]:
    return [str(error), repr(error), "".join(traceback.format_exception(error))]


async def taken_lost_and_refused(binding: Any) -> list[str]:
    """The texts of the errors."""
    told = []
    for using in UP:
        lock = FairLock("stock:1", using=using)
        async with binding.inside(lock):
            with pytest.raises(RLockError) as error:
                async with binding.inside(FairLock("stock:1", owner="other", using=using, wait_time=0)):
                    pass
            told += texts_of(error.value)
        await binding.acquire(lock)
        await binding.result(binding.start(freed, binding, using))
        with pytest.raises(LockLostError) as lost:
            await binding.release(lock)
        told += texts_of(lost.value)
    for using in DOWN:
        refused = RedLock("stock:1", using=using) if using == "quorum" else FairLock("stock:1", using=using)
        with pytest.raises(RLockError) as error:
            await binding.acquire(refused, blocking=False)
        told += texts_of(error.value)
    return told


async def freed(binding: Any, using: str) -> None:
    await binding.call(FairLock("stock:1", using=using), "force_release")


def pages(client: Client) -> Iterator[str]:
    for url in ("/buy/1/", "/elsewhere/1/", "/in-vain/2/"):
        for accept in ("text/html", "application/json"):
            response = client.get(url, headers={"accept": accept})
            assert response.status_code in (423, 503)
            yield str(response.headers) + response.content.decode()
    details = [detail("stock:1", using) for using in (*UP, *DOWN)]
    for url in (LIST, f"{LIST}?q=stock", JSON, HISTORY, HISTORY_JSON, *details):
        yield client.get(url).content.decode()
    client.post(FORCE, {"lock": '["refused", "stock:1", "owner"]', "confirm": "yes"})
    yield client.get(LIST).content.decode()


def commands() -> Iterator[str]:
    yield from _run("rlock_list", ["table", "json", "csv"])
    yield from _run("rlock_list", ["table", "json", "csv"], "--scan")
    yield from _run("rlock_doctor", ["text", "json"])
    for using in (*UP, *DOWN):
        yield from _run("rlock_list", ["table"], "--using", using)
        yield from _run("rlock_info", ["text", "json"], "stock:1", "--using", using)
        yield from _run("rlock_release", ["table", "json", "csv"], "stock:9", "--no-input", "--using", using)
        yield from _run("rlock_run", [], "stock:9", "--using", using, "--", "true")
    yield from _run("rlock_release", ["table", "json"], "--dead", "--no-input")


def _run(command: str, formats: list[str], *args: str) -> Iterator[str]:
    for options in [["--format", each] for each in formats] or [[]]:
        out, err = io.StringIO(), io.StringIO()
        try:
            call_command(command, *options, *args, stdout=out, stderr=err)
        except CommandError as error:
            yield from texts_of(error)
        except SystemExit:
            pass
        yield out.getvalue() + err.getvalue()


READ: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda client, key: client.get(key),
    "hash": lambda client, key: client.hgetall(key),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "set": lambda client, key: client.smembers(key),
    "zset": lambda client, key: client.zrange(key, 0, -1),
    "stream": lambda client, key: client.xrange(key),
}


def written(client: redis.Redis) -> Iterator[str]:
    """All keys with what they contain."""
    for database in range(4):
        client.select(database)
        for key in map(str, client.scan_iter()):
            yield f"{key}: {READ[str(client.type(key))](client, key)}"


def objects() -> Iterator[str]:
    """How this package's objects show themselves, as a debugger or an error tracker has them do."""
    for each in gc.get_objects():
        if str(type(each).__module__).startswith("django_rlock"):
            yield repr(each)


@pytest.mark.usefixtures("_signals_as_before", "_hasty_doctor")
def test_a_password_is_shown_nowhere(
    planted: redis.Redis, operator: Client, past: Past, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    prometheus.instrument(registry)
    with caplog.at_level(logging.DEBUG):
        told = [
            text
            for binding in (BlockingBinding(), TaskBinding())
            for text in binding.run(taken_lost_and_refused(binding))
        ]
        with rlock("stock:1", owner="another"), rlock("stock:1", using="query"):
            past.round(ahead=20)
            told += pages(operator)
            told += commands()
            past.written()
            told += written(planted)
        told += [f"{message} {message.hint}" for message in run_checks(include_deployment_checks=True)]
        told += objects()
        settle()
        told += [caplog.text, generate_latest(registry).decode()]
    assert len(told) > 100
    assert [text for text in told if any(part in text for part in PARTS)] == []
