"""The history page: who freed what and why, what was lost, and the last hour by template."""

import json
import re
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import Client
from django.utils import translation
from pytest_django import Settings

from django_rlock import rlock
from django_rlock.console.tags import moment
from tests.conftest import OwnServer
from tests.console.pages import FORCE, HISTORY, HISTORY_JSON, LIST, detail, target, text
from tests.console.past import Past
from tests.console.processes import Process
from tests.console.reporting import held
from tests.console.test_pages import XSS
from tests.eventually import eventually


def test_a_release_in_the_admin_is_remembered_with_user_and_reason(operator: Client, past: Past) -> None:
    with Process("web-1") as web:
        web.acquire("stock:1", {"task": "shop.tasks.report", "task_id": "5f0c9e1e"})
        eventually(lambda: held("stock:1").holder.host)
        operator.post(FORCE, {"lock": target("stock:1"), "confirm": "yes", "reason": "stuck <since> noon"})
        past.written()
    page = text(operator, HISTORY)
    assert "alice in the admin" in page
    assert "stuck &lt;since&gt; noon" in page
    assert detail("stock:1") in page
    assert f"from <bdi>web-1 pid {web.pid}, shop.tasks.report 5f0c9e1e, for " in page
    [event] = [each for each in operator.get(HISTORY_JSON).json()["events"] if each["what"] == "freed"]
    assert (event["name"], event["by"]) == ("stock:1", "alice in the admin")
    assert event["reason"] == "stuck <since> noon"
    assert len(event["client"]) == 8
    assert event["whom"].startswith(f"web-1 pid {web.pid}, shop.tasks.report 5f0c9e1e, for ")


def test_times_have_seconds_and_the_zone(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert moment(1795847772.9) == "Nov. 28, 2026 07:36:12 CET"
    with translation.override("zh-hans"):
        assert moment(1795847772.9) == "2026年11月28日 07:36:12 CET"
    assert moment(None) == moment(1e300) == "–"


def test_so_is_one_by_the_command(operator: Client, past: Past) -> None:
    with Process("web-1") as web:
        web.acquire("stock:1")
        call_command("rlock_release", "stock:1", "--no-input", "--reason", "deploy", verbosity=0)
        past.written()
    [event] = operator.get(HISTORY_JSON).json()["events"]
    assert event["by"].endswith("rlock_release")
    assert event["reason"] == "deploy"


def test_the_last_hour_by_template(operator: Client, past: Past) -> None:
    for number in range(3):
        with rlock(f"stock:{number}"):
            pass
    past.written()
    page = text(operator, HISTORY)
    assert "<bdi>stock:…</bdi>" in page
    [work] = operator.get(HISTORY_JSON).json()["work"]
    assert (work["using"], work["prefix"], work["acquired"], work["gave_up"]) == ("default", "stock:", 3, 0)
    assert work["longest_hold"]["name"].startswith("stock:")


def test_the_page_has_no_inline_script_or_style(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, "stock:1")
    page = text(operator, HISTORY)
    assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>|<style|\sstyle=|\son\w+=", page)


def test_the_list_links_to_it_and_it_is_empty_at_first(operator: Client, past: Past) -> None:
    assert f'href="{HISTORY}"' in text(operator, LIST)
    page = text(operator, HISTORY)
    assert "No lock was lost or force-released" in page
    assert "No process has reported anything yet" in page


def test_a_server_that_is_down_gives_a_banner(operator: Client, own_server: OwnServer) -> None:
    own_server().kill()
    assert "did not respond" in text(operator, HISTORY)
    answer = operator.get(HISTORY_JSON)
    assert answer.status_code == 503
    assert "did not respond" in answer.json()["problems"][0]


def plant(client: redis.Redis, text: str) -> None:
    """A history that has a text wherever it can have one."""
    now = client.time()[0]
    about = {"place": text, "context": {"route": text, "task_id": text}, "using": text, "name": text, "at": now}
    about |= dict.fromkeys(("by", "reason", "owner", "whom"), text) | {"seconds": 5}
    hold, wait, lost, freed = ({**about, "what": what} for what in ("hold", "wait", "lost", "freed"))
    work = {"using": text, "template": text, "prefix": text, "slots": [[now, 1, 1]], "longest": [hold, wait]}
    ours = {**work, "using": "default", "template": ""}
    fields: Any = dict.fromkeys(("host", "pid", "role"), text.encode(errors="replace"))
    fields |= {"work": json.dumps([work, ours]), "events": json.dumps([lost, freed, {**lost, "using": "default"}])}
    client.hset("rlock_history:x", mapping=fields)
    client.zadd("rlock_histories", {"x": now})


@pytest.mark.parametrize("payload", [*XSS, "x" * 100_000, "\ud800"], ids=lambda payload: repr(payload[:20]))
def test_nothing_from_redis_becomes_markup(operator: Client, redis_client: redis.Redis, payload: str) -> None:
    plant(redis_client, payload)
    page = text(operator, HISTORY)
    assert page.count("force-released") >= 2 or len(payload) > 10_000
    assert not re.search(r"<(script|svg|img)[^>]*(alert|onerror|onload)", page)
    assert "<script>alert" not in page
    assert not re.search(r'(href|src|action)="\s*javascript', page)
    json.dumps(operator.get(HISTORY_JSON).json(), allow_nan=False)
