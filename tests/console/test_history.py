"""The memory of processes about the locks that they took, lost or freed by force."""

import json
import threading
import time
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_rlock import rlock
from django_rlock._core.clock import monotonic
from django_rlock._redis import keys
from django_rlock._transport.identity import client_id
from django_rlock.console.history import MAX_HISTORY_JSON, GroupWork, ReportedSpan, read_history
from django_rlock.console.timeline import read_timeline
from django_rlock.inspection import LockInfo, force_release, iter_locks
from django_rlock.locks.base import BaseLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import note_templates
from django_rlock.locks.statistics import MAX_EVENTS, MAX_GROUPS, MAX_RECENT, STATISTICS
from tests.conftest import OwnServer
from tests.console.past import Past, working_on
from tests.console.processes import Process
from tests.console.reporting import commands
from tests.eventually import eventually
from tests.forking import in_child


def templated(name: str, template: str) -> BaseLock:
    lock = rlock(name)
    note_templates(lock, {name: template})
    return lock


def take(*locks: BaseLock) -> None:
    for lock in locks:
        with lock:
            pass


def work(past: Past) -> dict[str, GroupWork]:
    return {each.label: each for each in past.written().work}


def test_locks_are_counted_by_template_or_by_what_their_names_begin_with(past: Past) -> None:
    take(*[templated(f"stock:{number}", "stock:<id>") for number in range(3)])
    take(rlock("cart:1"), rlock("cart:2"), rlock("nightly"))
    counted = work(past)
    assert {label: each.acquired for label, each in counted.items()} == {"stock:<id>": 3, "cart:…": 2, "": 1}
    assert {each.using for each in counted.values()} == {"default"}


def test_a_nested_acquire_is_no_acquisition(past: Past) -> None:
    with rlock("cart:1"), rlock("cart:1"):
        pass
    assert work(past)["cart:…"].acquired == 1


def test_locks_taken_together_count_once_for_each_template(past: Past) -> None:
    take(rlock("stock:1", "stock:2", "cart:1"))
    assert {label: each.acquired for label, each in work(past).items()} == {"stock:…": 1, "cart:…": 1}


def test_the_longest_hold_is_named(past: Past) -> None:
    with working_on(route="POST /buy/42/", user="7"), rlock("stock:1") as outer:
        take(rlock("stock:2"))
        assert outer.owned()
    longest = work(past)["stock:…"].longest_hold
    assert longest is not None
    assert (longest.name, longest.doing, longest.place) == ("stock:1", "POST /buy/42/", "MainThread")
    assert 0 < longest.seconds < 60
    assert abs(longest.at - time.time()) < 60


def test_what_an_alias_keeps_to_itself_is_not_written(
    past: Past, settings: Settings, redis_client: redis.Redis
) -> None:
    settings.RLOCK = {"default": {"RECORD_CONTEXT": False}}
    with working_on(route="POST /secret/"):
        take(rlock("stock:1"))
    assert past.written().work
    assert read_timeline("default", "stock:1", None)
    assert "secret" not in str(redis_client.hgetall(keys.history_key(client_id())))


def test_no_number_of_short_holds_hides_the_longest(past: Past) -> None:
    with rlock("stock:1"):
        HOLDS.snapshot()[0].since -= 60
    take(*[rlock("stock:2")] * (MAX_RECENT + 1))
    found = work(past)["stock:…"]
    assert found.acquired == MAX_RECENT + 2
    assert found.longest_hold is not None
    assert found.longest_hold.name == "stock:1"


def test_waits_and_attempts_that_gave_up_are_counted(past: Past) -> None:
    with Process("web-2") as other:
        other.acquire("stock:1")
        assert not rlock("stock:1").acquire(wait_time=0.2)
        assert not rlock("stock:1").acquire(blocking=False)
        counted = work(past)["stock:…"]
    assert (counted.acquired, counted.gave_up) == (0, 2)
    assert counted.longest_wait is not None
    assert (counted.longest_wait.name, counted.longest_wait.seconds >= 0.2) == ("stock:1", True)


def test_a_wait_that_got_the_lock_is_counted(past: Past) -> None:
    with Process("web-2") as other:
        other.acquire("stock:1")
        waiter = threading.Thread(target=take, args=(rlock("stock:1"),), name="buyer")
        waiter.start()
        eventually(_waited_for)
        other.release("stock:1")
        waiter.join()
    counted = work(past)["stock:…"]
    assert counted.acquired == 1
    assert counted.longest_wait is not None
    assert counted.longest_wait.place == "buyer"


def _waited_for() -> list[LockInfo]:
    return [lock for lock in iter_locks() if lock.waiters]


def test_any_number_of_names_makes_a_history_of_bounded_size(past: Past, redis_client: redis.Redis) -> None:
    with working_on(**dict.fromkeys(("route", "user", "task", "task_id"), "x" * 1000)):
        for number in range(MAX_GROUPS + 50):
            take(rlock(f"{number}{'y' * 500}:1"))
            assert not force_release(f"{number}", reason="z" * 1000)
        for number in range(MAX_EVENTS + 20):
            rlock(f"{number}{'y' * 500}").acquire()
            assert force_release(f"{number}{'y' * 500}", reason="z" * 1000, by="w" * 1000)
    found = past.written()
    assert len(found.work) == MAX_GROUPS + 1
    assert sum(each.acquired for each in found.work) == MAX_GROUPS + 50
    assert len(found.events) == MAX_EVENTS
    assert all(len(text) < MAX_HISTORY_JSON for text in redis_client.hvals(keys.history_key(client_id())))


def test_after_an_hour_nothing_is_left_of_it(past: Past) -> None:
    take(rlock("stock:1"))
    assert [each.acquired for each in past.written().work] == [1]
    take(rlock("cart:1"))
    past.recorder.look(monotonic() + 3500)
    assert {group[2] for group in STATISTICS.groups} == {"stock:", "cart:"}
    take(rlock("cart:1"))
    past.recorder.look(monotonic() + 7500)
    assert {group[2] for group in STATISTICS.groups} == {"cart:"}


@pytest.mark.parametrize("age", [4000, -4000], ids=["old", "written while the server's clock was fast"])
def test_only_the_last_hour_of_a_history_counts(past: Past, redis_client: redis.Redis, age: int) -> None:
    take(rlock("stock:1"))
    past.written()
    key = keys.history_key(client_id())
    [entry] = json.loads(str(redis_client.hget(key, "work")))
    entry["slots"] = [[start - age, acquired, gave_up] for start, acquired, gave_up in entry["slots"]]
    entry["longest"][0]["at"] -= age
    redis_client.hset(key, "work", json.dumps([entry]))
    assert not read_history().work


def test_a_lost_lock_is_remembered_after_its_process_was_killed(redis_client: redis.Redis) -> None:
    before = listeners(redis_client)
    with Process("web-1") as web:
        web.acquire("stock:1", {"route": "POST /buy/1/", "user": "7"})
        eventually(lambda: redis_client.keys("rlock_process:*"))
        eventually(lambda: listeners(redis_client) > before)
        assert force_release("stock:1", reason="stuck since noon", by="alice")
        [event] = eventually(_events)
    assert (event.what, event.name, event.host, event.pid) == ("lost", "stock:1", "web-1", web.pid)
    assert (event.doing, event.place) == ("POST /buy/1/", "MainThread")
    assert event.reason == "alice freed it by force: stuck since noon"
    assert _events() == [event]
    assert 80_000 < redis_client.ttl(str(redis_client.keys("rlock_history:*")[0])) <= 86_400


def listeners(client: redis.Redis) -> int:
    """How many processes hear of forced releases."""
    [(_, count)] = client.pubsub_numsub("rlock_wake:forced")
    return int(count)


def _events() -> list[ReportedSpan]:
    return list(read_history().events)


def test_a_forced_release_names_who_did_it_and_why(past: Past) -> None:
    with Process("web-1") as web:
        web.acquire("stock:1")
        assert force_release("stock:1", reason="stuck since noon", by="alice in the admin")
        web.acquire("stock:2")
        assert rlock("stock:2").force_release(reason="a test")
        later, first = [event for event in past.written().events if event.what == "freed"]
    assert (first.name, first.by, first.reason) == ("stock:1", "alice in the admin", "stuck since noon")
    assert (later.name, later.by, later.reason, later.place) == ("stock:2", "", "a test", "MainThread")
    assert client_id() not in json.dumps(past.written().as_dict())


def test_a_process_writes_what_it_has_counted_when_it_ends(redis_client: redis.Redis) -> None:
    with Process("cron-1") as cron:
        cron.acquire("report:nightly")
        eventually(lambda: redis_client.keys("rlock_process:*"))
        cron.release("report:nightly")
        cron.exit()
    [counted] = read_history().work
    assert (counted.label, counted.acquired) == ("report:…", 1)
    assert counted.longest_hold is not None
    assert counted.longest_hold.host == "cron-1"
    assert counted.longest_hold.seconds >= 0.5


def test_counts_are_written_every_five_seconds_and_events_at_once(past: Past, redis_client: redis.Redis) -> None:
    take(rlock("stock:1"))
    with commands(redis_client) as sent:
        past.round(0)
    clock, history = ["TIME", "ZREMRANGEBYSCORE"], ["HSET", "PEXPIRE", "ZREMRANGEBYSCORE", "ZADD"]
    assert [command.split()[0] for command in sent] == [*clock, "UNLINK", *history]
    assert past.round(1) > 3
    take(rlock("stock:2"))
    with commands(redis_client) as sent:
        assert past.round(3) < 3
        past.round(5.5)
    assert [command.split()[0] for command in sent] == ["TIME", *history]
    past.round(30)
    assert past.round(60) == float("inf")
    rlock("stock:1").acquire()
    assert force_release("stock:1")
    assert past.round(61) > 0
    assert _events()


def test_a_server_that_was_down_gets_everything_later(past: Past, own_server: OwnServer) -> None:
    server = own_server()
    take(rlock("stock:1"))
    past.round(0)
    take(rlock("stock:2"))
    server.kill()
    past.round(6)
    assert 5 < past.round(22) <= 10
    server.start()
    past.round(40)
    assert [each.acquired for each in read_history().work] == [2]
    assert all(read_timeline("default", name, None) for name in ("stock:1", "stock:2"))


def test_a_server_that_forgot_it_gets_everything_again(past: Past, redis_client: redis.Redis) -> None:
    take(rlock("stock:1"))
    past.round(0)
    redis_client.flushall()
    take(rlock("stock:2"))
    past.round(6)
    past.round(8)
    assert all(read_timeline("default", name, None) for name in ("stock:1", "stock:2"))


def test_a_forked_child_begins_anew(past: Past) -> None:
    take(rlock("stock:1"))

    def look() -> None:
        assert not STATISTICS.groups
        assert not STATISTICS.recent

    in_child(look)
    assert STATISTICS.groups


HOSTILE: list[str | bytes] = [
    "not JSON",
    "null",
    "[" * 100_000,
    "x" * 1_000_000,
    b"\xff\xfe\x00",
    '{"work": {"a": 1}}',
    '[1, null, [], {}, {"what": "lost"}]',
    '[{"using": [], "template": {}, "prefix": 7, "slots": [[1], "x", [NaN, 1e400, {}], [%d, -1, 5]]}]',
    '[{"using": "default", "slots": [[%d, 3, "4"]], "longest": [[], {"what": "wait", "seconds": 1e300, "at": %d}]}]',
    '[{"slots": [[%d, 1e308, 1e308], [%d, 1e308, 1], [%d, -5, 1]], "longest": {"seconds": -1, "at": NaN}}]',
    '[{"what": "lost", "at": %d, "seconds": 0, "using": 5, "name": "\\ud800\\u0000", "owner": {"a": 1}, "by": []}]',
    '[{"what": "freed", "at": %d, "seconds": 0, "context": {"route": {"a": 1}, "task": [7]}, "place": 1e400}]',
    '[{"what": "lost", "at": ' + "9" * 5000 + "}]",
]


@pytest.mark.parametrize("planted", HOSTILE, ids=lambda text: repr(text[:60]))
def test_planted_histories_break_nothing(past: Past, redis_client: redis.Redis, planted: str | bytes) -> None:
    take(rlock("stock:1"))
    past.written()
    now = redis_client.time()[0]
    text: Any = planted.replace("%d", str(now)) if isinstance(planted, str) else planted
    about: Any = {"host": "<script>alert(1)</script>" * 100, "pid": "1e400", "role": "\u202e"}
    redis_client.hset("rlock_history:x", mapping={"work": text, "events": text, **about})
    redis_client.set("rlock_history:y", "a string, as an earlier version writes it")
    redis_client.execute_command("ZADD", "rlock_histories", now, "x", now, "y", now, b"\xff", now, "gone")
    found = read_history()
    assert {"stock:…"} <= {each.label for each in found.work}
    assert all(0 <= each.acquired < 2**60 for each in found.work)
    json.dumps(found.as_dict(), allow_nan=False).encode()


@pytest.mark.parametrize("planted", ["a string", {"a": "hash"}], ids=str)
def test_a_planted_list_of_histories_breaks_nothing(redis_client: redis.Redis, planted: Any) -> None:
    if isinstance(planted, str):
        redis_client.set("rlock_histories", planted)
    else:
        redis_client.hset("rlock_histories", mapping=planted)
    assert not read_history().work


def test_every_node_gets_it_and_a_majority_is_enough_to_read_it(
    past: Past, own_server: OwnServer, settings: Settings
) -> None:
    servers = [own_server(f"node{number}") for number in range(3)]
    settings.RLOCK = {"quorum": {"NODES": [f"node{number}" for number in range(3)], "QUARANTINE": 0}}
    take(rlock("stock:1", using="quorum"))
    servers[0].kill()
    [counted] = [work for work in past.written().work if work.using == "quorum"]
    assert (counted.label, counted.acquired) == ("stock:…", 1)
    assert [hold.verb for hold in read_timeline("quorum", "stock:1", None).holds] == ["held"]
    for server in servers[1:]:
        with server.client() as client:
            assert client.exists(keys.history_key(client_id()))
    with servers[2].client() as client:  # as if it had been down since
        client.hset(keys.history_key(client_id()), "work", "[]")
        client.zincrby("rlock_histories", -60, client_id())
    assert [work.using for work in read_history().work] == ["quorum"]
