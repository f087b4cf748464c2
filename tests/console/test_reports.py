"""The report of a process about its holds and waits, and the times when it sends nothing."""

import itertools
import json
import os
import time
from contextlib import suppress
from typing import Any

import pytest
import redis
from django.test import override_settings
from pytest_django import Settings

from django_rlock import rlock
from django_rlock._core.clock import monotonic
from django_rlock._monitoring import documents, reporter
from django_rlock._monitoring.documents import guess_role
from django_rlock._transport.identity import client_id
from django_rlock.exceptions import LockLostError
from django_rlock.locks.records import Route, Work, context
from tests.beside import beside
from tests.conftest import OwnServer
from tests.console.processes import Process
from tests.console.reporting import Clock, commands, held, report_key, report_of
from tests.eventually import PATIENCE, eventually
from tests.forking import in_child


def entries(client: redis.Redis, what: str = "hold") -> list[dict[str, Any]]:
    return [json.loads(text) for field, text in report_of(client).items() if field.startswith(f"{what} ")]


def take_and_release(name: str) -> None:
    with rlock(name, wait_time=60):
        pass


def test_a_hold_is_reported_after_half_a_second_and_removed_after_its_release(redis_client: redis.Redis) -> None:
    started = monotonic()
    with rlock("stock:1"):
        owner = held("stock:1").holder.owner
        assert not report_of(redis_client) or monotonic() - started >= reporter.MIN_AGE - 0.1
        report = eventually(lambda: report_of(redis_client))
        assert monotonic() - started >= reporter.MIN_AGE - 0.1
        assert int(report["pid"]) == os.getpid()
        [entry] = entries(redis_client)
        assert entry["key"] == "rlock:stock:1"
        assert entry["owner"] == owner
        assert (entry["kind"], entry["count"], entry["lease"], entry["renewed"]) == ("fair", 1, 30.0, True)
    eventually(lambda: not report_of(redis_client))
    assert redis_client.zcard("rlock_processes") == 0


def test_taking_and_releasing_a_lock_sends_nothing_but_its_two_scripts(
    redis_client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MIN_AGE", PATIENCE)  # no stall makes a hold that old
    lock = rlock("stock:1")
    with lock:
        pass
    with commands(redis_client) as sent:
        with lock:
            clock.publish_in(0.4 * PATIENCE)
        clock.publish_in(0.4 * PATIENCE)
    assert [command.split()[0] for command in sent] == ["EVALSHA", "EVALSHA"]


def test_only_what_changed_is_written(redis_client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_CLOCK_PAUSE", PATIENCE)  # instead of seconds, in which a machine may stall
    with rlock("stock:1"):
        clock.publish_in(0.6)
        with rlock("stock:2"):
            with commands(redis_client) as sent:
                clock.publish_in(1.1)
            [hset] = [command for command in sent if command.startswith("HSET")]
            assert "stock:2" in hset
            assert "stock:1" not in hset
        with commands(redis_client) as sent:
            clock.publish_in(1.1)
        assert [command.split()[0] for command in sent if not command.startswith("EVALSHA")] == ["HDEL", "ZADD"]
    assert clock.publish_in(1.1) == float("inf")
    assert not redis_client.keys("rlock_process*")


def test_slow_reply_about_the_servers_clock_changes_nothing(
    redis_client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have read its clock at the begin or at the end of that time."""
    with rlock("stock:1"):
        clock.publish_in(0.6)
        seconds = itertools.count()
        monkeypatch.setattr(reporter, "monotonic", lambda: monotonic() + next(seconds))
        with commands(redis_client) as sent:
            clock.publish_in(documents.HEARTBEAT)
        assert not [command for command in sent if command.startswith("HSET")]


def test_nothing_is_written_more_than_once_a_second(
    redis_client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "_WRITE_PAUSE", PATIENCE)  # instead of a second, in which a machine may stall
    with rlock("stock:1"):
        clock.publish_in(0.6)
        with rlock("stock:2"), commands(redis_client) as sent:
            assert 0 < clock.publish_in(0.2 * PATIENCE) <= 0.8 * PATIENCE
        assert not [command for command in sent if not command.startswith("EVALSHA")]


def test_a_process_that_only_waits_sends_a_handful_of_commands_in_ten_seconds(
    redis_client: redis.Redis, clock: Clock
) -> None:
    with Process() as other, commands(redis_client) as sent:
        started = monotonic()
        other.acquire("stock:1")
        with beside(take_and_release, "stock:1"):
            eventually(lambda: redis_client.zcard("rlock_queue:{rlock:stock:1}"))
            for _ in range(100):
                clock.publish_in(0.1)
            assert [entry["key"] for entry in entries(redis_client, "wait")] == ["rlock:stock:1"]
            other.release("stock:1")
        in_all = 10 + monotonic() - started
    ours = [command for command in sent if client_id() in command and "EVALSHA" not in command]
    assert 3 <= len([command for command in ours if "HGETALL" not in command]) <= 7 * in_all / 10


def test_a_report_outlives_the_leases_in_it(redis_client: redis.Redis, clock: Clock) -> None:
    with rlock("stock:1"):
        clock.publish_in(0.6)
        assert 30_000 < redis_client.pttl(report_key()) <= 60_000
        with rlock("stock:2", lease_time=300):
            clock.publish_in(1.1)
            assert redis_client.pttl(report_key()) > 300_000


def test_a_server_that_forgot_is_told_everything_again(redis_client: redis.Redis, clock: Clock) -> None:
    with rlock("stock:1"):
        clock.publish_in(0.6)
        redis_client.delete("rlock_processes", report_key())
        assert clock.publish_in(5.1) <= 1.0
        clock.publish_in(1.1)
        assert [entry["key"] for entry in entries(redis_client)] == ["rlock:stock:1"]


def test_a_report_that_expired_while_the_process_was_suspended_is_written_whole(
    redis_client: redis.Redis, clock: Clock
) -> None:
    with rlock("stock:1", lease_time=25):
        clock.publish_in(0.6)
        redis_client.delete(report_key())  # as its expiry does, while other processes remember this process
        with rlock("stock:2", lease_time=25):
            clock.publish_in(61.0)
            assert report_of(redis_client).get("pid") == str(os.getpid())
            assert len(entries(redis_client)) == 2


def test_a_server_that_does_not_answer_delays_the_report_and_nothing_else(own_server: OwnServer, clock: Clock) -> None:
    server = own_server()
    lock = rlock("stock:1")
    lock.acquire()
    server.kill()
    assert clock.publish_in(0.6) > 5
    server.start()
    with server.client() as client:
        clock.publish_in(5.0)
        assert not report_of(client)
        clock.publish_in(6.0)
        assert entries(client)
        with suppress(LockLostError):  # the server came back empty
            lock.release()


def test_times_are_the_servers_clock(redis_client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with rlock("stock:1"):
        clock.publish_in(0.6)
        [entry] = entries(redis_client)
    assert abs(redis_client.time()[0] - entry["since"]) < 60


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_living_process_is_not_silent_though_the_servers_clock_was_set(
    redis_client: redis.Redis, clock: Clock, step: int
) -> None:
    with rlock("stock:1"):
        clock.publish_in(0.6)
        for publisher in reporter._reporter.value.publishers.values():
            publisher.clock -= step
        clock.publish_in(documents.HEARTBEAT)
        heartbeat = redis_client.zscore("rlock_processes", client_id())
    assert heartbeat is not None
    assert abs(redis_client.time()[0] + clock.ahead - heartbeat) < 60


def test_a_context_is_cut_to_what_is_allowed(redis_client: redis.Redis, clock: Clock) -> None:
    token = context.set(Work({"route": "GET /" + "x" * 1000, "password": "secret", "user": "7"}))
    try:
        with rlock("stock:1"):
            clock.publish_in(0.6)
            [entry] = entries(redis_client)
            with override_settings(RLOCK={"default": {"RECORD_CONTEXT": False}}):
                clock.publish_in(1.1)
                [silent] = entries(redis_client)
    finally:
        context.reset(token)
    assert entry["context"] == {"route": "GET /" + "x" * 251, "user": "7"}
    assert silent["context"] is None


@pytest.mark.parametrize(("record_path", "shown"), [(False, "GET /reset/<token>/"), (True, "GET /reset/c7k2/")])
def test_a_path_is_written_if_the_project_asks_for_it(
    redis_client: redis.Redis, clock: Clock, settings: Settings, record_path: bool, shown: str
) -> None:
    settings.RLOCK = {"default": {"RECORD_PATH": record_path}}
    route = Route("GET /reset/<token>/")
    route.path = "GET /reset/c7k2/"
    token = context.set(Work({"route": route}))
    try:
        with rlock("stock:1"):
            clock.publish_in(0.6)
            [entry] = entries(redis_client)
            info = rlock("stock:1").info()
    finally:
        context.reset(token)
    assert entry["context"] == {"route": shown}
    assert info is not None
    assert info.holder is not None
    assert info.holder.context == {"route": shown}


def test_a_forked_child_leaves_its_parents_report_alone(redis_client: redis.Redis, clock: Clock) -> None:
    def exit_and_publish() -> None:
        reporter._reporter.value.finish(5)
        reporter._reporter.value.round(monotonic() + 10)

    with rlock("stock:1"):
        clock.publish_in(0.6)
        in_child(exit_and_publish)
        assert entries(redis_client)


def test_a_clean_exit_takes_the_report_back_unless_something_is_held(redis_client: redis.Redis) -> None:
    with Process() as renewed, Process() as leased:
        renewed.acquire("stock:1")
        leased.acquire("stock:2", lease_time=60)
        eventually(lambda: len(redis_client.keys("rlock_process:*")) == 2)
        renewed.exit()
        leased.exit()
    [report] = map(str, redis_client.keys("rlock_process:*"))
    assert redis_client.zrange("rlock_processes", 0, -1) == [report.removeprefix("rlock_process:")]
    assert redis_client.hget(report, "pid") == str(leased.pid)


@pytest.mark.parametrize(
    ("argv", "role"),
    [
        (["/usr/bin/gunicorn", "shop.wsgi"], "web"),
        (["manage.py", "runserver"], "web"),
        (["/app/manage.py", "rebuild_index", "--all"], "command rebuild_index"),
        (["manage.py", "shell_plus"], "shell"),
        (["/usr/lib/python3/site-packages/celery/__main__.py", "-A", "shop", "worker"], "celery"),
        (["/usr/bin/celery", "worker"], "celery"),
        (["uwsgi"], "web"),
        (["-c"], "python"),
        ([], "python"),
    ],
)
def test_the_role_is_guessed_from_the_command_line(argv: list[str], role: str) -> None:
    assert guess_role(argv) == role
