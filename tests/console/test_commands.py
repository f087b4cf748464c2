"""``rlock_list`` and ``rlock_release``, in this process and as an operator starts them."""

import csv
import html
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError

from django_rlock import Semaphore
from django_rlock.inspection import force_release, iter_locks
from django_rlock.management.commands import rlock_release
from django_rlock.management.output import INTERRUPTED, READER_GONE, text_width
from tests.conftest import OwnServer
from tests.console.crowd import beating, plant_locks, plant_waiters
from tests.console.pages import detail, text
from tests.console.processes import Process
from tests.console.reporting import held
from tests.console.test_inspection import JAVA, fall_silent
from tests.eventually import PATIENCE, eventually

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
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, env=env)


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
    status, message, _ = fails("rlock_list")
    assert status == NOTHING_MATCHED
    assert "--scan also finds" in message
    status, message, printed = fails("rlock_list", "nothing:*", "--scan", "--format", "json")
    assert (status, message, json.loads(printed)) == (NOTHING_MATCHED, "No lock matches.", [])
    assert [lock["name"] for lock in run_json("rlock_list", "--scan")] == ["java:1"]


@pytest.mark.parametrize("command", [["rlock_list"], ["rlock_release", "--dead", "--no-input"]])
def test_a_server_that_is_down_is_an_error(own_server: OwnServer, command: list[str]) -> None:
    own_server().kill()
    status, message, _ = fails(*command)
    assert status == ERROR
    assert message.startswith("The Redis server of alias 'default' did not respond: ")


@pytest.fixture
def half_down(own_server: OwnServer) -> redis.Redis:
    """Three aliases, of which the second one's server is down; the client is the third one's."""
    own_server()
    own_server("reports").kill()
    return own_server("stock").client()


def test_locks_of_other_aliases_are_listed_where_one_is_down(half_down: redis.Redis) -> None:
    plant_locks(half_down, 2, 1)
    status, message, printed = fails("rlock_list", "--format", "json")
    assert (status, [lock["using"] for lock in json.loads(printed)]) == (ERROR, ["stock", "stock"])
    assert message.startswith("The Redis server of alias 'reports' did not respond: ")
    assert len(run_json("rlock_list", "--using", "stock")) == 2


def test_a_terminal_gets_no_control_characters(redis_client: redis.Redis) -> None:
    redis_client.hset(f"rlock:{'x' * 50}a\x1b[2J\r\x00\u202eb", JAVA, 1)
    printed = run("rlock_list", "--scan")
    assert f"{'x' * 50}a\\x1b[2J\\r\\x00\\u202eb" in printed  # not shortened, because the output is not a terminal
    assert all(char.isprintable() or char == "\n" for char in printed)


def test_data_goes_to_stdout_and_notes_to_stderr(redis_client: redis.Redis) -> None:
    nothing = shell("rlock_list", "--format", "json")
    assert (nothing.returncode, json.loads(nothing.stdout)) == (NOTHING_MATCHED, [])
    assert "No lock matches." in nothing.stderr
    plant_locks(redis_client, 1, 1)
    listed = shell("rlock_list")
    assert (listed.returncode, listed.stderr) == (0, "")


def test_list_filters_by_the_age_of_holds(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    redis_client.hset("rlock:java:1", JAVA, 1)  # for how long, nothing tells
    assert [lock["name"] for lock in run_json("rlock_list", "--scan", "--older-than", "0")] == ["stock:0"]
    assert fails("rlock_list", "--scan", "--older-than", "3600")[0] == NOTHING_MATCHED
    assert (
        "--older-than: must be a number of seconds, 0 or more, not 'old'"
        in fails("rlock_list", "--older-than", "old")[1]
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def list_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Returns the lines of the list on a terminal of a width."""

    def listed(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", f"{columns}")
        call_command("rlock_list", "--scan", stdout=(out := Terminal()))
        return out.getvalue().splitlines()

    return listed


@pytest.mark.parametrize("columns", [200, 100, 80, 40])
def test_a_table_fits_the_terminal(redis_client: redis.Redis, list_on_a_terminal: Any, columns: int) -> None:
    plant_locks(redis_client, 2, 2)
    redis_client.hset(f"rlock:{'库存' * 60}", JAVA, 1)
    head, *lines = list_on_a_terminal(columns)
    assert len(lines) == 3
    assert all(text_width(line) <= columns for line in (head, *lines))
    assert {"LOCK", "HOST"} <= set(head.split())
    assert "…" in "".join(lines)


def similar_locks(redis_client: redis.Redis) -> list[str]:
    """Names that differ at their ends, beside one that is very long."""
    plant_locks(redis_client, 2, 2)
    names = [f"invoice:2026-11:customers-of-the-north:tenant-{number}" for number in range(3)]
    for name in (*names, "x" * 900):
        redis_client.hset(f"rlock:{name}", JAVA, 1)
    return names


@pytest.mark.parametrize("columns", [100, 80])
def test_a_narrow_terminal_tells_similar_locks_apart(
    redis_client: redis.Redis, list_on_a_terminal: Any, columns: int
) -> None:
    similar_locks(redis_client)
    head, *lines = list_on_a_terminal(columns)
    assert all(text_width(line) <= columns for line in (head, *lines))
    for number in range(3):
        assert sum(f"…north:tenant-{number} " in line or f"tenant-{number} " in line for line in lines) == 1
    for heading in {"PID", "HOLDS", "WAITING", "STATE"} & set(head.split()):
        assert not [line for line in lines if "…" in line[head.index(heading) :].split("  ")[0]]


def test_a_long_name_widens_a_table_in_a_pipe_to_a_limit_only(redis_client: redis.Redis) -> None:
    names = similar_locks(redis_client)
    head, *lines = run("rlock_list", "--scan").splitlines()
    assert max(map(len, (head, *lines))) <= 200
    assert len(head.split("  ")) > 8
    assert all(name in "\n".join(lines) for name in names)


def test_list_is_watched_until_it_is_interrupted(redis_client: redis.Redis) -> None:
    command = [sys.executable, "-m", "django", "rlock_list", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("No lock matches." in line for line in lines)
        plant_locks(redis_client, 1, 1, longer=PATIENCE)
        assert any(line.startswith("stock:0 ") for line in lines)
        redis_client.flushall()
        assert any("No lock matches." in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=PATIENCE)
    assert (process.returncode, notes) == (0, "")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--watch", "0"], "--watch: must be a number of seconds from 0.1, not '0'"),
        (["--watch", "--format", "json"], "--watch shows a table"),
        (["--queued", "--watch", "--format", "json"], "--watch shows a table"),
        (["--queued", "--host", "web-0"], "--queued lists messages, which have no holder: leave out --host."),
        (["--queued", "--older-than", "5"], "--queued lists messages, which have no holder: leave out --older-than."),
        (["--watch", "--using", "nowhere"], "RLOCK has no alias 'nowhere'"),
    ],
)
def test_watch_is_refused_with_other_formats(args: list[str], expected: str) -> None:
    assert expected in fails("rlock_list", *args)[1]


# --- in a shell ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", ["rlock_list --watch 0.1", "rlock_list --format json"])
def test_a_reader_that_has_gone_ends_a_command_quietly(redis_client: redis.Redis, args: str) -> None:
    plant_locks(redis_client, 1, 1, longer=PATIENCE)
    command = [sys.executable, "-m", "django", *args.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        notes = process.stderr.read()
    assert "Traceback" not in notes
    assert "BrokenPipe" not in notes
    assert process.returncode == READER_GONE


def test_a_closed_output_is_no_error(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1, longer=PATIENCE)
    command = f"{shlex.quote(sys.executable)} -m django rlock_list >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_may_lack_characters(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:蛋糕", JAVA, 1)
    done = shell("rlock_list", "--scan", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u86cb\u7cd5" in done.stdout


def test_watching_leaves_the_screen_as_it_was(redis_client: redis.Redis) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "django", "rlock_list", "--watch", "0.1"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while b"No lock matches." not in printed:
            printed += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # at the end
            while chunk := os.read(ours, 65536):
                printed += chunk
    os.close(ours)
    assert process.returncode == 0
    assert printed.startswith(b"\x1b[?1049h")
    assert printed.rstrip().endswith(b"\x1b[?1049l")
    assert b"\x1b[3J" not in printed


def test_an_interrupted_question_ends_a_command_quietly(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1, longer=PATIENCE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "django", "rlock_release", "stock:0"]
    with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        notes = b""
        while b"[y/N]" not in notes:
            notes += os.read(process.stderr.fileno(), 65536)
        assert notes.endswith(b"Free this lock? [y/N] ")
        process.send_signal(signal.SIGINT)
        notes += process.stderr.read()
    os.close(ours)
    os.close(theirs)
    assert b"Traceback" not in notes
    assert process.returncode == INTERRUPTED
    assert redis_client.exists("rlock:stock:0")


# --- rlock_info ------------------------------------------------------------------------------------------------------


def test_info_tells_all_about_one_lock(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 1)
    shown = run("rlock_info", "stock:1")
    [owner] = map(str, redis_client.hkeys("rlock:stock:1"))
    for expected in ("stock:1", "default", "fair", "rlock:stock:1", "web-0", "1000", "POST /buy/1/", "held", owner):
        assert expected in shown
    [info] = run_json("rlock_info", "stock:1")
    assert info["holders"][0]["owner"] == owner


def test_info_names_who_waits(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    plant_waiters(redis_client, "stock:0", [1])
    head, row = run("rlock_info", "stock:0").splitlines()[-2:]
    assert (head.split()[0], row.split()[0]) == ("WAITER", "shop-0")


def test_info_of_a_free_lock_has_a_status_of_its_own() -> None:
    assert fails("rlock_info", "stock:1")[:2] == (NOTHING_MATCHED, "Lock 'stock:1' is free.")
    assert json.loads(fails("rlock_info", "stock:1", "--format", "json")[2]) == []


def test_info_of_a_semaphore_does_not_call_it_free() -> None:
    Semaphore("stock:1").try_set_permits(3)
    status, text, _ = fails("rlock_info", "stock:1")
    assert status == NOTHING_MATCHED
    assert "not a lock: its key holds the number 3, as a semaphore's or a latch's does" in text


def test_info_of_a_wrong_name_or_alias_is_wrong_usage(own_server: OwnServer) -> None:
    assert fails("rlock_info", "")[0] == USAGE
    assert fails("rlock_info", "x", "--using", "nowhere")[0] == USAGE
    own_server().kill()
    assert fails("rlock_info", "x")[0] == ERROR


# --- rlock_release ---------------------------------------------------------------------------------------------------


def test_release_by_name(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 3, 1)
    [outcome] = run_json("rlock_release", "stock:1", "--no-input", "--reason", "stuck")
    assert (outcome["name"], outcome["result"]) == ("stock:1", "freed")
    assert sorted(redis_client.keys("rlock:*")) == ["rlock:stock:0", "rlock:stock:2"]


def test_release_dead_frees_only_what_a_killed_process_held(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:java:1", JAVA, 1)
    with Process("web-1") as alive, Process("web-2") as dead:
        alive.acquire("stock:1")
        dead.acquire("stock:2")
        dead.acquire("stock:3")
        eventually(lambda: {"stock:1", "stock:2", "stock:3"} == {lock.name for lock in iter_locks()})
        dead.kill()
        assert run("rlock_release", "--dead", "--no-input") == ""  # it may be paused only
        assert fails("rlock_release", "--dead", "--no-input", "--fail-empty")[0] == NOTHING_MATCHED
        fall_silent(redis_client, dead)
        outcomes = run_json("rlock_release", "--dead", "--no-input")
        assert {outcome["name"]: outcome["result"] for outcome in outcomes} == {"stock:2": "freed", "stock:3": "freed"}
        assert sorted(redis_client.keys("rlock:*")) == ["rlock:java:1", "rlock:stock:1"]
        assert run("rlock_release", "stock:1", "java:1", "--dead", "--no-input") == ""


@pytest.mark.parametrize("names", [[], ["stock:0"]])
def test_release_dead_frees_what_the_dead_reported_while_the_servers_clock_was_fast(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """A heartbeat that lies in the future is neither a sign of life until then, nor one of death."""
    monkeypatch.setattr("django_rlock.console.rows.SILENT_AFTER", 2.0)
    monkeypatch.setattr(rlock_release, "SILENT_AFTER", 2.0)
    plant_locks(redis_client, 1, 1, silent=-3600)
    living = plant_locks(redis_client, 1, 1, prefix="rlock:living:", silent=-3600)
    with beating(redis_client, living):
        outcomes = run_json("rlock_release", *names, "--dead", "--no-input")
    assert [(outcome["name"], outcome["result"]) for outcome in outcomes] == [("stock:0", "freed")]
    assert redis_client.exists("rlock:living:stock:0")


def test_release_dead_looks_at_all_aliases(half_down: redis.Redis) -> None:
    plant_locks(half_down, 2, 1, silent=60)
    status, message, printed = fails("rlock_release", "--dead", "--no-input", "--format", "json")
    assert [outcome["result"] for outcome in json.loads(printed)] == ["freed", "freed"]
    assert status == ERROR
    assert message.startswith("The Redis server of alias 'reports' did not respond: ")
    assert run("rlock_release", "--dead", "--no-input", "--using", "stock") == ""


@pytest.fixture
def two_aliases(own_server: OwnServer) -> tuple[redis.Redis, redis.Redis]:
    """Clients of the servers of the aliases "default" and "stock"."""
    first = own_server()
    return first.client(), own_server("stock").client()


def test_a_lock_is_found_under_every_alias(two_aliases: tuple[redis.Redis, redis.Redis]) -> None:
    plant_locks(two_aliases[1], 1, 1)
    [info] = run_json("rlock_info", "stock:0")
    assert info["using"] == "stock"
    assert re.search(r"^alias +stock$", run("rlock_info", "stock:0"), re.MULTILINE)
    assert fails("rlock_info", "stock:0", "--using", "default")[0] == NOTHING_MATCHED
    assert re.search(r"^stock:0 +stock ", run("rlock_release", "stock:0", "--no-input"), re.MULTILINE)
    assert not two_aliases[1].exists("rlock:stock:0")


def test_a_name_that_is_held_under_several_aliases_is_not_freed(
    two_aliases: tuple[redis.Redis, redis.Redis],
) -> None:
    for client in two_aliases:
        plant_locks(client, 1, 1)
    assert [info["using"] for info in run_json("rlock_info", "stock:0")] == ["default", "stock"]
    status, message, _ = fails("rlock_release", "stock:0", "--no-input")
    assert (status, message) == (
        USAGE,
        "Lock 'stock:0' is held under the aliases default, stock: name one by --using.",
    )
    assert "freed" in run("rlock_release", "stock:0", "--no-input", "--using", "stock")
    assert [client.exists("rlock:stock:0") for client in two_aliases] == [1, 0]


def test_locks_of_other_aliases_are_found_while_a_server_is_down(half_down: redis.Redis) -> None:
    plant_locks(half_down, 1, 1)
    for command in (["rlock_info", "stock:0"], ["rlock_release", "stock:0", "--no-input"]):
        status, message, printed = fails(*command, "--format", "json")
        assert (status, len(json.loads(printed))) == (ERROR, 1)
        assert message.startswith("The Redis server of alias 'reports' did not respond: ")
    assert not half_down.exists("rlock:stock:0")


@pytest.mark.parametrize("command", [["rlock_info"], ["rlock_release", "--no-input"]])
@pytest.mark.parametrize("name", ["stok:1", "rlock:stock:1", "Stock:1"])
def test_names_that_may_be_meant_are_suggested(redis_client: redis.Redis, command: list[str], name: str) -> None:
    plant_locks(redis_client, 2, 1)
    status, message, _ = fails(*command, name)
    assert status == NOTHING_MATCHED
    assert "Did you mean 'stock:1'" in message
    assert "Did you mean" not in fails(*command, "invoice-2026")[1]


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
    plant_locks(redis_client, 1, 1)
    real = force_release

    def hand_over_first(name: str, owner: str, using: str, reason: str, by: str) -> bool:
        redis_client.delete("rlock:stock:0")
        redis_client.hset("rlock:stock:0", JAVA, 1)
        return real(name, owner, using, reason, by)

    monkeypatch.setattr(rlock_release, "force_release", hand_over_first)
    [outcome] = run_json("rlock_release", "stock:0", "--no-input")
    assert outcome["result"] == "gone"
    assert held("stock:0").holder.owner == JAVA


def test_release_without_a_choice_is_refused(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    message = "Name the locks: NAME, --pattern, --owner, --host, --dead or --queue."
    assert fails("rlock_release", "--no-input")[:2] == (USAGE, message)
    assert redis_client.exists("rlock:stock:0")


@pytest.mark.parametrize("option", [["--host", "web-0"], ["--owner", "x"], ["--dead"]], ids=str)
def test_release_of_a_queue_is_refused_with_conditions_on_holders(option: list[str]) -> None:
    """Queued messages have no holders: all messages of the queue would lose their reservations."""
    status, message, _ = fails("rlock_release", "--queue", "celery", *option, "--no-input")
    assert (status, message) == (USAGE, f"--queue is about messages, which have no holder: leave out {option[0]}.")


def test_release_refuses_rather_than_hangs_without_a_terminal(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1, longer=PATIENCE)
    refused = shell("rlock_release", "stock:0")
    assert refused.returncode == USAGE
    assert "--no-input" in refused.stderr
    assert redis_client.exists("rlock:stock:0")


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, 0), ("\n", ERROR, 1)])
def test_release_asks_on_a_terminal(redis_client: redis.Redis, answer: str, status: int, left: int) -> None:
    processes = plant_locks(redis_client, 1, 1, longer=PATIENCE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "django", "rlock_release", "stock:0"]
    with (
        beating(redis_client, processes),
        subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        os.write(ours, answer.encode())
        out, notes = process.communicate(timeout=PATIENCE)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == status
    assert "stock:0  held by web-0 pid 1000, POST /buy/0/, for " in notes
    assert "(alive)" in notes
    assert "[y/N]" in notes
    assert ("freed" in out) == (left == 0)
    assert redis_client.exists("rlock:stock:0") == left


def test_a_broken_project_can_still_free_its_locks(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1, longer=PATIENCE)
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.console.broken_settings"}
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
