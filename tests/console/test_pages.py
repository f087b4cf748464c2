"""The pages of the admin: their content, their permissions, and texts in Redis that could hurt them."""

import json
import re

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.template.loader import render_to_string
from django.test import Client
from pytest_django import Settings

from django_rlock import rlock
from tests.conftest import OwnServer
from tests.console.crowd import plant_locks
from tests.console.pages import FORCE, HISTORY, HISTORY_JSON, JSON, LIST, METRICS, PROCESSES, detail, rows, target, text
from tests.console.processes import Process
from tests.console.test_deadlocks import Philosophers
from tests.eventually import eventually

JAVA = "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31"

MATRIX = [
    # user's permissions, page, JSON and detail, force release
    (None, 302, 302),
    ("", 403, 403),
    ("view_lock", 200, 403),
    ("force_release_lock", 200, 200),
    ("add_user view_user", 403, 403),
]


@pytest.mark.parametrize(("permissions", "seeing", "forcing"), MATRIX)
def test_each_page_asks_for_its_permission(
    log_in, redis_client: redis.Redis, permissions: str | None, seeing: int, forcing: int
) -> None:
    plant_locks(redis_client, 1, 1)
    client = log_in(permissions)
    pages = LIST, JSON, detail("stock:0"), HISTORY, HISTORY_JSON, PROCESSES, METRICS
    assert {client.get(url).status_code for url in pages} == {seeing}
    assert client.post(FORCE, {"lock": target("stock:0")}).status_code == forcing
    confirmed = client.post(FORCE, {"lock": target("stock:0"), "confirm": "yes"})
    assert confirmed.status_code == (302 if forcing == 200 else forcing)
    assert redis_client.exists("rlock:stock:0") == (0 if forcing == 200 else 1)


def test_the_index_offers_locks_to_those_who_may_see_them(log_in) -> None:
    client = log_in("view_lock")
    assert LIST in text(client, "/admin/")
    assert "/add/" not in text(client, "/admin/django_rlock/")


def test_only_users_with_the_permission_see_the_release_button(log_in, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    client = log_in("view_lock")
    [owner] = map(str, redis_client.hkeys("rlock:stock:0"))
    for url in (LIST, detail("stock:0"), JSON):
        page = text(client, url)
        assert owner not in page
        assert "orce release" not in page
        assert owner[:8] in page or url == LIST


def test_the_list_shows_who_does_what(operator: Client, redis_client: redis.Redis) -> None:
    with Process("web-1") as web, Process("web-2", "celery") as worker:
        web.acquire("stock:1", {"route": "POST /buy/1/", "user": "7"})
        worker.acquire("report", {"task": "shop.tasks.report", "task_id": "5f0c9e1e-8a37"}, lease_time=500)
        worker.wait("stock:1")
        eventually(lambda: redis_client.zcard("rlock_queue:{rlock:stock:1}"))
        eventually(lambda: len(redis_client.keys("rlock_process:*")) == 2)
        page = text(operator, LIST)
        stock_detail = eventually(lambda: "POST /buy/1/" in (page := text(operator, detail("stock:1"))) and page)
        document = operator.get(JSON).json()
    assert sorted(rows(page)) == ["report", "stock:1"]
    for expected in ("web-1", f"pid {web.pid}", "MainThread", "POST /buy/1/", "shop.tasks.report", "fair", "held"):
        assert expected in page
    assert '<meter aria-label="Time left" min="0" max="500.0"' in page
    assert "web-2" in stock_detail
    assert re.search(r"rlock_release --using default --owner [0-9a-f-]{36}:\d+ -- stock:1", stock_detail)
    assert {lock["name"]: lock["holders"][0]["doing"] for lock in document["locks"]} == {
        "stock:1": "POST /buy/1/",
        "report": "shop.tasks.report 5f0c9e1e-8a37",
    }
    assert (document["total"], document["matching"], document["problems"]) == (2, 2, [])


def test_search_filters_sorting_and_pages(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 120, 4)
    redis_client.persist("rlock:stock:7")
    assert rows(text(operator, LIST))[:2] == ["stock:119", "stock:118"]
    assert len(rows(text(operator, LIST))) == 50
    assert rows(text(operator, f"{LIST}?p=3"))[-1] == "stock:0"
    assert rows(text(operator, f"{LIST}?p=999&o=held_for"))[-1] == "stock:119"
    assert rows(text(operator, f"{LIST}?o=lock"))[:3] == ["stock:0", "stock:1", "stock:10"]
    assert rows(text(operator, f"{LIST}?q=BUY/42/")) == ["stock:42"]
    assert len(operator.get(f"{JSON}?q=web-1&p=1").json()["locks"]) == 30
    assert rows(text(operator, f"{LIST}?state=no-expiry")) == ["stock:7"]
    assert "No lock matches" in text(operator, f"{LIST}?kind=rlock")
    assert 'href="?q=stock&amp;o=held_for&amp;p=2"' in text(operator, f"{LIST}?q=stock&o=held_for&p=1")


@pytest.mark.parametrize("query", ["p=x", "o=-", "o=nonsense", "state=%00", "kind=%ff", "q=" + "x" * 5000, "scan=2"])
def test_parameters_that_make_no_sense_do_no_harm(operator: Client, redis_client: redis.Redis, query: str) -> None:
    plant_locks(redis_client, 2, 1)
    text(operator, f"{LIST}?{query}")
    assert operator.get(f"{JSON}?{query}").status_code == 200


def test_a_scan_is_offered_for_what_has_no_report(operator: Client, redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:java:1", JAVA, 1)
    empty = text(operator, LIST)
    for each in ("No lock is held", "Free locks for which messages are queued appear by a scan"):
        assert each in empty
    page = text(operator, f"{LIST}?scan=1")
    assert rows(page) == ["java:1"]
    assert "data-refresh" not in page  # a scan looks at every key; not every five seconds
    assert "unknown process" in text(operator, detail("java:1"))


XSS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "javascript:alert(1)",
    "{{ 7|add:7 }}{% debug %}",
    "</title><svg/onload=alert(1)>",
    "<!--",
    "]]>",
    "&lt;script&gt;",
    "\u202egnp.exe",
    "stock:1\x00\x1b[2J",
    "línea\nstock",
    "__proto__",
    "a/../../b?c=d#e;f",
    "%3Cscript%3E",
]


def plant_text(client: redis.Redis, text: str) -> None:
    """A lock that has a text as its name, and everywhere in its report."""
    key = f"rlock:{text}"
    entry = {
        "key": key,
        "owner": JAVA,
        "kind": text,
        "since": 1,
        "place": text,
        "context": {"route": text, "user": text},
    }
    client.hset(key, JAVA, 1)
    hot = {"key": key, "rate": 5, "holders": [{"by": 1, "at": 1, "place": text, "context": {"route": text}}]}
    client.hset("rlock_process:x", mapping={"host": text, "pid": text, "role": text, "hold x": json.dumps(entry)})
    client.hset("rlock_process:x", "hot x", json.dumps(hot))
    client.zadd("rlock_processes", {"x": client.time()[0]})


@pytest.mark.parametrize("payload", XSS)
def test_nothing_from_redis_becomes_markup(operator: Client, redis_client: redis.Redis, payload: str) -> None:
    plant_text(redis_client, payload)
    pages = [text(operator, LIST), text(operator, detail(payload))]
    pages.append(operator.post(FORCE, {"lock": target(payload)}).content.decode())
    operator.post(FORCE, {"lock": target(payload), "confirm": "yes", "reason": payload})
    pages += [text(operator, LIST), text(operator, "/admin/")]
    assert not redis_client.exists(f"rlock:{payload}")
    entry = LogEntry.objects.get()
    assert "\0" not in f"{entry.object_id} {entry.object_repr} {entry.change_message}"  # PostgreSQL refuses it
    for page in pages:
        assert not re.search(r"<(script|svg|img)[^>]*(alert|onerror|onload)", page)
        assert "<script>alert" not in page
        assert not re.search(r'(href|src|action)="\s*javascript', page)
        assert "14{" not in page


def test_pages_have_no_inline_script_or_style(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    pages = [text(operator, LIST), text(operator, detail("stock:0")), text(operator, detail("free"))]
    pages.append(operator.post(FORCE, {"lock": target("stock:0")}).content.decode())
    for page in pages:
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>|<style|\sstyle=|\son\w+=", page)


def test_the_pages_keep_the_stylesheets_of_the_admin(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    force = operator.post(FORCE, {"lock": target("stock:0")}).content.decode()
    for page in text(operator, LIST), text(operator, detail("stock:0")), text(operator, HISTORY), force:
        sheets = re.findall(r'<link rel="stylesheet" href="[^"]*/([^/"]+)"', page)
        assert sheets[0] == "base.css"
        assert {"admin.css", "forms.css" if page is force else "changelists.css"} < {*sheets}


def test_a_lock_that_is_free_or_unknown(operator: Client) -> None:
    assert "This lock is free" in text(operator, detail("stock:1"))
    assert operator.get(detail("stock:1", "nowhere")).status_code == 404
    assert operator.get(detail("")).status_code == 404


def test_a_server_that_is_down_gives_a_banner(operator: Client, own_server: OwnServer) -> None:
    own_server().kill()
    for url in (LIST, detail("stock:1"), f"{LIST}?scan=1"):
        assert "did not respond" in text(operator, url)
    answer = operator.get(JSON)
    assert answer.status_code == 503
    assert "did not respond" in answer.json()["problems"][0]
    posted = operator.post(FORCE, {"lock": '["default", "stock:1", "x"]'}, follow=True)
    assert posted.status_code == 200
    assert "is unavailable" in posted.content.decode()


def test_one_server_that_is_down_hides_no_other(
    operator: Client, own_server: OwnServer, redis_client: redis.Redis
) -> None:
    plant_locks(redis_client, 1, 1)
    own_server("second").kill()
    page = text(operator, LIST)
    assert rows(page) == ["stock:0"]
    assert "“second” did not respond" in page
    assert operator.get(JSON).status_code == 200


@pytest.mark.django_db
def test_the_model_needs_no_migration() -> None:
    call_command("makemigrations", "django_rlock", check=True, dry_run=True, verbosity=0)


def test_a_deadlock_is_shown_with_who_holds_what_and_waits_for_what(operator: Client) -> None:
    philosophers = Philosophers("a", "b", doing=[{"route": "POST /buy/1/"}, {"task": "shop.tasks.count"}])
    eventually(lambda: "rlock-state-deadlock" in text(operator, LIST))
    table = "<tr>.*POST /buy/1/.*/default_2Fa/.*/default_2Fb/.*</tr>.*<tr>.*shop.tasks.count.*_2Fb/.*_2Fa/"
    turned = "<tr>.*shop.tasks.count.*/default_2Fb/.*/default_2Fa/.*</tr>.*<tr>.*POST /buy/1/.*_2Fa/.*_2Fb/"
    for page in (text(operator, LIST), text(operator, detail("a"))):
        assert re.search(f"(?s){table}|{turned}", page)
    assert len(operator.get(JSON).json()["locks"][0]["deadlock"]) == 2
    philosophers.part("b")
    assert "rlock-state-deadlock" not in text(operator, LIST)


@pytest.mark.parametrize("alias", ["eu/west", "eu%2Fwest", "eu west", "eu_2Fwest"])
def test_pages_of_an_alias_with_special_characters(operator: Client, settings: Settings, alias: str) -> None:
    settings.RLOCK = {"default": {}, alias: {"KEY_PREFIX": "other"}}
    link = render_to_string("admin/django_rlock/lock/link.html", {"using": alias, "name": "stock:1/2"})
    with rlock("stock:1/2", using=alias):
        page = text(operator, link.split('"')[1])
    assert "stock:1/2" in page
    assert f'name="using" value="{alias}"' in page
