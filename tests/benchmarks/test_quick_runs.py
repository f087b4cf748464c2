"""Every benchmark runs and counts what it says it counts. No test here looks at a time."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import callgrind
from benchmarks.__main__ import NAMES
from tests.eventually import PATIENCE

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * PATIENCE)


QUICKEST = {"waiting"}


@pytest.fixture(params=[name if name in QUICKEST else pytest.param(name, marks=pytest.mark.thorough) for name in NAMES])
def quick(request, tmp_path):
    """The tables of one benchmark, by title, from a quick run in a process of its own."""
    if request.param == "celery":
        for peer in "celery_once", "celery_singleton":
            pytest.importorskip(peer, reason="is in the dependency group bench")
    json_file, markdown_file = tmp_path / "out.json", tmp_path / "out.md"
    done = run(request.param, "--quick", "--json", json_file, "--markdown", markdown_file)
    assert done.returncode == 0, done.stderr
    assert markdown_file.read_text() in done.stdout + "\n"
    return request.param, json.loads(json_file.read_text())["tables"]


def test_quick_run(quick):
    name, tables = quick
    rows = {row["what"]: row for table in tables for row in table.get("rows", ())}
    differences = {row["what"] for row in rows.values() if re.search("more than|adds", f"{row['what']} {row['unit']}")}
    assert all(row["figure"] >= 0 for row in rows.values() if row["what"] not in differences)
    CHECKS[name](rows)
    if name in CHECKS_OF_GRIDS:
        CHECKS_OF_GRIDS[name](*(table for table in tables if "lines" in table))


def check_uncontended(rows):
    for kind in ("RLock", "FairLock"):
        assert {f"{kind}, cpu time", f"{kind}, wall time"} < rows.keys()
        trips = rows[f"{kind}, round trips per pair"]
        assert trips["figure"] == 2
        assert trips["details"]["other than EVALSHA"] == 0
    assert "raw socket, cpu time" in rows
    assert "rlock(), cpu time" in rows
    assert rows["connections of the process"]["figure"] >= 1
    assert rows["taken, in the worst round"]["reached"]
    assert rows["until the last is taken"]["figure"] > 0


def check_apart(rows):
    for name in "RLock", "FairLock", "portalocker":
        assert {f"{name}, cpu time", f"{name}, wall time"} < rows.keys()
    if shutil.which("mvn"):
        assert rows["FairLock, throughput"]["unit"] == "× Redisson's FairLock"


def check_contended(rows):
    assert {f"{kind}, throughput" for kind in ("FairLock", "RLock")} < rows.keys()
    assert {"FairLock, longest wait", "redis-py, longest wait"} < rows.keys()
    for processes in (2, 3):
        # An uncontended pair runs 9 commands and one that queued 17, and a few come and go with the round.
        assert 8 <= rows[f"FairLock, {processes} processes"]["figure"] <= 32


def check_waiting(rows):
    assert all(row["reached"] for row in rows.values())


def check_holding(rows):
    # A report that is made meanwhile is counted, too.
    assert 300 < rows["memory of a hold, its lock object and name included"]["figure"] < 10_000
    assert rows["holds that were renewed, within a lease"]["reached"]
    assert rows["renewing all of them once, cpu time"]["figure"] > 0


def check_beside(rows):
    calls = "a pair", "a request", "an acquire that waits", "a LockedTask", "an acquire and a forced release"
    slow = {f"a pair's p99 beside {number}" for number in (100, 200)}
    assert rows.keys() == {f"{call}, cpu time" for call in calls} | slow


def check_greenlets(rows):
    assert rows.keys() == {"locks lost within 1.5 s", "until a greenlet runs again, at most"}


def check_listing(rows):
    costs = {"a page", "a process's first page", "a refresh that finds nothing changed", "its JSON"}
    tabs = "10 open tabs, commands to the server"
    assert rows.keys() == {"iter_locks()", *costs, "its JSON, share of the page's", tabs}
    assert rows[tabs]["at_most"] == 100
    assert rows[tabs]["details"]["refreshes"] == 40


def check_multi(rows):
    for kind in ("FairLock", "RLock"):
        ours, singly = (rows[f"{kind}, {name}, wall time"] for name in ("MultiLock", "one after another"))
        assert ours["at_most"] == 5
        assert singly["at_most"] is None


def check_quorum(rows):
    for binding in ("sync", "async"):
        names = "RedLock", "RedLock without fencing", "raw sockets"
        assert {f"{name}, {binding}, {kind} time" for name in names for kind in ("cpu", "wall")} < rows.keys()
    assert {f"what the proxy adds to {pings}" for pings in ("a PING", "5 PINGs at once")} < rows.keys()


def check_readers(rows):
    assert "one more acquires while they hold it" in rows
    # Had a reader waited, it would have subscribed and asked again.
    assert rows["commands per turn of a reader"]["figure"] == 2


def check_server(rows):
    if callgrind.is_installed():
        assert rows["redis-py, a pair"]["figure"] > 10_000
        for kind in "RLock", "FairLock":
            assert rows[f"{kind}, a pair"]["figure"] > 1
            assert rows[f"{kind}, a turn of 2 processes"]["figure"] > rows[f"{kind}, a pair"]["figure"]


def check_django(rows):
    for what in ("a view, through Django's test client", "a function"):
        assert {f"{what}, cpu time", f"{what}, wall time"} < rows.keys()
    for name in ("with rlock().atomic()", "@distributed_lock(atomic=True)"):
        trips = rows[f"{name}, round trips"]
        assert trips["figure"] == 3
        assert trips["details"]["other than EVALSHA"] == 0
    assert rows["more than Django and redis, cpu time"]["figure"] > 0
    assert rows["all of it, cpu time"]["figure"] > 1


def check_celery(rows):
    contenders = "two round trips, raw socket", "LockedTask", "LockedTask, acks_late", "celery-once", "celery-singleton"
    for whose in "the worker", "the worker and the sender":
        assert {f"{name}, cpu time of {whose}" for name in contenders} < rows.keys()
    # What processes report beside, once a second, is counted as well.
    assert 2 <= rows["a run"]["figure"] < 3
    assert 3 <= rows["a run, acks_late, with its marker"]["figure"] < 4
    assert 2 <= rows["a skip"]["figure"] < 3


def check_scale(rows):
    assert rows["taken, within 90 s"]["figure"] == 60
    assert rows["holds that were not renewed"]["reached"]
    assert rows["holds that were lost"]["reached"]
    assert rows["queued, within 60 s"]["reached"]
    assert rows["CPU time until they are queued"]["unit"] == "s"
    assert rows["waiters in the queues"]["reached"]


def check_grids_of_scale(growth, crowd):
    assert [line[0] for line in growth["lines"]] == [5, 60]
    assert [line[:2] for line in crowd["lines"]] == [[1, 5], [2, 10]]
    for grid in (growth, crowd):
        assert {len(line) for line in grid["lines"]} == {len(grid["columns"])}


def check_systems(rows):
    for name in ("FairLock", "RLock"):
        assert {f"{name}, wall time", f"{name}, throughput", f"{name}, longest wait"} < rows.keys()
    for name in ("FairLock", "RLock", "redis-py"):
        # By then the lease has ended, and no benchmark has ended the wait before.
        assert rows[f"{name}, until the next one enters"]["figure"] > 0
        assert "benchmark" not in rows[f"{name}, the waiter's call ends"]["unit"]
        assert "Error" in rows[f"{name}, the holder's release ends"]["unit"]
    assert "redis-py, the holder is not warned" in rows
    assert "FairLock, the holder is warned" in rows


def check_capacity(rows):
    assert rows["a plain SET"]["figure"] == 1
    assert rows["acquire + release"]["details"]["inside scripts, µs"] > 0
    assert rows["a plain SET"]["details"]["inside scripts, µs"] == 0
    assert any("more than measured" in row["unit"] for row in rows.values())


CHECKS = {
    "uncontended": check_uncontended,
    "apart": check_apart,
    "contended": check_contended,
    "waiting": check_waiting,
    "holding": check_holding,
    "beside": check_beside,
    "greenlets": check_greenlets,
    "listing": check_listing,
    "multi": check_multi,
    "quorum": check_quorum,
    "readers": check_readers,
    "server": check_server,
    "django": check_django,
    "celery": check_celery,
    "scale": check_scale,
    "systems": check_systems,
    "capacity": check_capacity,
}
CHECKS_OF_GRIDS = {"scale": check_grids_of_scale}


@pytest.mark.thorough
def test_the_picture_and_an_earlier_run(tmp_path):
    before, picture = tmp_path / "before.json", tmp_path / "growth.svg"
    rows = [{"what": "iter_locks()", "figure": 123, "unit": "ms"}]
    title = "Listing 10 locks of 2 processes beside 1,000 other keys"
    before.write_text(json.dumps({"tables": [{"title": title, "rows": rows}]}))
    done = run("listing", "--quick", "--before", before)
    assert "| iter_locks() | 123 |" in done.stdout
    done = run("listing", "--quick", "--picture", picture)
    assert done.returncode == 2
    assert "what scale measures" in done.stderr


def test_unknown_name_is_refused():
    done = run("uncontented")
    assert done.returncode == 2
    assert "uncontended" in done.stderr
