"""Programs read locks with a token of their own: what it opens, and what stays closed."""

import re

import django
import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from django_rlock.console import reading
from tests.conftest import OwnServer
from tests.console.crowd import plant_locks, plant_waiters
from tests.console.pages import FORCE, HISTORY_JSON, JSON, LIST, METRICS

TOKEN = "a-token-of-forty-characters-at-least-0123"
PAGES = pytest.mark.parametrize("url", [JSON, HISTORY_JSON, METRICS])


@pytest.fixture
def program(db: None, settings: Settings) -> Client:
    settings.RLOCK_API_TOKEN = TOKEN
    return Client(headers={"Authorization": f"Bearer {TOKEN}"})


@PAGES
def test_a_program_needs_no_login(program: Client, redis_client: redis.Redis, url: str) -> None:
    plant_locks(redis_client, 1, 1)
    answer = program.get(url)
    assert answer.status_code == 200
    assert "stock:0" in answer.content.decode() or url != JSON
    assert "no-store" in answer["Cache-Control"]
    assert program.post(url).status_code == 405


@PAGES
def test_the_scheme_is_known_in_each_case(program: Client, url: str) -> None:
    assert program.get(url, headers={"Authorization": f"bearer  {TOKEN}"}).status_code == 200
    assert program.get(url, headers={"Authorization": f"Basic {TOKEN}"}).status_code == 302


@pytest.mark.skipif(django.VERSION < (5, 1), reason="LoginRequiredMiddleware is new in Django 5.1")
@PAGES
def test_a_project_in_which_each_page_needs_a_login(program: Client, settings: Settings, url: str) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert program.get(url).status_code == 200
    assert Client().get(url).status_code == 302
    assert program.get(url, headers={"Authorization": "Bearer x"}).status_code == 401


@PAGES
def test_a_wrong_token_is_refused(program: Client, url: str) -> None:
    for text in ("", "x", TOKEN[:-1], f"{TOKEN}x", "ÿ"):
        answer = program.get(url, headers={"Authorization": f"Bearer {text}"})
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


@PAGES
@pytest.mark.parametrize("unset", ["", None])
def test_without_the_setting_no_token_is_right(
    program: Client, settings: Settings, url: str, unset: str | None
) -> None:
    settings.RLOCK_API_TOKEN = unset
    for text in ("", "None", TOKEN):
        assert program.get(url, headers={"Authorization": f"Bearer {text}"}).status_code == 401
    assert Client().get(url).status_code == 302


@PAGES
@pytest.mark.parametrize("token", ["schlüssel-à", "ключ", "鑰匙", "\udcff"], ids=ascii)
def test_a_token_may_have_any_characters(program: Client, settings: Settings, url: str, token: str) -> None:
    settings.RLOCK_API_TOKEN = token
    received = token.encode("utf-8", "surrogateescape").decode("latin-1")  # as servers pass what curl sends
    for text, status in (received, 200), (token, 200), (received[:-1], 401), ("?" * len(token), 401):
        assert program.get(url, headers={"Authorization": f"Bearer {text}"}).status_code == status


@PAGES
def test_a_proxy_may_add_its_own_token_to_a_session(admin_client: Client, settings: Settings, url: str) -> None:
    settings.RLOCK_API_TOKEN = TOKEN
    answer = admin_client.get(url, headers={"Authorization": "Bearer of-the-proxy"})
    assert answer.status_code == 200
    User.objects.update(is_staff=False)
    assert admin_client.get(url, headers={"Authorization": "Bearer of-the-proxy"}).status_code == 401


@PAGES
def test_a_session_without_the_permission_is_not_let_in_by_a_wrong_token(
    client: Client, program: Client, url: str
) -> None:
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(url, headers={"Authorization": "Bearer of-the-proxy"}).status_code == 403


def test_it_opens_no_page_for_people(program: Client) -> None:
    assert program.get(LIST).status_code == 302
    assert program.post(FORCE, {"lock": "x", "confirm": "yes"}).status_code == 302


def test_the_numbers(program: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 2)
    plant_waiters(redis_client, "stock:0", [4])
    answer = program.get(METRICS)
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    numbers = dict(line.rsplit(" ", 1) for line in answer.content.decode().splitlines() if not line.startswith("#"))
    assert numbers['rlock_locks{alias="default",state="held"}'] == "3"
    assert numbers['rlock_locks{alias="default",state="silent"}'] == "0"
    assert numbers['rlock_waiters{alias="default"}'] == "4"
    assert 900 < float(numbers['rlock_longest_wait_seconds{alias="default"}']) < 1100
    assert (numbers["rlock_deadlocks"], numbers["rlock_processes"]) == ("0", "3")
    assert all(re.fullmatch(r'rlock_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})?', name) for name in numbers)


def test_a_server_that_is_down(program: Client, own_server: OwnServer) -> None:
    own_server().kill()
    answer = program.get(METRICS)
    assert answer.status_code == 503
    assert 'rlock_unread{alias="default"} 1' in answer.content.decode()


def test_a_server_that_fails_after_its_reports_were_read(
    program: Client, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise redis.ConnectionError("The server is gone.")

    plant_locks(redis_client, 1, 1)
    monkeypatch.setattr(reading, "read_states", fail)
    answer = program.get(METRICS)
    assert answer.status_code == 503
    assert 'rlock_unread{alias="default"} 1' in answer.content.decode()
