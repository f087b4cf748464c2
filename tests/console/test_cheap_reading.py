"""A page of many locks decodes nothing twice, describes only the locks that it shows, and does not ask too often."""

import json
from typing import Any

import pytest
import redis

from django_rlock._monitoring import documents
from django_rlock.console import reading
from django_rlock.console.listing import COLUMNS, Overview
from django_rlock.console.rows import Builder
from django_rlock.inspection import LockState, iter_locks
from tests.conftest import OwnServer
from tests.console.crowd import plant_locks

JAVA = "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31"


class Calls:
    """Counts the calls of a function that it stands in for, and keeps their first arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.arguments: list[Any] = []
        real = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.arguments.append(arguments)
            return real(*arguments)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("order", ["", "doing", "holder", "holds", "time_left", "waiting", "state", "kind", "lock"])
def test_only_what_a_page_shows_is_described(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    plant_locks(redis_client, 500, 5)
    described = Calls(monkeypatch, Builder, "_info")
    trips = Calls(monkeypatch, reading, "_pipeline")
    overview = Overview({"o": order, "host": "web-1", "q": "buy/", "prefix": "stock:", "older": "10"})
    assert len(overview.locks) == 50
    assert (overview.summary.held, overview.summary.silent, overview.summary.waiting) == (500, 0, 0)
    listing = overview.listing
    assert [options[0].count for options in (listing.states, listing.hosts, listing.kinds, listing.ages)] == [500] * 4
    assert len(described.arguments) == 50
    assert len(trips.arguments) <= 10


def test_a_reading_decodes_only_what_has_changed(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_locks(redis_client, 60, 3)
    decoded = Calls(monkeypatch, documents, "_entry")
    assert len(list(iter_locks())) == 60
    assert len(decoded.arguments) == 60
    report = str(redis_client.keys("rlock_process:*")[0])
    first, second, *_ = [str(field) for field in redis_client.hkeys(report) if str(field).startswith("hold")]
    document = json.loads(str(redis_client.hget(report, first)))
    redis_client.hset(report, first, json.dumps(document | {"place": "another thread"}))
    redis_client.hdel(report, second)
    decoded.arguments.clear()
    locks = list(iter_locks())
    assert len(decoded.arguments) == 1
    assert len(locks) == 59
    assert [lock.key for lock in locks if lock.holder.place == "another thread"] == [document["key"]]


def test_what_a_process_has_on_two_servers_is_kept_apart(
    own_server: OwnServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_locks(redis_client, 10, 1)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    with own_server("second").client() as second:
        plant_locks(second, 20, 1, prefix="rlock:other:")
        [other] = map(str, second.keys("rlock_process:*"))
        second.rename(other, report)
        second.delete("rlock_processes")
        second.zadd("rlock_processes", {report.removeprefix("rlock_process:"): redis_client.time()[0]})
    assert len(list(iter_locks())) == 30
    decoded = Calls(monkeypatch, documents, "_entry")
    assert len(list(iter_locks())) == 30
    assert len(decoded.arguments) == 0


def test_what_is_kept_between_readings_is_bounded(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_KEPT_FIELDS", 20)
    plant_locks(redis_client, 120, 12)
    assert len(list(iter_locks())) == 120
    assert sum(len(parsed.entries) for parsed in documents._known.value.values()) <= 20 + 10


def test_texts_that_are_json_only_together_break_nothing(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 2, 1)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    one = json.dumps({"key": "rlock:stock:0", "owner": JAVA})
    redis_client.hset(report, mapping={"hold a": f"{one}, {one}", "wait b": "[1", "hold c": "2]", "wait d": one})
    assert sorted(lock.name for lock in iter_locks()) == ["stock:0", "stock:1"]


def test_filters_by_holder_and_process_describe_only_what_they_show(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_locks(redis_client, 500, 5)
    holder = next(iter(iter_locks())).holder
    described = Calls(monkeypatch, Builder, "_info")
    assert len(Overview({"holder": holder.short_actor}).locks) == 1
    assert len(described.arguments) == 1
    assert len(Overview({"process": holder.short_client}).listing.matching) == 100
    assert not Overview({"holder": "nobody-1", "process": "nothing"}).locks
    assert len(described.arguments) == 1 + 50  # a page has fifty


@pytest.mark.parametrize("order", ["lock", "-lock", "kind", "-kind", "held_for", "-held_for", "doing", "-holder"])
def test_a_page_has_what_sorting_all_would_put_there(redis_client: redis.Redis, order: str) -> None:
    plant_locks(redis_client, 130, 4)
    pages = [Overview({"o": order, "p": str(number)}).listing.page.object_list for number in (1, 2, 3)]
    found = [lock for page in pages for lock in page]
    by_name = sorted(found, key=lambda lock: lock.name)
    column = next(column for column in COLUMNS if column.name == order.lstrip("-"))
    assert len({lock.name for lock in found}) == 130
    assert [lock.name for lock in found] == [
        lock.name for lock in sorted(by_name, key=column.value, reverse=order.startswith("-"))
    ]


def test_a_report_that_has_not_changed_is_not_parsed_again(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_locks(redis_client, 10, 1)
    assert len(list(iter_locks())) == 10
    parsed = Calls(monkeypatch, documents, "_read_entries")
    [process] = map(str, redis_client.zrange("rlock_processes", 0, -1))
    redis_client.zadd("rlock_processes", {process: redis_client.time()[0] - 60})
    assert {lock.state for lock in iter_locks()} == {LockState.SILENT}  # its heartbeat was another one
    assert process not in {client for _, client, _ in parsed.arguments}
