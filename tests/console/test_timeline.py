"""The memory of processes about single locks: their last holds and waits, also when the lock is free."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_rlock import rlock
from django_rlock._monitoring import documents, recorder
from django_rlock._redis import keys
from django_rlock._transport.identity import client_id
from django_rlock.console.history import MAX_HISTORY_JSON
from django_rlock.console.timeline import MAX_SHOWN, WINDOWS, Chart, Timeline, read_timeline
from django_rlock.exceptions import LockLostError
from django_rlock.inspection import force_release, lock_info
from tests.console.past import Past, working_on
from tests.console.processes import Process
from tests.console.test_history import _events, listeners
from tests.eventually import eventually


def take(*names: str, **options: Any) -> None:
    for name in names:
        with rlock(name, **options):
            pass


def timeline(past: Past, name: str = "stock:1", using: str = "default") -> Timeline:
    past.written()
    return read_timeline(using, name, lock_info(name, using))


@contextmanager
def waiting_for(name: str) -> Iterator[None]:
    """A lock that this thread holds, while another one waits for it."""
    with rlock(name):
        waiter = threading.Thread(target=take, args=(name,), name="waiter")
        waiter.start()
        eventually(lambda: (info := lock_info(name)) and info.waiters)
        yield
    waiter.join()


def whats(found: Timeline) -> list[str]:
    return [getattr(past, "verb", past.what) for past in found.listed]


def test_the_last_holds_are_remembered_when_the_lock_is_free(past: Past) -> None:
    with working_on(route="POST /buy/1/"):
        take(*["stock:1"] * 12, "stock:2")
    found = timeline(past)
    assert whats(found) == ["held"] * documents.LAST["hold"]
    first = found.listed[0]
    assert (first.doing, first.place, first.name) == ("POST /buy/1/", "MainThread", "stock:1")
    assert found.longest_hold is not None
    assert 0 < found.longest_hold < 60
    assert found.queue == []
    assert not timeline(past, "stock:3")


def test_locks_taken_together_are_remembered_one_by_one(past: Past) -> None:
    with rlock("stock:1", "stock:2"):
        pass
    assert whats(timeline(past)) == whats(timeline(past, "stock:2")) == ["held"]


def test_a_wait_that_got_the_lock_and_one_that_gave_up(past: Past) -> None:
    with waiting_for("stock:1"):
        assert not rlock("stock:1", owner="other").acquire(wait_time=0.05)
    found = timeline(past)
    assert sorted(whats(found)) == ["gave up", "held", "held", "waited"]
    assert (found.gave_up, found.longest_queue) == (1, 2)
    assert {wait.place for wait in found.waits} == {"waiter", ""}


def test_a_loss_and_a_forced_release_say_who_and_why(past: Past, redis_client: redis.Redis) -> None:
    before = listeners(redis_client)
    with Process("web-1") as web:
        web.acquire("stock:1", {"route": "POST /buy/1/"})
        eventually(lambda: listeners(redis_client) > before)
        force_release("stock:1", reason="stuck since noon", by="alice")
        eventually(_events)
        web.exit()
        found = timeline(past)
    assert [(event.by, event.reason) for event in found.freed] == [("alice", "stuck since noon")]
    [lost] = found.lost
    assert (lost.host, lost.verb, lost.doing) == ("web-1", "lost", "POST /buy/1/")
    assert lost.reason == "alice freed it by force: stuck since noon"


def test_what_lasts_is_part_of_it(past: Past) -> None:
    with waiting_for("stock:1"):
        found = timeline(past)
    assert [hold.is_now for hold in found.holds] == [wait.is_now for wait in found.waits] == [True]
    assert found.listed == []
    assert found.longest_queue == 1


def test_a_hold_that_ends_while_nothing_else_happens_is_written(past: Past, redis_client: redis.Redis) -> None:
    with rlock("stock:1"):
        past.round(0)
        assert past.round(6) < 6
    past.round(12)
    assert whats(read_timeline("default", "stock:1", None)) == ["held"]


def test_locks_that_nobody_waited_for_are_forgotten_first(past: Past) -> None:
    with rlock("stock:busy"):
        other = rlock("stock:busy", owner="other")
        assert not other.acquire(blocking=False)
    for start in range(0, 400, 100):
        take(*[f"stock:{number}" for number in range(start, start + 100)])
        past.round(10.0 * start)
    assert "gave up" in whats(timeline(past, "stock:busy"))
    assert whats(timeline(past, "stock:399")) == ["held"]
    assert not timeline(past, "stock:1")


def test_its_size_is_bounded(past: Past, redis_client: Any) -> None:
    about = dict.fromkeys(("route", "user", "task", "task_id"), "x" * 1000)
    with working_on(**about):
        for number in range(recorder.MAX_LOCKS + 5):
            with rlock(f"{number}", lease_time=60):
                for _ in range(documents.LAST["wait"] + 5 if number == 30 else 1):
                    assert not rlock(f"{number}", owner="y").acquire(blocking=False)
            take(*[f"{number}"] * 15)
        for _ in range(8):
            force_release("30", reason="z" * 1000, by="w" * 1000)
    past.written()
    key = keys.history_key(client_id())
    fields = redis_client.hgetall(key)
    assert len([field for field in fields if field.startswith("lock ")]) == recorder.MAX_LOCKS
    assert max(map(len, fields.values())) < MAX_HISTORY_JSON
    assert 80_000 < redis_client.ttl(key) <= 86_400
    found = read_timeline("default", "30", None)
    assert len(found.waits) == documents.LAST["wait"]
    assert sum(wait.is_named for wait in found.waits) == recorder.MAX_NAMED_WAITS
    assert len(found.listed) <= 3 * MAX_SHOWN


def test_only_what_has_changed_is_written(past: Past, redis_client: redis.Redis) -> None:
    take("stock:1")
    past.round(0)
    redis_client.hset(keys.history_key(client_id()), "lock rlock:stock:1", "untouched")
    take("stock:2")
    past.round(10)
    fields = redis_client.hgetall(keys.history_key(client_id()))
    assert fields["lock rlock:stock:1"] == "untouched"
    assert "lock rlock:stock:2" in fields


def test_a_lost_lock_is_lost_in_it(past: Past) -> None:
    with pytest.raises(LockLostError), rlock("stock:1", lease_time=0.05):
        eventually(lambda: past.recorder.urgent)
    [lost] = timeline(past).lost
    assert "lease" in lost.reason


HOSTILE = [
    "not JSON",
    "[" * 100_000,
    "x" * 1_000_000,
    '{"what": "hold", "at": %d, "seconds": 1}',
    '[1, null, [], {}, {"what": "hold", "at": %d}, {"what": [], "at": %d, "seconds": 1}, {"what": "hold", "at": NaN}]',
    '[{"what": "hold", "at": %d, "seconds": 1e300}, {"what": "hold", "at": 1e300, "seconds": 1}]',
    '[{"what": "hold", "at": %d, "seconds": -1}, {"what": "wait", "at": %d, "seconds": 9, "place": [], "context": 7}]',
    '[{"what": "wait", "at": %d, "seconds": 1, "failed": {}, "reason": "\\ud800\\u0000"}]',
    '[{"what": "freed", "at": %d, "seconds": 0, "by": [], "name": {}}, {"what": "lost", "at": -1, "seconds": 0}]',
]


@pytest.mark.parametrize("planted", HOSTILE, ids=lambda text: repr(text[:60]))
def test_planted_texts_break_nothing(redis_client: redis.Redis, planted: str) -> None:
    now = redis_client.time()[0]
    redis_client.hset("rlock_history:x", "lock rlock:stock:1", planted.replace("%d", str(now)))
    redis_client.hset("rlock_history:x", mapping={"host": "x" * 1000, "pid": "1e400"})
    redis_client.set("rlock_history:y", "a string, as an earlier version writes it")
    redis_client.execute_command("ZADD", "rlock_histories", now, "x", now, "y", now, "gone")
    chart = Chart(read_timeline("default", "stock:1", None))
    assert all(0 <= bar.x <= 100 and 0 < bar.width <= 100 for bar in chart.bars)
    assert all(0 <= mark.x <= 100 for mark in chart.marks)
    assert chart.columns is not None
    assert chart.window in WINDOWS
    json.dumps(chart.timeline.as_dict(), allow_nan=False).encode()
