"""``manage.py check --deploy``: what is fine at a desk and is not under load."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from pytest_django import Settings

from django_rlock import checks

DJANGOS = "django.core.cache.backends.redis.RedisCache"
DOCS = Path(__file__).parents[2] / "docs"


def found(number: str, *, deploy: bool = True) -> list[CheckMessage]:
    messages = run_checks(include_deployment_checks=deploy)
    return [message for message in messages if message.id == f"django_rlock.{number}"]


def told(number: str) -> str:
    [message] = found(number)
    return f"{message.msg} {message.hint}"


@pytest.fixture(autouse=True)
def _no_server_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GUNICORN_CMD_ARGS", "UWSGI_THREADS", "UWSGI_ENABLE_THREADS", "UWSGI_MODULE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_cache(settings: Settings) -> Settings:
    """Locks have a database of their own, with a time limit."""
    cache = settings.CACHES["default"]
    own = {**cache, "LOCATION": "redis://127.0.0.1:1/5", "OPTIONS": {"SOCKET_TIMEOUT": 5}}
    settings.CACHES = {**settings.CACHES, "locks": own}
    settings.RLOCK = {"default": {"CACHE": "locks"}}
    return settings


# --- W004: a cache that others clear ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DJANGOS, "django_redis.cache.RedisCache"])
def test_the_default_cache_is_cleared_by_others(settings: Settings, backend: str) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "BACKEND": backend}}
    assert "CACHES['default'], the project's default cache" in told("W004")
    assert "cache.clear()" in told("W004")
    assert found("W004", deploy=False) == []


def test_a_cache_of_their_own_is_no_warning(own_cache: Settings) -> None:
    assert found("W004") == []


def test_another_cache_with_the_same_database_clears_it(own_cache: Settings) -> None:
    own_cache.CACHES = {**own_cache.CACHES, "pages": {**own_cache.CACHES["locks"], "KEY_PREFIX": "pages"}}
    assert "the database of CACHES['pages']" in told("W004")


@pytest.mark.parametrize(
    ("entry", "same"),
    [
        ({"LOCATION": "redis://127.0.0.1:1/5"}, True),
        ({"LOCATION": "redis://user:password@127.0.0.1:1?db=5"}, True),
        ({"LOCATION": "redis://127.0.0.1:1", "OPTIONS": {"db": 5}}, True),
        ({"LOCATION": "redis://127.0.0.1:2/5;redis://127.0.0.1:1/5"}, True),
        ({"LOCATION": "redis://127.0.0.1:1", "OPTIONS": {"db": 4}}, False),
        ({"LOCATION": "redis://127.0.0.1:1"}, False),
        ({"LOCATION": "redis://127.0.0.1:2/5"}, False),
        ({"LOCATION": "unix:///run/redis.sock?db=5"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("swapped", [False, True])
def test_databases_are_compared_across_backends(own_cache: Settings, entry: Any, same: bool, swapped: bool) -> None:
    djangos = {"BACKEND": DJANGOS, **entry}
    pair = (djangos, own_cache.CACHES["locks"]) if swapped else (own_cache.CACHES["locks"], djangos)
    own_cache.CACHES = {**own_cache.CACHES, "locks": pair[0], "pages": pair[1]}
    assert ["the database of CACHES['pages']" in message.msg for message in found("W004")] == [True] * same


def test_sessions_in_the_locks_cache(own_cache: Settings) -> None:
    own_cache.SESSION_CACHE_ALIAS = "locks"
    assert found("W004") == []
    own_cache.SESSION_ENGINE = "django.contrib.sessions.backends.cached_db"
    assert "SESSION_CACHE_ALIAS" in told("W004")


# --- W005: time limits of replies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lease", "timeout", "expected"),
    [
        (30, None, ""),  # 5 s is not more than 5 s
        (29, None, "sets no SOCKET_TIMEOUT"),
        (30, 5.1, "SOCKET_TIMEOUT is 5.1 s"),
        (30, 5, ""),
        (30, 0.1, ""),
    ],
)
def test_a_reply_may_take_a_sixth_of_the_lease(
    own_cache: Settings, lease: float, timeout: float | None, expected: str
) -> None:
    own_cache.RLOCK = {"default": {"CACHE": "locks", "WATCHDOG_TIMEOUT": lease}}
    cache = own_cache.CACHES["locks"] | {"OPTIONS": {} if timeout is None else {"SOCKET_TIMEOUT": timeout}}
    own_cache.CACHES = {**own_cache.CACHES, "locks": cache}
    assert [expected in message.msg for message in found("W005")] == [True] * bool(expected)
    assert found("W005", deploy=False) == []


@pytest.mark.parametrize(("timeout", "expected"), [(None, "sets no socket_timeout"), (5.1, "socket_timeout is 5.1 s")])
def test_the_time_limit_of_djangos_backend(own_cache: Settings, timeout: float | None, expected: str) -> None:
    entry = {"BACKEND": DJANGOS, "LOCATION": "redis://127.0.0.1:1/5"}
    own_cache.RLOCK = {"default": {"CACHE": "locks", "WATCHDOG_TIMEOUT": 24}}
    entry_with = entry | {"OPTIONS": {} if timeout is None else {"socket_timeout": timeout}}
    own_cache.CACHES = {**own_cache.CACHES, "locks": entry_with}
    assert expected in told("W005")
    assert "OPTIONS'] = {'socket_timeout': 4" in told("W005")


def test_a_shorter_lease_needs_a_shorter_limit(own_cache: Settings) -> None:
    own_cache.RLOCK = {"default": {"CACHE": "locks", "WATCHDOG_TIMEOUT": 12}}
    assert "OPTIONS'] = {'SOCKET_TIMEOUT': 2" in told("W005")


def test_a_limit_in_the_url_counts(own_cache: Settings) -> None:
    cache = own_cache.CACHES["locks"] | {"LOCATION": "redis://127.0.0.1:1/5?socket_timeout=3", "OPTIONS": {}}
    own_cache.CACHES = {**own_cache.CACHES, "locks": cache}
    assert found("W005") == []


def test_nodes_have_limits_of_their_own(own_cache: Settings) -> None:
    own_cache.RLOCK = {
        "default": {"CACHE": "locks"},
        "quorum": {"NODES": [f"redis://127.0.0.1:{n}/0" for n in (1, 2, 3)]},
    }
    assert found("W004") == found("W005") == []


# --- W006: uWSGI -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "warned"),
    [
        ({}, False),
        ({"UWSGI_MODULE": "shop.wsgi"}, True),
        ({"UWSGI_MODULE": "shop.wsgi", "UWSGI_ENABLE_THREADS": "1"}, False),
        ({"UWSGI_MODULE": "shop.wsgi", "UWSGI_ENABLE_THREADS": "false"}, True),
        ({"UWSGI_MODULE": "shop.wsgi", "UWSGI_THREADS": "4"}, False),
    ],
)
def test_uwsgi_in_the_environment(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], warned: bool) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert bool(found("W006")) == warned


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"module": b"shop.wsgi"}, True),
        ({"enable-threads": True}, False),
        ({"enable-threads": b"true"}, False),
        ({"enable-threads": b"0"}, True),
        ({"threads": b"2"}, False),
    ],
)
def test_inside_of_uwsgi(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, Any], warned: bool
) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options))
    assert bool(found("W006")) == warned
    checks.warn_inside_uwsgi()  # as when the app is loaded: no check runs there
    assert ("nothing renews locks" in caplog.text) == warned
    if warned:
        assert "enable-threads" in told("W006")


def test_threads_of_uwsgi_need_connections(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 8}}
    monkeypatch.setenv("UWSGI_THREADS", "9")
    assert "UWSGI_THREADS a process runs 9 threads" in told("W003")


# --- W007: waits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ""),
        ({"VIEW_WAIT_TIME": 30}, ""),
        ({"VIEW_WAIT_TIME": 31}, "is 31 s, longer than WATCHDOG_TIMEOUT (30 s)"),
        ({"VIEW_WAIT_TIME": None}, "is None"),
        (
            {"WATCHDOG_TIMEOUT": 2, "CLAIM_TIME": 1, "WAITER_ALIVE_TIME": 2},
            "is 3 s, longer than WATCHDOG_TIMEOUT (2 s)",
        ),
    ],
)
def test_a_view_need_not_wait_for_longer_than_a_dead_holder(settings: Settings, options: Any, expected: str) -> None:
    settings.RLOCK = {"default": options}
    assert [expected in message.msg for message in found("W007", deploy=False)] == [True] * bool(expected)


# --- all --------------------------------------------------------------------------------------------------------------


def documented() -> set[str]:
    page = (DOCS / "checks.md").read_text(encoding="utf-8")
    return {heading.lower().replace(".", "") for heading in re.findall(r"^## (.*)$", page, re.MULTILINE)}


def test_each_id_has_its_place_in_the_documentation() -> None:
    sources = [Path(checks.__file__), *Path(checks.__file__).parent.rglob("*checks.py")]
    ids = {each for source in sources for each in re.findall(r"\b([EW]0\d\d)\b", source.read_text(encoding="utf-8"))}
    assert {f"django_rlock{each.lower()}" for each in ids} == documented()


def test_a_hint_names_the_place_of_its_id(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setenv("UWSGI_MODULE", "shop.wsgi")
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 12}}
    for number in ("W004", "W005", "W006"):
        assert told(number).endswith(f"docs/checks.md#django_rlock{number.lower()}")
