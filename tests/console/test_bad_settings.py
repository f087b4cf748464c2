"""Bad settings end in the same text everywhere: check, commands and admin; and in no traceback."""

import json
import os
from html import unescape
from typing import Any

import pytest
import redis
from django.test import Client
from pytest_django import Settings

from django_rlock.checks import check_settings
from tests.console.crowd import plant_locks
from tests.console.pages import FORCE, JSON, LIST, detail, rows, said, text
from tests.console.test_commands import ERROR, USAGE, fails, run_json, shell

BAD = [
    ["default"],
    [],
    0,
    "",
    {"default": "redis://:secret@host"},
    {"default": {"CACHE": ["default"]}},
    {"default": {"CACHE": {"LOCATION": "redis://:secret@host"}}},
    {"default": {"REPLICA_ACKS": {}}},
    {"default": {"NODES": ["redis://one", "redis://:se/secret@two:6379", "redis://three"]}},
    {"default": {"CACHE": "away"}},
    {"default": {"CACHE": "memory"}},
]

DJANGO_REDIS = "django_redis.cache.RedisCache"
WRONG: dict[str, tuple[dict[Any, Any], object]] = {
    "an alias that is a URL": ({"redis://:secret@host": {}}, None),
    "an alias that is a number": ({5: {}}, None),
    "no options": ({"orders": 5}, None),
    "a misspelt option": ({"orders": {"KNID": "fair"}}, None),
    "a bad URL in NODES": ({"orders": {"NODES": ["redis://one", "redis://:se/secret@two:6379", "redis://c"]}}, None),
    "a bad URL in its cache": ({"orders": {"CACHE": "bad"}}, {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://h:port"}),
    "a cache that is no dict": ({"orders": {"CACHE": "bad"}}, "redis://:secret@host"),
    "no backend": ({"orders": {"CACHE": "bad"}}, {"LOCATION": "redis://host"}),
    "a misspelt backend": ({"orders": {"CACHE": "bad"}}, {"BACKEND": "django_redis.Cache", "LOCATION": "redis://h"}),
    "no location": ({"orders": {"CACHE": "bad"}}, {"BACKEND": DJANGO_REDIS}),
}
"""Entries of RLOCK beside a good one, and of CACHES["bad"]."""


@pytest.fixture
def caches(settings: Settings) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "away": {**settings.CACHES["default"], "LOCATION": "redis://:secret@host:port/0"},
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }


def told_by_the_check() -> list[str]:
    texts = [message.msg for message in check_settings()]
    assert "secret" not in str(texts)
    return texts


def problems(page: str) -> list[str]:
    lines = page.split('<p class="errornote rlock-problem" role="alert">')[1:]
    return [unescape(line.split("</p>")[0]) for line in lines]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_one_text_everywhere(caches: None, settings: Settings, operator: Client, value: Any) -> None:
    settings.RLOCK = value
    [expected] = told_by_the_check()
    for command in (["rlock_list"], ["rlock_release", "stock:1", "--no-input"]):
        for using in ([], ["--using", "default"]):
            assert fails(*command, *using)[:2] == (ERROR, expected)
    assert problems(text(operator, LIST)) == [expected]
    assert problems(text(operator, detail("stock:1"))) == [expected]
    assert (operator.get(JSON).status_code, operator.get(JSON).json()["problems"]) == (503, [expected])
    target = json.dumps(["default", "stock:1", "owner"])
    for confirmed in ({}, {"confirm": "yes"}):
        assert operator.post(FORCE, {"lock": target, **confirmed}).status_code == 302
        assert said(operator) == [expected]


@pytest.mark.parametrize(("entries", "cache"), WRONG.values(), ids=WRONG)
def test_each_alias_stands_for_itself(
    settings: Settings, operator: Client, redis_client: redis.Redis, entries: dict[Any, Any], cache: object
) -> None:
    plant_locks(redis_client, 2, 1)
    settings.CACHES = {**settings.CACHES, "bad": cache} if cache else settings.CACHES
    settings.RLOCK = {"default": {}, **entries}
    [expected] = told_by_the_check()
    page = text(operator, LIST)
    assert (sorted(rows(page)), problems(page)) == (["stock:0", "stock:1"], [expected])
    refreshed = operator.get(JSON)
    assert (refreshed.status_code, refreshed.json()["problems"]) == (200, [expected])
    for command in (["rlock_list"], ["rlock_info", "stock:1"]):
        status, message, printed = fails(*command, "--format", "json")
        assert (status, message) == (ERROR, expected)
        assert "stock:1" in printed
    found = json.loads(fails("rlock_doctor", "--format", "json")[2])
    assert "version" in {each["check"] for each in found if each["alias"] == "default"}
    assert [each["text"] for each in found if each["check"] == "settings"] == [expected]


@pytest.mark.parametrize("command", [["rlock_list"], ["rlock_release", "--dead", "--no-input"]])
@pytest.mark.parametrize("using", ["quorum", "defualt", "default#0"])
def test_an_alias_that_is_none_is_wrong_usage(command: list[str], using: str) -> None:
    status, message, _ = fails(*command, "--using", using)
    assert status == USAGE
    assert message.startswith(f"RLOCK has no alias {using!r}")


@pytest.mark.parametrize(
    ("command", "name"),
    [("rlock_list --queued", "rlock_is_a_list"), ("rlock_release --dead --no-input", "cache_is_malformed")],
)
def test_an_operator_sees_no_traceback(command: str, name: str) -> None:
    ended = shell(*command.split(), env={**os.environ, "DJANGO_SETTINGS_MODULE": f"tests.console.{name}"})
    assert ended.returncode == ERROR
    assert ended.stderr.startswith("CommandError: RLOCK")
    assert len(ended.stderr.splitlines()) == 1
    assert "secret" not in ended.stderr


@pytest.mark.parametrize("name", ["", "x" * 1025, "\udcff"], ids=["empty", "long", "not UTF-8"])
def test_an_invalid_name_is_wrong_usage(redis_client: redis.Redis, name: str) -> None:
    plant_locks(redis_client, 1, 1)
    status, message, _ = fails("rlock_release", "stock:0", name, "--no-input")
    assert status == USAGE
    assert message.startswith("A lock's name must ")
    assert redis_client.exists("rlock:stock:0")


@pytest.fixture
def long_name(redis_client: redis.Redis) -> str:
    """Of a lock that another client has taken, which takes names of any length."""
    plant_locks(redis_client, 1, 1, prefix=f"rlock:{'x' * 1024}")
    return f"{'x' * 1024}stock:0"


def test_commands_show_a_lock_whose_name_is_too_long(long_name: str) -> None:
    assert [lock["name"] for lock in run_json("rlock_list")] == [long_name]
    status, message, printed = fails("rlock_release", "--pattern", "x*", "--no-input", "--format", "json")
    assert (status, message) == (ERROR, "1 of 1 could not be freed.")
    assert json.loads(printed)[0]["result"].startswith("error: A lock's name must not be longer than 1024 bytes")


def test_admin_shows_a_lock_whose_name_is_too_long(operator: Client, redis_client: redis.Redis, long_name: str) -> None:
    assert rows(text(operator, LIST)) == [long_name]
    [problem] = problems(text(operator, detail(long_name)))
    assert "must not be longer than 1024 bytes" in problem
    target = json.dumps(["default", long_name, *map(str, redis_client.hkeys(f"rlock:{long_name}"))])
    assert operator.post(FORCE, {"lock": target, "confirm": "yes"}).status_code == 302
    [message] = said(operator)
    assert "must not be longer than 1024 bytes" in message
