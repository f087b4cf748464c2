"""``rlock_list`` and ``rlock_release``, in this process and as an operator starts them."""

import csv
import html
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError

from django_rlock.inspection import force_release, iter_locks
from tests.admin.pages import detail, text
from tests.conftest import OwnServer
from tests.inspection.crowd import plant_locks
from tests.inspection.processes import Process, until
from tests.inspection.reporting import held
from tests.inspection.test_inspection import JAVA, fall_silent

ERROR, USAGE, NOTHING_MATCHED = 1, 2, 3


def run(*args: str) -> str:
    out = io.StringIO()
    call_command(*args, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(*args: str) -> list[dict[str, Any]]:
    return list(json.loads(run(*args, "--format", "json")))


def fails(*args: str) -> tuple[int, str, str]:
    """Exit status, message and what was printed before."""
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(*args, stdout=out, stderr=io.StringIO())
    return caught.value.returncode, str(caught.value), out.getvalue()


def shell(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a program of its own."""
    command = [sys.executable, "-m", "django", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, env=env)


# --- rlock_list ------------------------------------------------------------------------------------------------------


def test_list_as_a_table(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 2, 2)
    head, *lines = run("rlock_list").splitlines()
    assert head.split("  ")[0] == "LOCK"
    [line] = [line for line in lines if line.startswith("stock:1 ")]
    for expected in ("default", "fair", "web-1", "1001", "MainThread", "POST /buy/1/", "held"):
        assert expected in line
    assert line.index("web-1") == head.index("HOST")


def test_list_as_json(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 1)
    [lock] = run_json("rlock_list", "stock:1")
    [holder] = lock["holders"]
    assert (lock["name"], lock["state"], lock["using"]) == ("stock:1", "held", "default")
    assert (holder["host"], holder["pid"], holder["context"]["route"]) == ("web-0", 1000, "POST /buy/1/")
    assert holder["owner"] == redis_client.hkeys("rlock:stock:1")[0]
    assert 1 <= holder["held_for"] < 20


def test_list_as_csv(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    redis_client.hset("rlock:=HYPERLINK(1)", JAVA, 1)
    rows = {row["lock"]: row for row in csv.DictReader(io.StringIO(run("rlock_list", "--scan", "--format", "csv")))}
    assert float(rows["stock:0"]["time_left"]) > 20
    assert rows["stock:0"]["host"] == "web-0"
    assert rows["'=HYPERLINK(1)"]["held_for"] == ""


def test_list_narrows(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 20, 2)
    redis_client.persist("rlock:stock:3")
    assert len(run_json("rlock_list", "stock:1?")) == 10
    assert len(run_json("rlock_list", "--host", "web-1")) == 10
    assert [lock["name"] for lock in run_json("rlock_list", "--state", "no-expiry")] == ["stock:3"]
    assert len(run_json("rlock_list", "--using", "default")) == 20


def test_list_finds_locks_without_a_report_when_told_to(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:java:1", JAVA, 1)
    assert fails("rlock_list")[0] == NOTHING_MATCHED
    assert [lock["name"] for lock in run_json("rlock_list", "--scan")] == ["java:1"]


def test_no_match_has_a_status_of_its_own_and_json_stays_json() -> None:
    status, message, printed = fails("rlock_list", "nothing:*", "--format", "json")
    assert (status, message, json.loads(printed)) == (NOTHING_MATCHED, "No lock matches.", [])


@pytest.mark.parametrize("command", [["rlock_list"], ["rlock_release", "--dead", "--no-input"]])
def test_a_server_that_is_down_is_an_error(own_server: OwnServer, command: list[str]) -> None:
    own_server().kill()
    status, message, _ = fails(*command)
    assert status == ERROR
    assert "Redis did not answer" in message


def test_a_terminal_gets_no_control_characters(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:a\x1b[2J\r\x00\u202eb", JAVA, 1)
    printed = run("rlock_list", "--scan")
    assert "a\\x1b[2J\\r\\x00\\u202eb" in printed
    assert all(char.isprintable() or char == "\n" for char in printed)


def test_data_goes_to_stdout_and_notes_to_stderr(redis_client: redis.Redis) -> None:
    nothing = shell("rlock_list", "--format", "json")
    assert (nothing.returncode, json.loads(nothing.stdout)) == (NOTHING_MATCHED, [])
    assert "No lock matches." in nothing.stderr
    plant_locks(redis_client, 1, 1)
    listed = shell("rlock_list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert shell("rlock_list", "--format", "xml").returncode == USAGE


# --- rlock_release ---------------------------------------------------------------------------------------------------


def test_release_by_name(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 1)
    [outcome] = run_json("rlock_release", "stock:1", "--no-input", "--reason", "stuck")
    assert (outcome["name"], outcome["result"]) == ("stock:1", "freed")
    assert sorted(redis_client.keys("rlock:*")) == ["rlock:stock:0", "rlock:stock:2"]


def test_release_finds_a_name_that_no_report_has(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:java:1", JAVA, 1)
    assert "freed" in run("rlock_release", "java:1", "--no-input")
    assert not redis_client.exists("rlock:java:1")


def test_release_dead_frees_only_what_a_killed_process_held(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:java:1", JAVA, 1)
    with Process("web-1") as alive, Process("web-2") as dead:
        alive.acquire("stock:1")
        dead.acquire("stock:2")
        dead.acquire("stock:3")
        until(lambda: {"stock:1", "stock:2", "stock:3"} == {lock.name for lock in iter_locks()})
        dead.kill()
        assert fails("rlock_release", "--dead", "--no-input")[0] == NOTHING_MATCHED  # it may be paused only
        fall_silent(redis_client, dead)
        outcomes = run_json("rlock_release", "--dead", "--no-input")
        assert {outcome["name"]: outcome["result"] for outcome in outcomes} == {"stock:2": "freed", "stock:3": "freed"}
        assert sorted(redis_client.keys("rlock:*")) == ["rlock:java:1", "rlock:stock:1"]
        assert fails("rlock_release", "stock:1", "java:1", "--dead", "--no-input")[0] == NOTHING_MATCHED


def test_release_narrows(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 12, 2)
    [owner] = map(str, redis_client.hkeys("rlock:stock:1"))
    assert [o["name"] for o in run_json("rlock_release", "--owner", owner, "--dry-run")] == ["stock:1"]
    assert fails("rlock_release", "stock:2", "--owner", owner, "--no-input")[0] == NOTHING_MATCHED
    assert len(run_json("rlock_release", "--host", "web-1", "--dry-run")) == 6
    assert {o["result"] for o in run_json("rlock_release", "--pattern", "stock:1?", "--dry-run")} == {"would free"}
    assert len(run_json("rlock_release", "--pattern", "stock:1?", "stock:1", "stock:10", "--dry-run")) == 3
    assert len(redis_client.keys("rlock:*")) == 12


def test_release_compares_the_owner_that_it_found(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_rlock.management.commands import rlock_release

    plant_locks(redis_client, 1, 1)
    real = force_release

    def hand_over_first(*args: str) -> bool:
        redis_client.delete("rlock:stock:0")
        redis_client.hset("rlock:stock:0", JAVA, 1)
        return real(*args)

    monkeypatch.setattr(rlock_release, "force_release", hand_over_first)
    [outcome] = run_json("rlock_release", "stock:0", "--no-input")
    assert outcome["result"] == "gone"
    assert held("stock:0").holder.owner == JAVA


def test_release_without_a_choice_is_refused(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    assert fails("rlock_release", "--no-input")[:2] == (USAGE, "Say which: NAME, --pattern, --owner, --host or --dead.")
    assert redis_client.exists("rlock:stock:0")


def test_release_refuses_rather_than_hangs_without_a_terminal(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    refused = shell("rlock_release", "stock:0")
    assert refused.returncode == USAGE
    assert "--no-input" in refused.stderr
    assert redis_client.exists("rlock:stock:0")
    assert shell("rlock_release", "stock:0", "--no-input").returncode == 0
    assert shell("rlock_release", "stock:0", "--no-input").returncode == NOTHING_MATCHED


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, 0), ("n\n", ERROR, 1), ("\n", ERROR, 1)])
def test_release_asks_on_a_terminal(redis_client: redis.Redis, answer: str, status: int, left: int) -> None:
    plant_locks(redis_client, 1, 1)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "django", "rlock_release", "stock:0"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.write(ours, answer.encode())
        out, notes = process.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == status
    assert "stock:0  held by web-0 pid 1000, POST /buy/0/, for " in notes
    assert "(alive)" in notes
    assert "[y/N]" in notes
    assert ("freed" in out) == (left == 0)
    assert redis_client.exists("rlock:stock:0") == left


def test_a_broken_project_can_still_free_its_locks(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.admin.broken_settings"}
    assert shell("check", env=environ).returncode == 1
    assert shell("rlock_release", "stock:0", "--no-input", env=environ).returncode == 0
    assert not redis_client.exists("rlock:stock:0")


def test_the_command_of_the_detail_page_works(operator, redis_client: redis.Redis) -> None:
    redis_client.hset('rlock:-it\'s "quoted"', JAVA, 1)
    page = text(operator, detail('-it\'s "quoted"'))
    [command] = re.findall(r"<code>python manage.py (.*?)</code>", page)
    words = shlex.split(html.unescape(command))
    run(words[0], "--no-input", *words[1:])
    assert not redis_client.exists('rlock:-it\'s "quoted"')
