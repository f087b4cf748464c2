"""Open pages refresh themselves: ten of them ask the server little, and show what has happened."""

import json

import pytest
import redis
from django.test import Client

from django_rlock._monitoring import documents, reporter
from django_rlock.console import survey
from django_rlock.console.reading import State
from django_rlock.inspection import force_release
from tests.background import forget_clean_up
from tests.console.crowd import plant_locks
from tests.console.pages import JSON, LIST, commands_of, detail, rows, text
from tests.console.reporting import held

REFRESH = {"X-Rlock-Refresh": "1"}
JAVA = "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31"
A_MOMENT_AGO = 3.0
LONGEST = survey.READING_MAX_AGE, documents.PARSED_MAX_AGE


@pytest.fixture(autouse=True)
def readings_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings count for as long as a slow machine needs for a test, and none is dropped for those of earlier tests.
    Nor do these clean up or report meanwhile, by commands that would be counted."""
    forget_clean_up()
    reporter._reporter._replace()
    monkeypatch.setattr(survey, "READING_MAX_AGE", 600.0)
    monkeypatch.setattr(documents, "PARSED_MAX_AGE", 600.0)
    for kept in (survey._seen, documents._known):
        monkeypatch.setattr(kept, "value", {})


def plant(client: redis.Redis, locks: int, processes: int = 1) -> None:
    """Locks without an end, of processes that have written nothing for a moment."""
    plant_locks(client, locks, processes, silent=A_MOMENT_AGO)
    pipe = client.pipeline(transaction=False)
    for key in client.keys("rlock:stock:*"):
        pipe.persist(key)
    pipe.execute()


def change_report(client: redis.Redis, key: str, **changes: object) -> None:
    """What the holder's process does when a hold of its own has changed."""
    [report] = map(str, client.keys("rlock_process:*"))
    [hold] = [str(field) for field in client.hkeys(report) if str(field).endswith(f" {key}")]
    client.hset(report, hold, json.dumps(json.loads(str(client.hget(report, hold))) | changes))
    client.zincrby("rlock_processes", 0.5, report.removeprefix("rlock_process:"))


def refreshed(client: Client, url: str = LIST) -> str:
    return client.get(url, headers=REFRESH).content.decode()


@pytest.mark.parametrize("url", [LIST, JSON])
def test_unchanged_tabs_ask_for_three_commands_each(operator: Client, redis_client: redis.Redis, url: str) -> None:
    plant(redis_client, 2000, 20)
    etag = operator.get(url)["ETag"]
    before = commands_of(redis_client)
    answers = [operator.get(url, headers=REFRESH | {"If-None-Match": etag}).status_code for _ in range(10)]
    assert answers == [304] * 10
    asked = commands_of(redis_client) - before
    assert asked.total() <= 10 * 3, asked  # the time, the heartbeats, and whether the locks are there


def test_tabs_with_different_filters_share_readings(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, 60, 3)
    operator.get(f"{LIST}?o=lock")
    operator.get(f"{LIST}?o=-lock")
    before = commands_of(redis_client)
    for query in ("q=stock", "host=web-1", "prefix=stock:", "older=10", "state=silent"):
        refreshed(operator, f"{LIST}?{query}")
    assert (asked := commands_of(redis_client) - before).total() <= 5 * 3, asked


def test_only_what_has_changed_is_read_again(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, 40)
    operator.get(LIST)
    change_report(redis_client, "rlock:stock:7", count=3)
    redis_client.hset("rlock:stock:7", held("stock:7").holder.owner, 3)
    before = commands_of(redis_client)
    [lock] = [lock for lock in operator.get(JSON, headers=REFRESH).json()["locks"] if lock["name"] == "stock:7"]
    assert lock["holders"][0]["count"] == 3
    assert (asked := commands_of(redis_client) - before).total() <= 3 + 1 + 5, asked  # the report, and the lock


def test_a_refresh_shows_a_lock_that_is_gone(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, 3)
    assert rows(text(operator, LIST)) == ["stock:2", "stock:1", "stock:0"]
    redis_client.delete("rlock:stock:1")
    assert rows(refreshed(operator)) == ["stock:2", "stock:0"]


def test_a_refresh_shows_the_first_waiter_that_no_report_names(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, 3)
    operator.get(JSON)
    redis_client.zadd("rlock_queue:{rlock:stock:1}", {JAVA: 1})
    found = {lock["name"]: lock["waiting"] for lock in operator.get(JSON, headers=REFRESH).json()["locks"]}
    assert found == {"stock:0": 0, "stock:1": 1, "stock:2": 0}


@pytest.mark.parametrize("headers", [{}, REFRESH])
def test_a_forced_release_is_shown_at_once(
    operator: Client, redis_client: redis.Redis, headers: dict[str, str]
) -> None:
    plant(redis_client, 3)
    redis_client.zadd("rlock_queue:{rlock:stock:1}", {JAVA: 1})
    for url in (LIST, detail("stock:1")):
        operator.get(url)
    assert force_release("stock:1")
    assert "stock:1" not in rows(operator.get(LIST, headers=headers).content.decode())
    assert "This lock is free." in operator.get(detail("stock:1"), headers=headers).content.decode()


def test_the_page_that_a_person_asks_for_is_read_anew(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, 3)
    operator.get(JSON)
    redis_client.delete("rlock:stock:1")
    redis_client.hset("rlock:stock:1", JAVA, 1)  # no report tells
    [lock] = [lock for lock in operator.get(JSON).json()["locks"] if lock["name"] == "stock:1"]
    assert lock["holders"][0]["host"] is None


def test_a_reading_counts_for_a_sixth_of_its_lease(
    operator: Client, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(redis_client, 1)
    operator.get(JSON)
    redis_client.pexpire("rlock:stock:0", 500_000)
    assert operator.get(JSON, headers=REFRESH).json()["locks"][0]["remaining_lease"] is None
    monkeypatch.setattr(survey, "READING_MAX_AGE", 0.0)
    assert operator.get(JSON, headers=REFRESH).json()["locks"][0]["remaining_lease"] > 400
    assert [survey._lasts(State({}, pttl, (), 0)) for pttl in (30_000, 6_000)] == [0.0, 0.0]
    monkeypatch.setattr(survey, "READING_MAX_AGE", 5.0)
    assert [survey._lasts(State({}, pttl, (), 0)) for pttl in (-1, 60_000, 6_000)] == [5.0, 5.0, 1.0]


def test_the_time_left_counts_down_between_readings(operator: Client, redis_client: redis.Redis) -> None:
    plant(redis_client, 1)
    redis_client.pexpire("rlock:stock:0", 3_600_000)
    operator.get(JSON)
    lock = "default", "rlock:stock:0"
    seen = survey._seen.value[lock]
    survey._seen.value[lock] = seen._replace(at=seen.at - 100)
    before = commands_of(redis_client)
    assert operator.get(JSON, headers=REFRESH).json()["locks"][0]["remaining_lease"] <= 3_500
    assert (asked := commands_of(redis_client) - before).total() <= 3, asked  # it was not read again


def test_unreported_changes_are_shown_within_five_seconds(
    operator: Client, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/admin.md says. Here a report; for locks see ``test_a_reading_counts_for_a_sixth_of_its_lease``."""
    assert LONGEST == (5.0, 5.0)
    plant(redis_client, 1)
    operator.get(JSON)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    redis_client.hset(report, "host", "web-9")
    assert operator.get(JSON, headers=REFRESH).json()["locks"][0]["holders"][0]["host"] == "web-0"
    monkeypatch.setattr(documents, "PARSED_MAX_AGE", 0.0)
    assert operator.get(JSON, headers=REFRESH).json()["locks"][0]["holders"][0]["host"] == "web-9"


def test_not_all_that_was_ever_read_is_kept(
    operator: Client, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "MAX_KEPT_LOCKS", 10)
    plant(redis_client, 120)
    for page in (1, 2, 3):
        operator.get(f"{LIST}?p={page}")
    assert len(survey._seen.value) <= 50


def test_a_report_that_was_read_just_when_it_was_written_is_read_again(
    operator: Client, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_SETTLED", 600.0)  # however slow the machine is
    plant_locks(redis_client, 1, 1)
    operator.get(JSON)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    redis_client.hset(report, "host", "web-9")  # the rest of the same writing
    assert operator.get(JSON, headers=REFRESH).json()["locks"][0]["holders"][0]["host"] == "web-9"
