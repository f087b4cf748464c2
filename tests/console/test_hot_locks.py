"""Locks that are taken so often that no hold is old enough to be reported: their rate and last holders are."""

import csv
import io
import json
import re
from contextlib import suppress

import pytest
import redis
from django.core.management import CommandError, call_command

from django_rlock import rlock
from django_rlock._monitoring.documents import MAX_NAMED
from django_rlock._monitoring.recorder import MAX_HOT, hot_locks
from django_rlock._transport.identity import Owner, current_owner
from django_rlock.console.listing import Overview
from django_rlock.console.rows import public_dict
from django_rlock.inspection import LockInfo, LockState, iter_locks, lock_info
from django_rlock.locks.records import Hold, key_of
from django_rlock.locks.statistics import MAX_RECENT
from tests.console.busy import BusyProcess
from tests.console.crowd import plant_locks
from tests.console.past import Past
from tests.console.reporting import held, report_of
from tests.eventually import eventually


def hot(name: str) -> LockInfo | None:
    info = lock_info(name)
    return info if info and len({party.host for party in info.recent}) == 2 else None


def test_a_hot_lock_names_its_last_holders_and_its_rate(redis_client: redis.Redis) -> None:
    with BusyProcess("stock:42", "web-1") as one, BusyProcess("stock:42", "web-2") as two:
        info = eventually(lambda: hot("stock:42"))
        assert {(party.host, party.pid) for party in info.recent} == {("web-1", one.pid), ("web-2", two.pid)}
        assert {(party.place, party.doing) for party in info.recent} == {("MainThread", "POST /buy/42/")}
        assert info.rate is not None
        assert 1 < info.rate < 1000
        assert info.is_hot
        assert info.state == LockState.HOT
        public = json.dumps(public_dict(info))
        assert not any(party.client in public for party in info.recent)
        text = eventually(_info_text)
        heading, line = eventually(lambda: _listed("table", "web-1", "web-2")).splitlines()
        assert heading.split()[-1] == "RATE"
        assert "MainThread" in line
        assert "POST /buy/42/" in line
        assert str(one.pid) in line
        assert str(two.pid) in line
        assert re.search(r" hot +[\d.]+/s$", line)
        [row] = csv.DictReader(io.StringIO(eventually(lambda: _listed("csv", "web-1", "web-2"))))
        assert set(row["host"].split(", ")) == {"web-1", "web-2"}
        assert 1 < float(row["rate"]) < 1000
        assert eventually(lambda: _listed("table", "web-2", host="web-2"))
    assert "MainThread  POST /buy/42/" in text
    assert re.search(r"^acquired [\d.]+/s, last by$", text, re.MULTILINE)


def _listed(form: str, *hosts: str, **options: str) -> str:
    """The list, once it names these hosts as holders of a hot lock; "" before."""
    out = io.StringIO()
    with suppress(CommandError):  # a busy machine may stop both for longer than a hot lock is remembered
        call_command("rlock_list", "stock:*", format=form, state="hot", stdout=out, **options)
    return out.getvalue() if all(host in out.getvalue() for host in hosts) else ""


def _info_text() -> str:
    out = io.StringIO()
    with suppress(CommandError):  # it is free at that moment
        call_command("rlock_info", "stock:42", stdout=out)
    return out.getvalue() if "last by" in out.getvalue() else ""


def take(name: str, times: int) -> None:
    for _ in range(times):
        with rlock(name):
            pass


def test_a_lock_that_is_no_longer_hot_is_not_reported(past: Past, redis_client: redis.Redis) -> None:
    take("stock:42", 1)
    past.round(0.0)
    take("stock:42", 20)
    past.round(5.0)
    assert "hot rlock:stock:42" in report_of(redis_client)
    with rlock("stock:42"):
        [party] = held("stock:42").recent
        assert party.place == "MainThread"
    assert lock_info("stock:42") is None
    [listed] = Overview({}).locks
    assert (listed.name, listed.state, listed.holders) == ("stock:42", LockState.HOT, ())
    assert listed.other_holders == 0
    past.round(11.0)
    past.round(17.0)
    assert not report_of(redis_client)
    assert not Overview({}).locks


def holds(name: str, times: int, owner: Owner | None = None) -> list[Hold]:
    """Holds that began within the last second before 1.0."""
    owner = owner or current_owner()
    lock = rlock(name)
    made: list[Hold] = []
    for number in range(1, times + 1):
        hold = Hold(key_of(lock, owner), lock, owner, "x", number / times)
        hold.ended = hold.since
        made.append(hold)
    return made


def fields(recent: list[Hold], since: float = 0.0, now: float = 1.0) -> dict[str, dict[str, object]]:
    return {field: json.loads(text) for field, text in (lock.field(0.0) for lock in hot_locks(recent, since, now))}


def test_a_lock_that_is_taken_rarely_is_not_hot() -> None:
    recent = [*holds("stock:1", 10), *holds("stock:2", 9)]
    assert fields(recent, now=10.0).keys() == {"hot rlock:stock:1"}
    assert fields(recent, now=20.0) == {}


def test_where_there_were_more_holds_than_are_remembered_the_rate_is_that_of_these() -> None:
    recent = holds("stock:1", MAX_RECENT)
    [found] = fields(recent, since=-10.0).values()
    assert found["rate"] == pytest.approx(MAX_RECENT, rel=0.01)


def test_holds_that_end_while_the_rates_are_computed_count() -> None:
    assert hot_locks(holds("stock:1", MAX_RECENT), since=-10.0, now=0.002)


def test_the_hottest_are_reported_and_different_holders_named() -> None:
    recent = [each for number in range(40) for each in holds(f"stock:{number}", number + 2)]
    owners = [Owner(f"thread {number}") for number in range(10)]
    recent += [each for owner in owners for each in holds("stock:39", 20, owner)]
    found = fields(recent)
    assert len(found) == MAX_HOT
    holders = found["hot rlock:stock:39"]["holders"]
    assert isinstance(holders, list)
    assert [each["place"] for each in holders] == ["thread 9", "thread 8", "thread 7"][:MAX_NAMED]


def test_locks_taken_together_are_hot_too(past: Past, redis_client: redis.Redis) -> None:
    past.round(0.0)
    take("stock:1", 1)
    past.round(0.0)
    for _ in range(20):
        with rlock("stock:1", "stock:2"):
            pass
    past.round(5.0)
    assert {"hot rlock:stock:1", "hot rlock:stock:2"} <= report_of(redis_client).keys()


FIELDS = [
    "not JSON",
    '{"key": 1, "rate": 5}',
    '{"key": "rlock:stock:1", "rate": "x"}',
    '{"key": "rlock:stock:1", "rate": 1e308}',
    '{"key": "rlock:stock:1", "rate": -1}',
    '{"key": "rlock:stock:1", "rate": 5, "holders": {"a": 1}}',
    '{"key": "rlock:stock:1", "rate": 5, "holders": [null, {"by": "x", "at": NaN, "context": [], "place": {}}]}',
    '{"key": "rlock:stock:\\ud800", "rate": 5}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("planted", FIELDS, ids=repr)
def test_planted_hot_locks_break_nothing(redis_client: redis.Redis, planted: str | bytes) -> None:
    plant_locks(redis_client, 2, 1)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    redis_client.hset(report, "hot x", planted)
    redis_client.hset(report, "of a newer version", "{}")
    locks = {lock.name: lock for lock in iter_locks()}
    assert sorted(locks) == ["stock:0", "stock:1"]
    json.dumps([lock.as_dict() for lock in locks.values()], allow_nan=False).encode()
    assert locks["stock:1"].rate in {None, 5.0}
