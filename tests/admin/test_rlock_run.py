"""``rlock_run``: any program under a lock, as cron and deploys start it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from django_rlock import rlock
from tests.conftest import OwnServer
from tests.console.reporting import held
from tests.console.test_commands import fails, shell
from tests.eventually import PATIENCE, eventually
from tests.forms import long

USAGE, UNAVAILABLE, LOST, TAKEN, NOT_FOUND = 2, 69, 70, 75, 127

Start = Callable[..., "subprocess.Popen[str]"]

READY = "print('ready', flush=True)"
# Not in one sleep: a signal that comes just before it would be handled at its end.
WAIT = f"import time; {READY}; [time.sleep(0.01) for _ in range(int({PATIENCE} / 0.01))]"
ENDS_WELL = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); {WAIT}"
DEFIANT = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"


def python(source: str) -> list[str]:
    return ["--", sys.executable, "-c", source]


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return shell("rlock_run", *args)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command and waits until its program says that it is ready."""
    with ExitStack() as stack:

        def start(*args: str, settings: str = "tests.settings", ready: bool = True) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "rlock_run", *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"DJANGO_SETTINGS_MODULE": settings},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            if ready:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            return process

        yield start


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, notes = process.communicate(timeout=PATIENCE)
    return process.returncode, notes


def test_the_program_runs_under_the_lock_which_is_free_afterwards(start: Start) -> None:
    process = start("job", *python(f"{READY}; input()"))
    assert eventually(lambda: held("job").holder.doing) == "command rlock_run"
    assert ended(process)[0] == 1  # EOFError: it reads what we are given
    assert not rlock("job").locked()


@pytest.mark.parametrize(
    ("source", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)]
)
def test_the_exit_status_is_the_programs(source: str, status: int) -> None:
    assert run("job", *python(source)).returncode == status


def test_all_that_follows_the_dashes_is_the_programs() -> None:
    shown = run("job", *python("import sys; print(sys.argv[1:])"), "--wait", "-x", "--", "--settings=none", "y")
    assert shown.stdout == "['--wait', '-x', '--', '--settings=none', 'y']\n"


def test_a_taken_lock_is_skipped_without_a_word() -> None:
    with rlock("job", owner="another"):
        skipped = run("job", *python("print('ran')"))
        told = run("job", "-v", "2", *python("print('ran')"))
    assert (skipped.returncode, skipped.stdout, skipped.stderr) == (0, "", "")  # cron would mail it, of each host
    assert (told.returncode, told.stdout) == (0, "")
    assert "Lock 'job' was not free" in told.stderr


def test_a_taken_lock_fails_where_told_to() -> None:
    with rlock("job", owner="another"):
        failed = run("job", "--on-locked", "fail", *python("print('ran')"))
    assert (failed.returncode, failed.stdout) == (TAKEN, "")
    assert "Lock 'job' was not free" in failed.stderr
    assert "held by owner another" in failed.stderr
    assert "--wait" in failed.stderr


def test_it_waits_for_the_lock(start: Start) -> None:
    lock = rlock("job", owner="another")
    lock.acquire()
    process = start("job", "--wait", "forever", *python(READY), ready=False)
    eventually(lambda: lock.info() and held("job").waiting)
    lock.release()
    assert ended(process)[0] == 0


def test_at_least_keeps_the_lock_from_hosts_that_come_late() -> None:
    assert run("job", "--at-least", "300", *python("raise SystemExit(3)")).returncode == 3
    left = rlock("job").remaining_lease()
    assert left is not None
    assert 200 < left <= 300
    assert not rlock("job").acquire(blocking=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, *long(signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)])
def test_signals_are_passed_on(start: Start, number: signal.Signals) -> None:
    source = f"import signal, sys; signal.signal({number}, lambda *_: sys.exit(5)); {WAIT}"
    process = start("job", *python(source))
    process.send_signal(number)
    assert ended(process) == (5, "")
    assert not rlock("job").locked()


STRUCK_LATE = f"""
import ctypes, operator, os, signal, sys
from functools import partial
from django_rlock.management.commands.rlock_run import Program

calls = []

def late(wait):
    def waits(*args):
        calls.append(wait)
        # All in C, so that Python does not look for signals in between.
        strike = partial(ctypes.CDLL(None).kill, os.getpid(), signal.SIGTERM)
        return list(map(operator.call, (strike, partial(wait, *args))))[1]
    return waits

program = Program([sys.executable, "-c", "import time; time.sleep({PATIENCE})"], 1)
start = program._start

def start_and_strike():
    process = start()
    os.waitpid, os.read = late(os.waitpid), late(os.read)
    return process

program._start = start_and_strike
with program.gets_signals():
    status = program.run()
assert calls
sys.exit(status)
"""


def test_a_signal_that_comes_just_before_it_waits_is_passed_on() -> None:
    struck = subprocess.run([sys.executable, "-c", STRUCK_LATE], timeout=PATIENCE / 2, check=False)
    assert struck.returncode == 128 + signal.SIGTERM


def test_signals_that_the_command_ignores_are_not_passed_on(start: Start) -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup does, and a shell behind "&"
    try:
        process = start("job", *python(f"{READY}; input()"))
    finally:
        signal.signal(signal.SIGINT, former)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 1  # EOFError, not 128 + SIGINT


def test_signals_reach_what_the_program_started(start: Start) -> None:
    process = start("job", "--", "sh", "-c", f'"{sys.executable}" -c "{ENDS_WELL}"; exit 0')
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM  # communicate() ends when nothing has its output open


def test_a_signal_ends_the_wait_for_the_lock(start: Start) -> None:
    with rlock("job", owner="another"):
        process = start("job", "--wait", "forever", *python(READY), ready=False)
        eventually(lambda: held("job").waiting)
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 128 + signal.SIGTERM
    assert not rlock("job").locked()


@pytest.mark.parametrize("source", [WAIT, *long(ENDS_WELL, DEFIANT)])
def test_the_program_is_ended_when_the_lock_is_lost(start: Start, redis_client: redis.Redis, source: str) -> None:
    process = start("job", "--kill-after", "0.1", *python(source), settings="tests.admin.short_leases")
    redis_client.delete("rlock:job")
    status, notes = ended(process)
    assert status == LOST
    assert "Lock 'job' was lost" in notes


def test_the_program_is_ended_when_the_command_is_killed(start: Start) -> None:
    process = start("job", *python(ENDS_WELL))
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL  # at the end of the program's output, which it shares


def test_a_server_that_is_down_runs_nothing(own_server: OwnServer) -> None:
    own_server().kill()
    status, message, _ = fails("rlock_run", "job", *python("raise SystemExit(9)"))
    assert status == UNAVAILABLE
    assert "Lock 'job' is unavailable" in message


@pytest.mark.parametrize(
    ("args", "status", "expected"),
    [
        (["job"], 1, "say what to run after two dashes, as in: rlock_run NAME -- COMMAND"),
        (["job", "true"], 1, "say what to run after two dashes"),
        (["job", "--"], 1, "say what to run after two dashes"),
        (["--", "true"], 1, "required: NAME"),
        (["job", "more", "--", "true"], 1, "unrecognized arguments: more"),
        (["job", "--", "no-such-program"], NOT_FOUND, "Program 'no-such-program' is not on the PATH"),
        (["job", "--wait", "soon", "--", "true"], 1, "--wait: must be a number of seconds, 0 or more, or 'forever'"),
        (["job", "--wait", "-1", "--", "true"], 1, "not '-1'"),
        (["job", "--wait", "nan", "--", "true"], 1, "not 'nan'"),
        (
            ["job", "--at-least", "inf", "--", "true"],
            1,
            "--at-least: must be a number of seconds, 0 or more, not 'inf'",
        ),
        (["job", "--kill-after", "x", "--", "true"], 1, "--kill-after: must be a number of seconds"),
        (["job", "--on-locked", "retry", "--", "true"], 1, "'retry' (choose from"),
        (["", "--", "true"], USAGE, "lock's name must not be empty"),
        (["job", "--using", "nowhere", "--", "true"], USAGE, "RLOCK has no alias 'nowhere'"),
    ],
)
def test_bad_input_is_refused(args: list[str], status: int, expected: str) -> None:
    found, message, _ = fails("rlock_run", *args)
    assert (found, expected in message or message) == (status, True)


def test_the_help_says_how_to_write_it() -> None:
    shown = run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "NAME [options] -- COMMAND [ARGUMENT ...]" in shown.stdout


def test_nodes_keep_no_lock_for_longer_than_their_longest_lease(settings: Any) -> None:
    url = settings.CACHES["default"]["LOCATION"]
    settings.RLOCK = {"default": {"NODES": [url, "redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0"]}}
    status, message, _ = fails("rlock_run", "job", "--at-least", "60", "--", "true")
    assert (status, "QUARANTINE" in message) == (USAGE, True)
