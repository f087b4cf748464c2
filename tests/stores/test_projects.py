"""Whole projects with each place for locks: what ``check``, ``migrate`` and the test runner say of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import PATIENCE
from tests.forms import long

pytest.importorskip("lupa", reason="lupa, which fakeredis needs, has no wheels for this Python")
OWN, OVERRIDDEN = "tests.stores.bare", "tests.stores.bare.overridden"


def manage(*args: str, folder: Path, locks: str = "") -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.stores.bare.settings",
        "BARE_LOCKS": locks,
        "BARE_FOLDER": str(folder / "locks"),
    }
    if args[0] == "migrate":
        env["BARE_DATABASE"] = str(folder / "db.sqlite3")
    command = [sys.executable, "-m", "django", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env)


@pytest.mark.parametrize("command", ["check", "migrate"])
@pytest.mark.parametrize("locks", ["", *long("dummy", "memory", "embedded", "redis")])
def test_commands(command: str, locks: str, tmp_path: Path) -> None:
    ended = manage(command, folder=tmp_path, locks=locks)
    assert ended.returncode == 0, ended.stderr
    assert ("django_rlock.W010" in ended.stderr) == (locks in {"", "dummy"})


RUNS = [
    ("", OWN, ["--parallel", "2"]),
    ("redis", OVERRIDDEN, ["--parallel", "2"]),
    *long(
        *[(locks, OWN, args) for locks in ("", "dummy", "memory") for args in ([], ["--parallel", "3"], ["--shuffle"])],
        *[(locks, OVERRIDDEN, []) for locks in ("", "dummy", "memory", "embedded", "redis")],
        ("embedded", OVERRIDDEN, ["--parallel", "2"]),
        ("embedded", OWN, []),
    ),
]
NUMBERS = {OWN: 9, OVERRIDDEN: 7}


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_runs_of_tests(run: tuple[str, str, list[str]], tmp_path: Path) -> None:
    locks, label, args = run
    ended = manage("test", label, *args, folder=tmp_path, locks=locks)
    assert ended.returncode == 0, ended.stderr
    assert f"Ran {NUMBERS[label]} tests" in ended.stderr
    assert "was forked" not in ended.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("locks", "told"), [("", "E004"), ("memory", "E003"), ("embedded", "W009")])
def test_deploying_them(locks: str, told: str, tmp_path: Path) -> None:
    ended = manage("check", "--deploy", folder=tmp_path, locks=locks)
    assert (ended.returncode == 1) == told.startswith("E")
    assert f"django_rlock.{told}" in ended.stderr
