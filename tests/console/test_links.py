"""From a holder to all that it holds, to its process, to its user and its task; and what names look like."""

from functools import partial
from html import unescape

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_rlock import rlock
from django_rlock.locks.records import Work
from tests.console.conftest import LogIn
from tests.console.crowd import plant_locks
from tests.console.pages import FORCE, LIST, PROCESSES, detail, rows, target, text
from tests.console.processes import Process
from tests.console.reporting import held
from tests.console.test_pages import JAVA, plant_text
from tests.eventually import eventually


def test_a_holder_leads_to_its_process_its_user_its_task_and_all_that_it_holds(
    operator: Client, redis_client: redis.Redis, settings: Settings
) -> None:
    settings.RLOCK = {"default": {"TASK_URL": "https://flower.example.com/task/{id}?x=1"}}
    with Process("web-1") as web, Process("worker-1", "celery") as worker:
        web.acquire("stock:1", {"route": "POST /buy/1/", "user": "7"})
        web.acquire("stock:2", {"route": "POST /buy/1/", "user": "7"}, kind="rlock")
        worker.acquire("report", {"task": "shop.tasks.report", "task_id": "5f/0c"})
        web.wait("report")
        worker.block("stock:1")
        for name in ("stock:1", "report"):
            eventually(partial(waited, name))
        eventually(lambda: held("stock:2").held_for)
        stock, report, page = held("stock:1"), held("report"), text(operator, detail("stock:1"))
        listed = text(operator, LIST)
        processes = text(operator, PROCESSES)
        assert rows(text(operator, f"{LIST}?holder={stock.holder.short_actor}")) == ["stock:1", "stock:2"]
        assert rows(text(operator, f"{LIST}?holder={stock.waiters[0].short_actor}")) == ["report"]
        assert sorted(rows(text(operator, f"{LIST}?process={stock.holder.short_client}"))) == [
            "report",
            "stock:1",
            "stock:2",
        ]
    assert f'href="{LIST}?holder={stock.holder.short_actor}"' in page
    assert f'href="{LIST}?holder={report.holder.short_actor}"' in page
    assert f'href="{PROCESSES}#process-{stock.holder.short_client}"' in page
    assert f'href="{reverse("admin:auth_user_change", args=["7"])}"' in page
    assert 'href="https://flower.example.com/task/5f%2F0c?x=1"' in listed
    assert f'<tr id="process-{stock.holder.short_client}">' in processes
    for owner in (stock.holder, report.holder):
        assert owner.client not in processes
    for expected in (f"web-1</bdi> · pid {web.pid}", "celery", "alive", "0.", f"?process={stock.holder.short_client}"):
        assert expected in processes


@pytest.mark.parametrize(("permissions", "shown"), [("view_lock view_user", "bob"), ("view_lock", "7")])
def test_a_user_has_a_name_for_who_may_view_users(log_in: LogIn, permissions: str, shown: str) -> None:
    client = log_in(permissions)
    User.objects.create(pk=7, username="bob")
    with Work({"route": "POST /buy/", "user": "7"}), rlock("stock:1"):
        page = text(client, detail("stock:1"))
    assert f'<a href="{reverse("admin:auth_user_change", args=["7"])}"><bdi>{shown}</bdi></a>' in page


@pytest.mark.parametrize("pk", ["bob", "9" * 40, "\0"])
def test_a_user_that_no_process_of_ours_has_reported(operator: Client, pk: str) -> None:
    with Work({"route": "POST /buy/", "user": pk}), rlock("stock:1"):
        assert "POST /buy/" in text(operator, detail("stock:1"))


def test_a_long_name_is_in_the_title_of_its_link(operator: Client, redis_client: redis.Redis) -> None:
    long = "invoice:" + "7" * 892
    redis_client.hset(f"rlock:{long}", JAVA, 1)
    assert f'title="{long}"' in text(operator, f"{LIST}?scan=1")


def waited(name: str) -> bool:
    return any(waiter.waited for waiter in held(name).waiters)


def test_the_page_of_processes_shows_which_are_silent(operator: Client, redis_client: redis.Redis) -> None:
    assert "No process holds or waits for a lock" in text(operator, PROCESSES)
    plant_locks(redis_client, 1, 1, silent=20)
    assert "silent for" in text(operator, PROCESSES)


def test_control_characters_are_seen_and_turn_nothing_around(operator: Client, redis_client: redis.Redis) -> None:
    name = "\u202egnp\x1b[2J.exe"
    plant_text(redis_client, name)
    pages = [text(operator, url) for url in (LIST, detail(name), PROCESSES)]
    pages.append(operator.post(FORCE, {"lock": target(name)}).content.decode())
    for page in map(unescape, pages):
        assert r"<bdi>\u202egnp\x1b[2J.exe</bdi>" in page
    assert r"-- $'\U0000202egnp\U0000001b[2J.exe'" in unescape(pages[1])


@pytest.mark.parametrize("start", ["1e308", "-1e18", "x", "nan"])
def test_a_planted_start_breaks_nothing(operator: Client, redis_client: redis.Redis, start: str) -> None:
    plant_text(redis_client, "stock:1")
    redis_client.hset("rlock_process:x", "start", start)
    assert "–" in text(operator, PROCESSES)


def test_a_java_owner_leads_to_all_that_it_holds(operator: Client, redis_client: redis.Redis) -> None:
    for name in ("java:1", "java:2"):
        redis_client.hset(f"rlock:{name}", JAVA, 1)
    redis_client.hset("rlock:other", JAVA.replace(":31", ":32"), 1)
    short = held("java:1").holder.short_actor
    assert rows(text(operator, f"{LIST}?scan=1&holder={short}")) == ["java:1", "java:2"]
