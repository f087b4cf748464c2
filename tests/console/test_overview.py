"""The list of locks: trouble first, filters that stay, and what a page costs however many locks there are."""

import re
import time
from threading import Thread
from typing import Any

import pytest
import redis
from django.test import Client
from pytest_django import Settings

from django_rlock import rlock
from tests.console.crowd import plant_locks, plant_waiters
from tests.console.pages import JSON, LIST, commands_of, detail, rows, text
from tests.eventually import eventually


def summary(client: Client) -> dict[str, Any]:
    return dict(client.get(JSON).json()["summary"])


def test_the_summary_counts_deadlocks_waiters_and_holders(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 60, 3)
    waiter = Thread(target=lambda: rlock("ours", wait_time=60).acquire() and rlock("ours").release())  # type: ignore[func-returns-value]
    with rlock("ours"):
        waiter.start()
        # This process is one of them as soon as it has reported its hold.
        found = eventually(lambda: (found := summary(operator))["waiting"] and found["processes"] == 4 and found)
        page = text(operator, LIST)
    waiter.join()
    [[alias, server]] = found.pop("aliases")
    assert found.pop("oldest_wait") < 60
    assert abs(found.pop("oldest_since") - time.time()) < 60
    assert found == {"held": 61, "waiting": 1, "silent": 0, "deadlocks": 0, "processes": 4}
    assert alias == "default"
    assert server.startswith("unix://")
    assert "<b>61</b> held" in page
    assert "<b>4</b> processes" in page
    assert "rlock-trouble" not in page
    for link in (f"{LIST}?state=deadlock", f"{LIST}?state=silent", f"{LIST}?waiting=1&amp;o=-waiting", detail("ours")):
        assert f'<a href="{link}">' in page


def test_the_figure_of_waiters_leads_to_the_locks_that_they_wait_for(
    operator: Client, redis_client: redis.Redis
) -> None:
    plant_locks(redis_client, 3, 1)
    plant_waiters(redis_client, "stock:1", [1])
    page = text(operator, f"{LIST}?waiting=1&o=-waiting")
    assert rows(page) == ["stock:1"]
    assert '<input type="hidden" name="waiting" value="1">' in page


def test_a_silent_holder_is_trouble(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1, silent=20)
    page = text(operator, LIST)
    assert re.search(r'<li class="rlock-trouble"><a [^>]*><b>1</b> silent holder</a></li>', page)
    assert rows(page) == ["stock:0"]


def test_what_a_dead_process_reported_is_not_shown_once_its_lease_is_over(
    operator: Client, redis_client: redis.Redis
) -> None:
    plant_locks(redis_client, 2, 1, silent=60)
    assert summary(operator)["held"] == 0
    assert rows(text(operator, LIST)) == []


def test_age_alone_has_no_colour(operator: Client, redis_client: redis.Redis, settings: Settings) -> None:
    settings.RLOCK = {"default": {"SLOW_HOLD": 1}}
    plant_locks(redis_client, 5, 1)
    assert "rlock-slow" not in text(operator, LIST)
    redis_client.zadd("rlock_queue:{rlock:stock:4}", {"9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31": 1})
    for url in (LIST, detail("stock:4")):
        assert "rlock-slow" in text(operator, url)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("host=web-1&older=3600", ["old:stock:3", "old:stock:1"]),
        ("prefix=old:&o=lock", [f"old:stock:{number}" for number in range(4)]),
        ("using=default&older=3600&prefix=stock:", []),
        ("older=x&prefix=stock:7&o=lock", [f"stock:7{suffix}" for suffix in ["", *range(10)]]),
        ("prefix=invoice:", []),
    ],
)
def test_filters(operator: Client, redis_client: redis.Redis, query: str, found: list[str]) -> None:
    plant_locks(redis_client, 120, 4)
    plant_locks(redis_client, 4, 2, prefix="rlock:old:", silent=7200, longer=7200)
    assert rows(text(operator, f"{LIST}?{query}")) == found
    assert [lock["name"] for lock in operator.get(f"{JSON}?{query}").json()["locks"]] == found


def test_pages_and_headings_keep_the_filters_at_both_ends(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 240, 2)
    page = text(operator, f"{LIST}?host=web-1&prefix=stock:&older=10&o=lock&p=2")
    kept = "?host=web-1&amp;prefix=stock%3A&amp;older=10&amp;o=lock"
    assert page.count(f'<a href="{kept}&amp;p=1" rel="prev">') == 2
    assert page.count(f'<a href="{kept}&amp;p=3" rel="next">') == 2
    assert 'href="?host=web-1&amp;prefix=stock%3A&amp;older=10&amp;o=-lock"' in page
    assert '<option value="web-1" selected>web-1 (120)' in page
    assert '<option value="10" selected>' in page
    last = text(operator, f"{LIST}?host=web-1&p=3")
    assert last.count('<span class="quiet">Next</span>') == 2
    assert 'rel="next"' not in last


@pytest.mark.parametrize("query", ["", "?p=7&o=lock", "?q=stock&host=web-3", "?older=60&state=held"])
def test_a_page_costs_no_more_when_there_are_more_locks(
    operator: Client, redis_client: redis.Redis, query: str
) -> None:
    plant_locks(redis_client, 2000, 20)
    # Owners that hold one lock and wait for another: the most that is looked at for the sake of deadlocks.
    pipe = redis_client.pipeline(transaction=False)
    for report in map(str, redis_client.keys("rlock_process:*")):
        [hold, *_] = [str(field) for field in redis_client.hkeys(report) if str(field).startswith("hold")]
        value = str(redis_client.hget(report, hold)).replace("rlock:stock:", "rlock:java:")
        pipe.hset(report, f"wait {hold}", value)
        pipe.hset(value.split('"')[3], "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31", 1)
    pipe.execute()
    for url in (LIST, JSON):
        before = commands_of(redis_client)
        assert operator.get(url + query).status_code == 200
        assert (asked := commands_of(redis_client) - before).total() <= 350, asked


def test_an_unchanged_page_is_not_sent_again(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 1)
    for key in redis_client.keys("rlock:stock:*"):
        redis_client.persist(key)
    for url in (LIST, JSON):
        etag = operator.get(url)["ETag"]
        again = operator.get(url, headers={"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
        assert operator.get(f"{url}?o=lock", headers={"If-None-Match": etag}).status_code == 200
        redis_client.zadd("rlock_queue:{rlock:stock:1}", {f"9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:{url}": 1})
        assert operator.get(url, headers={"If-None-Match": etag}).status_code == 200


def test_freed_locks_are_no_longer_counted(operator: Client, redis_client: redis.Redis) -> None:
    """Their reports outlive them: those of a dead process until its leases would have ended."""
    plant_locks(redis_client, 3, 1, silent=20)
    assert summary(operator)["silent"] == 3
    redis_client.delete("rlock:stock:0", "rlock:stock:2")
    found = operator.get(JSON).json()
    assert [lock["name"] for lock in found["locks"]] == ["stock:1"]
    assert (found["summary"]["held"], found["summary"]["silent"], found["matching"], found["total"]) == (1, 1, 1, 1)
    elsewhere = operator.get(f"{JSON}?q=nothing").json()
    assert (elsewhere["summary"]["silent"], elsewhere["total"]) == (1, 1)


def test_locks_move_up_to_the_places_of_those_that_were_freed(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 120, 2)
    redis_client.delete(*(f"rlock:stock:{number}" for number in range(10, 120)))
    page = text(operator, f"{LIST}?o=-held_for")
    assert rows(page) == [f"stock:{number}" for number in range(9, -1, -1)]
    assert "<b>10</b> held" in page
    assert "10 locks" in page
