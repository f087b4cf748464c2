"""Holders and waiters, as other processes see them; and freeing a lock by force."""

import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_rlock import LockTimeoutError, LockUnavailableError, RLock, inspection, rlock
from django_rlock._redis import keys
from django_rlock._transport.identity import client_id
from django_rlock.console import reading
from django_rlock.console.history import read_history
from django_rlock.console.listing import Overview
from django_rlock.inspection import LockState, force_release, iter_locks, lock_info
from django_rlock.locks import infos
from django_rlock.signals import lock_force_released
from tests.conftest import OwnServer
from tests.console.crowd import plant_locks, plant_other_keys
from tests.console.processes import Process
from tests.console.reporting import Clock, commands, held, pool_users
from tests.eventually import eventually
from tests.heard import heard

JAVA = "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31"


def listed(**options: Any) -> dict[str, Any]:
    return {lock.name: lock for lock in iter_locks(**options)}


def fall_silent(client: redis.Redis, process: Process) -> None:
    """Let the heartbeats of a process be old, as they are some time after its death, while its leases still run."""
    [report] = [str(key) for key in client.keys("rlock_process:*") if client.hget(key, "pid") == str(process.pid)]
    client.zincrby("rlock_processes", -20, report.removeprefix("rlock_process:"))


def test_holders_of_several_processes_and_their_waiters_in_order(redis_client: redis.Redis) -> None:
    with Process("web-1") as web, Process("web-2") as other, Process("jobs-1", "manage.py import_stock") as command:
        web.acquire("stock:1", {"route": "POST /buy/1/", "user": "7"})
        command.acquire("import")
        command.wait("stock:1")
        eventually(lambda: redis_client.zcard("rlock_queue:{rlock:stock:1}") == 1)
        other.wait("stock:1", {"task": "shop.tasks.count", "task_id": "abc"})
        eventually(lambda: redis_client.zcard("rlock_queue:{rlock:stock:1}") == 2)
        stock = eventually(lambda: (lock := listed().get("stock:1")) and all(w.waited for w in lock.waiters) and lock)
        holder, import_holder = stock.holder, listed()["import"].holder
        assert (holder.host, holder.pid, holder.role, holder.doing) == ("web-1", web.pid, "web", "POST /buy/1/")
        assert (holder.place, holder.count, holder.silent) == ("MainThread", 1, False)
        assert 0.5 < stock.held_for < 20
        assert (stock.state, stock.kind, stock.waiting) == ("held", "fair", 2)
        assert 15 < stock.remaining_lease <= 30
        assert [waiter.host for waiter in stock.waiters] == ["jobs-1", "web-2"]
        assert [waiter.doing for waiter in stock.waiters] == ["command import_stock", "shop.tasks.count abc"]
        assert import_holder.doing == "command import_stock"


def test_a_process_is_silent_once_its_heartbeats_are_old(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    plant_locks(redis_client, 1, 1, prefix="rlock:old:", silent=20)
    locks = listed()
    assert {name: lock.state.value for name, lock in locks.items()} == {"stock:0": "held", "old:stock:0": "silent"}
    assert locks["old:stock:0"].holder.host == "web-0"
    assert locks["old:stock:0"].holder.heard_ago > 15


def test_a_report_shows_no_lock_that_is_gone(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 1)
    redis_client.delete("rlock:stock:1")
    redis_client.delete("rlock:stock:2")
    redis_client.hset("rlock:stock:2", JAVA, "1")
    locks = listed()
    assert sorted(locks) == ["stock:0", "stock:2"]
    assert locks["stock:2"].holder.owner == JAVA
    assert (locks["stock:2"].holder.host, locks["stock:2"].held_for) == (None, None)


def test_a_process_whose_report_has_ended_is_forgotten(redis_client: redis.Redis) -> None:
    redis_client.zadd("rlock_processes", {str(uuid.uuid4()): 1})
    assert listed() == {}
    assert not redis_client.exists("rlock_processes")


def test_info_is_true_at_once_for_the_locks_of_this_process() -> None:
    lock = RLock("stock:1")
    assert lock.info() is None
    with lock, lock:
        info: Any = lock.info()
        assert (info.state, info.kind, info.count) == ("held", "rlock", 2)
        assert info.holder.place == "MainThread"
        assert info.held_for < 60
    assert lock_info("stock:1") is None


def test_a_timeout_names_the_holder(redis_client: redis.Redis) -> None:
    with Process("web-2") as web:
        web.acquire("stock:1", {"route": "POST /buy/42/"})
        eventually(lambda: redis_client.keys("rlock_process:*"))
        with commands(redis_client) as sent, pytest.raises(LockTimeoutError) as caught, rlock("stock:1", wait_time=0):
            pass
    assert f"web-2 pid {web.pid}, POST /buy/42/, for " in str(caught.value)
    assert not [command for command in sent if command.startswith("ZREVRANGE")]  # it reads one report, not all


@pytest.mark.parametrize(
    ("lease", "state"), [(None, LockState.NO_EXPIRY), (30_000, LockState.UNKNOWN)], ids=["endless", "java"]
)
def test_a_scan_finds_what_no_report_names(redis_client: redis.Redis, lease: int | None, state: LockState) -> None:
    redis_client.hset("rlock:java:1", mapping={JAVA: 2, "mode": "write"})
    redis_client.hset("rlock:cart", "apples", 3)
    redis_client.hset("other:1", JAVA, 1)
    redis_client.set("rlock:text", "x")
    if lease:
        redis_client.pexpire("rlock:java:1", lease)
    assert listed() == {}
    [lock] = listed(scan=True).values()
    assert (lock.name, lock.state, lock.count, lock.holder.owner) == ("java:1", state, 2, JAVA)
    assert (lock.remaining_lease is None) == (lease is None)


def test_a_scan_takes_a_prefix_as_it_is_written(redis_client: redis.Redis, settings: Settings) -> None:
    settings.RLOCK = {"default": {"KEY_PREFIX": "a*[b]?"}}
    redis_client.hset("a*[b]?mine", JAVA, 1)
    redis_client.hset("axxbxtheirs", JAVA, 1)
    assert list(listed(scan=True)) == ["mine"]


def test_a_pattern_is_for_names(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 12, 2)
    assert sorted(listed(pattern="stock:1?")) == ["stock:10", "stock:11"]
    assert listed(pattern="rlock:*") == {}


def test_every_alias_is_listed_once(own_server: OwnServer, redis_client: redis.Redis, settings: Settings) -> None:
    with own_server("second").client() as second:
        plant_locks(second, 2, 1)
    plant_locks(redis_client, 3, 1)
    settings.RLOCK = {**settings.RLOCK, "same": {"CACHE": "second", "WATCHDOG_TIMEOUT": 60}}
    assert Counter(lock.using == "default" for lock in iter_locks()) == {True: 3, False: 2}
    assert sorted(listed(using="same")) == ["stock:0", "stock:1"]


def test_five_hundred_locks_take_three_round_trips_whatever_else_the_server_keeps(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_locks(redis_client, 500, 10)
    plant_other_keys(redis_client, 20_000)
    trips = []
    real = reading._pipeline

    def counted(client: redis.Redis, sent: Iterable[tuple[Any, ...]]) -> list[Any]:
        trips.append(len(sent := list(sent)))
        return real(client, sent)

    monkeypatch.setattr(reading, "_pipeline", counted)
    with commands(redis_client) as sent:
        locks = list(iter_locks())
    assert len(locks) == 500
    assert len({lock.holder.host for lock in locks}) == 10
    assert trips == [2, 10, 2500]
    assert len([command for command in sent if not command.startswith(("HELLO", "CLIENT"))]) == 2512


GARBAGE: list[dict[str, object]] = [
    {"rlock:stock:0": "a string"},
    {"rlock:stock:0": [1, 2, 3]},
    {"rlock_processes": "a string"},
    {"rlock_processes": {"a": "hash"}},
    {"rlock_queue:{rlock:stock:0}": "a string"},
    {
        "rlock:stock:0": {
            b"\xff\xfe": b"\x80",
            "mode": "\x00",
            "a" * 1000: "9" * 5000,
            "b": "nan",
            "c": "-1",
            "d": "1e999",
        }
    },
]


@pytest.mark.parametrize("planted", GARBAGE, ids=str)
def test_planted_keys_break_nothing(redis_client: redis.Redis, planted: dict[str, Any]) -> None:
    plant_locks(redis_client, 2, 1)
    for key, value in planted.items():
        redis_client.delete(key)
        if isinstance(value, str):
            redis_client.set(key, value)
        elif isinstance(value, list):
            redis_client.rpush(key, *value)
        else:
            redis_client.hset(key, mapping=value)
    locks = listed(scan=True)
    assert "stock:1" in locks
    json.dumps([lock.as_dict() for lock in locks.values()])
    lock_info("stock:0")


def test_a_user_that_may_only_read_sees_the_locks_beside_the_report_of_an_ended_process(
    own_server: OwnServer, settings: Settings
) -> None:
    server = own_server(port=0)
    with server.client() as client:
        plant_locks(client, 2, 1)
        client.zadd("rlock_processes", {str(uuid.uuid4()): client.time()[0]})
        client.acl_setuser("viewer", enabled=True, passwords="+secret", categories=["+@read", "+@connection"])
        client.acl_setuser("viewer", enabled=True, commands=["+time"], keys=["*"])
    cache = settings.CACHES["default"] | {"LOCATION": f"redis://viewer:secret@127.0.0.1:{server.port}/0"}
    settings.CACHES = {**settings.CACHES, "default": cache}
    assert sorted(listed()) == ["stock:0", "stock:1"]


def test_a_reservation_in_the_set_of_another_lock_breaks_nothing(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 2, 1)
    reservation = keys.reservation_key("rlock:other", "x")
    document = json.dumps({"lock": "other", "task": "shop.tasks.count"})
    redis_client.set(reservation, f"1:task-id\n{redis_client.time()[0]} x {document}", ex=60)
    redis_client.zadd(keys.reservations_key("rlock:stock:1"), {reservation: 1})
    assert [lock.name for lock in Overview({}).locks] == ["stock:1", "stock:0"]
    assert lock_info("stock:1") is not None


FIELDS = [
    "not JSON",
    "[1, 2]",
    "null",
    "[" * 10_000,
    '{"key": 1, "owner": 2}',
    '{"key": "rlock:stock:1"}',
    '{"key": "rlock:stock:1", "owner": "%s", "since": "yesterday", "lease": [], "context": [], "place": {}, "kind": 7}',
    '{"key": "rlock:stock:1", "owner": "%s", "since": NaN, "lease": Infinity, "context": {"route": {"a": 1}}}',
    '{"key": "rlock:stock:1", "owner": "%s", "since": 1e400, "context": {"route": "\\ud800\\u202e\\u0000"}}',
    '{"key": "rlock:stock:1", "owner": "%s", "since": ' + "9" * 5000 + "}",
    '{"key": "rlock:stock:\\ud800", "owner": "\\udfff"}',
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("text", FIELDS, ids=lambda text: repr(text[:60]))
@pytest.mark.parametrize("what", ["hold", "wait"])
def test_planted_reports_break_nothing(redis_client: redis.Redis, what: str, text: str | bytes) -> None:
    plant_locks(redis_client, 2, 1)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    [owner] = map(str, redis_client.hkeys("rlock:stock:1"))
    redis_client.hset(report, f"{what} x", text.replace("%s", owner) if isinstance(text, str) else text)
    redis_client.hset(report, mapping={"host": b"\xff", "pid": "9" * 5000, "role": "x" * 5000, "start": b"\x00"})
    locks = listed()
    assert sorted(locks) == ["stock:0", "stock:1"]
    json.dumps([lock.as_dict() for lock in locks.values()]).encode()
    assert str(locks["stock:1"].holder).encode()


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}], ids=str)
def test_any_way_to_connect_will_do(redis_client: redis.Redis, settings: Settings, options: dict[str, Any]) -> None:
    cache = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": options}}
    # The pools of django-redis are keyed by their address, so this one needs an address of its own.
    cache["LOCATION"] += f"&client_name={uuid.uuid4()}"
    settings.CACHES = {"default": cache}
    plant_locks(redis_client, 2, 1)
    redis_client.hset("rlock:stock:0", b"\xff\xfe", "1")
    redis_client.zadd("rlock_queue:{rlock:stock:0}", {b"\xff": 1, JAVA.encode(): 2})
    locks = listed(scan=True)
    assert [waiter.owner for waiter in locks["stock:0"].waiters] == ["\\xff", JAVA]
    assert locks["stock:1"].held_for >= 1


def test_waiters_of_a_kind_without_a_queue_come_from_reports(redis_client: redis.Redis, clock: Clock) -> None:
    plant_locks(redis_client, 1, 1)
    [report] = map(str, redis_client.keys("rlock_process:*"))
    now = redis_client.time()[0]
    for number in (2, 1):
        entry = {"key": "rlock:stock:0", "owner": f"{JAVA[:-2]}{number}", "since": now - number, "kind": "rlock"}
        redis_client.hset(report, f"wait {number}", json.dumps(entry))
    lock = listed()["stock:0"]
    assert [waiter.owner[-1] for waiter in lock.waiters] == ["2", "1"]
    assert lock.waiting == 2
    redis_client.zincrby("rlock_processes", -60, report.removeprefix("rlock_process:"))
    assert listed()["stock:0"].waiting == 0


def test_a_force_release_compares_the_owner(redis_client: redis.Redis) -> None:
    with Process("web-1") as web:
        web.acquire("stock:1")
        owner = held("stock:1").holder.owner
        assert not force_release("stock:1", JAVA)
        assert lock_info("stock:1")
        with heard(lock_force_released) as told:
            assert force_release("stock:1", owner, reason="stuck")
    assert [(each["owner"], each["reason"]) for each in told] == [(owner, "stuck")]
    assert lock_info("stock:1") is None
    assert not force_release("stock:1")


def test_an_empty_owner_does_not_mean_anybody(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:stock:1", JAVA, 1)
    with pytest.raises(ValueError, match="owner"):
        force_release("stock:1", "")
    assert redis_client.exists("rlock:stock:1")


def test_redis_py_is_not_used_in_the_callers_thread(redis_client: redis.Redis) -> None:
    """An interruption might leave the mutex of a pool locked, which the cache uses, too."""
    plant_locks(redis_client, 1, 1)
    for ask in (listed, lambda: listed(scan=True), lambda: lock_info("stock:0"), read_history, RLock("stock:0").info):
        with pool_users() as users:
            ask()
        assert users
        assert threading.get_ident() not in users


def test_a_server_that_is_down_raises_an_error(own_server: OwnServer) -> None:
    own_server().kill()
    with pytest.raises(LockUnavailableError):
        list(iter_locks())
    with pytest.raises(LockUnavailableError, match=r"rlock:stock:1"):
        lock_info("stock:1")
    assert inspection.describe_holder(rlock("stock:1")) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.04, "0.0 s"),
        (7.12, "7.1 s"),
        (59.9, "59.9 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_can_be_read(seconds: float | None, text: str) -> None:
    assert infos.duration_text(seconds) == text


def test_the_client_id_of_this_process_is_not_asked_for_at_the_server(redis_client: redis.Redis) -> None:
    """Its own report may be old; what it knows of itself is not."""
    with rlock("stock:1"):
        redis_client.zadd("rlock_processes", {client_id(): 1})
        redis_client.hset(keys.report_key(client_id()), "host", "stale")
        assert not held("stock:1").holder.silent
        assert held("stock:1").holder.heard_ago < 60


@pytest.mark.parametrize(("name", "error"), [(5, TypeError), ("", ValueError)])
def test_an_invalid_name_is_refused_as_by_a_lock(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="name must"):
        lock_info(name)
