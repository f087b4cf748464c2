"""Freeing a lock by force: only what the page has shown, only by POST, always on record."""

import json

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.test import Client

from tests.conftest import OwnServer
from tests.console.crowd import plant_locks
from tests.console.pages import FORCE, LIST, detail, said, target, text
from tests.console.processes import Process
from tests.eventually import eventually


def test_the_confirmation_shows_the_holder_and_whether_it_lives(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    plant_locks(redis_client, 1, 1, prefix="rlock:old:", silent=20)
    page = operator.post(FORCE, {"lock": [target("stock:0"), target("old:stock:0")]}).content.decode()
    assert "Free these 2 locks" in page
    assert "pid 1000" in page
    assert "alive</span>" in page
    assert "silent for 2" in page
    assert "two holders may overlap" in page
    assert redis_client.exists("rlock:stock:0", "rlock:old:stock:0") == 2


def test_a_confirmed_release_frees_and_is_on_record(operator: Client, redis_client: redis.Redis) -> None:
    with Process("web-1") as web:
        web.acquire("stock:1", {"route": "POST /buy/1/"})
        eventually(lambda: redis_client.keys("rlock_process:*"))
        chosen = target("stock:1")
        answer = operator.post(FORCE, {"lock": chosen, "confirm": "yes", "reason": "stuck since noon"})
    assert answer["Location"] == LIST
    assert not redis_client.exists("rlock:stock:1")
    assert said(operator) == ["1 lock was freed."]
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.object_repr, entry.object_id) == ("alice", "stock:1", "default/stock:1")
    assert entry.change_message.startswith("Force-released. Owner: " + json.loads(chosen)[2])
    assert f"web-1 pid {web.pid}, POST /buy/1/" in entry.change_message
    assert entry.change_message.endswith("Reason: stuck since noon")
    assert text(operator, str(entry.get_admin_url()))


@pytest.mark.parametrize("next_holder", [True, False])
def test_a_hand_over_in_between_frees_nobody_else(
    operator: Client, redis_client: redis.Redis, next_holder: bool
) -> None:
    plant_locks(redis_client, 1, 1)
    chosen = target("stock:0")
    assert operator.post(FORCE, {"lock": chosen}).status_code == 200
    redis_client.delete("rlock:stock:0")
    if next_holder:
        redis_client.hset("rlock:stock:0", "11111111-2222-4333-8444-555555555555:1", 1)
    page = operator.post(FORCE, {"lock": chosen}).content.decode()
    assert ("another owner holds it now" if next_holder else "already free") in page
    assert "Yes, force release" not in page
    operator.post(FORCE, {"lock": chosen, "confirm": "yes"})
    assert redis_client.exists("rlock:stock:0") == next_holder
    assert said(operator) == ["1 lock was not freed: the holder shown no longer holds it."]
    assert LogEntry.objects.get().change_message.startswith("Not freed: the owner no longer held it. Owner: ")


def test_many_at_once(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 5, 2)
    chosen = [target(f"stock:{number}") for number in range(4)]
    redis_client.delete("rlock:stock:3")
    operator.post(FORCE, {"lock": [*chosen, chosen[0]], "confirm": "yes"})
    assert redis_client.keys("rlock:stock:*") == ["rlock:stock:4"]
    assert said(operator) == ["3 locks were freed.", "1 lock was not freed: the holder shown no longer holds it."]
    assert LogEntry.objects.count() == 4


def test_a_failure_is_on_record(operator: Client, own_server: OwnServer) -> None:
    server = own_server()
    with server.client() as client:
        plant_locks(client, 1, 1)
    chosen = target("stock:0")
    server.kill()
    operator.post(FORCE, {"lock": chosen, "confirm": "yes", "reason": "x"})
    assert LogEntry.objects.get().change_message.startswith("Not freed: ")
    assert "could not be freed" in said(operator)[0]


def test_get_changes_nothing(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    for parameters in ({}, {"lock": target("stock:0")}, {"lock": target("stock:0"), "confirm": "yes"}):
        assert operator.get(FORCE, parameters).status_code == 405
        assert operator.get(LIST, parameters).status_code == 200
        assert operator.get(detail("stock:0"), parameters).status_code == 200
    assert redis_client.exists("rlock:stock:0")
    assert not LogEntry.objects.exists()


def test_csrf_is_enforced(log_in, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    client = log_in("force_release_lock", enforce_csrf_checks=True)
    data = {"lock": target("stock:0"), "confirm": "yes"}
    assert client.post(FORCE, data).status_code == 403
    assert redis_client.exists("rlock:stock:0")
    text(client, LIST)
    client.post(FORCE, {**data, "csrfmiddlewaretoken": client.cookies["csrftoken"].value})
    assert not redis_client.exists("rlock:stock:0")


def test_nothing_selected_asks_for_a_selection(operator: Client, db: None) -> None:
    assert operator.post(FORCE, {})["Location"] == LIST
    assert said(operator) == ["Select the locks to free."]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "[]",
        '["default", "stock:0"]',
        '["default", "stock:0", ""]',
        '["default", "stock:0", null]',
        "7",
        "[" * 9999,
        '["nowhere", "stock:0", "x"]',
        '{"a": 1, "b": 2, "c": 3}',
        '["default", "stock:0", ["x"]]',
    ],
    ids=lambda value: value[:20],
)
def test_a_selection_that_was_tampered_with_is_refused(operator: Client, redis_client: redis.Redis, value: str) -> None:
    plant_locks(redis_client, 1, 1)
    assert operator.post(FORCE, {"lock": value, "confirm": "yes"}).status_code == 400
    assert redis_client.exists("rlock:stock:0")
