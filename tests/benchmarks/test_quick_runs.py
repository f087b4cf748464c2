"""Every benchmark runs and counts what it says it counts. No test here looks at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55)


@pytest.fixture(params=NAMES)
def quick(request, tmp_path):
    """The tables of one benchmark, by title, from a quick run in a process of its own."""
    json_file, markdown_file = tmp_path / "out.json", tmp_path / "out.md"
    done = run(request.param, "--quick", "--json", json_file, "--markdown", markdown_file)
    assert done.returncode == 0, done.stderr
    assert markdown_file.read_text() in done.stdout + "\n"
    return request.param, json.loads(json_file.read_text())["tables"]


def test_quick_run(quick):
    name, tables = quick
    rows = {row["what"]: row for table in tables for row in table["rows"]}
    assert all(row["figure"] >= 0 for row in rows.values())
    CHECKS[name](rows)


def check_uncontended(rows):
    for kind in ("RLock", "FairLock"):
        assert {f"{kind}, cpu time", f"{kind}, wall time"} < rows.keys()
        trips = rows[f"{kind}, round trips per pair"]
        assert trips["figure"] == 2
        assert trips["details"]["other than EVALSHA"] == 0
    assert "raw socket, cpu time" in rows
    assert "rlock(), cpu time" in rows


def check_contended(rows):
    assert {"FairLock, longest wait", "FairLock, throughput", "redis-py, longest wait"} < rows.keys()
    for processes in (2, 3):
        # An uncontended pair runs 8 commands and one that queued 26, and a few come and go with the round.
        assert 8 <= rows[f"FairLock, {processes} processes"]["figure"] <= 32


def check_waiting(rows):
    assert all(row["reached"] for row in rows.values())


def check_holding(rows):
    assert rows["memory of a hold, its lock object and name included"]["reached"]
    assert "a renewal pass" in rows


def check_listing(rows):
    assert rows.keys() == {"iter_locks()"}


def check_multi(rows):
    for kind in ("FairLock", "RLock"):
        ours, singly = (rows[f"{kind}, {name}, wall time"] for name in ("MultiLock", "one after another"))
        assert ours["at_most"] == 5
        assert singly["at_most"] is None


def check_quorum(rows):
    for face in ("sync", "async"):
        assert {f"{name}, {face}" for name in ("RedLock", "RedLock without fencing", "pottery")} < rows.keys()
    for pings in ("a PING", "5 PINGs at once"):
        assert rows[f"what the proxy adds to {pings}"]["figure"] >= 2


def check_readers(rows):
    assert "one more acquires while they hold it" in rows
    # Had a reader waited, it would have subscribed and asked again.
    assert rows["commands per turn of a reader"]["figure"] == 2


CHECKS = {
    "uncontended": check_uncontended,
    "contended": check_contended,
    "waiting": check_waiting,
    "holding": check_holding,
    "listing": check_listing,
    "multi": check_multi,
    "quorum": check_quorum,
    "readers": check_readers,
}


def test_unknown_name_is_refused():
    done = run("uncontented")
    assert done.returncode == 2
    assert "uncontended" in done.stderr
