"""The systems beside ours: private servers, contenders that exclude each other, and what is skipped."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.contended import Round
from benchmarks.systems import deaths, handover, pairs, servers
from benchmarks.systems.contenders import BASE, SYSTEMS, Terms, ZooKeeperLock
from benchmarks.timing import Cost
from tests.programs import Program, ProgramUnavailableError

FOREIGN = [name for name, system in SYSTEMS.items() if system.server != "Valkey"]
"""Those that need no settings of Django's."""


@pytest.fixture(scope="module")
def found():
    with servers.running() as running:
        yield running


@pytest.fixture
def two_of(found):
    """Two contenders of a system on one lock, as two processes have them; the second one waits for a second."""
    made: list[Any] = []

    def make(name):
        server = found.servers.get(SYSTEMS[name].server)
        if server is None:
            pytest.skip(found.note)
        made.extend(SYSTEMS[name].make(Terms(server.url, f"test:{name}", wait)) for wait in (60.0, 1.0))
        return made

    yield make
    for each in made:
        disconnect(each)


def disconnect(contender):
    if isinstance(contender, ZooKeeperLock):
        contender._client.stop()
        contender._client.close()
    else:
        contender._connection.close()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_contender_excludes_another_one(name, two_of):
    first, second = two_of(name)
    assert first.take()
    assert not second.take()
    first.give()
    assert second.take()
    second.give()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_waiter_enters_when_the_holder_leaves(name, two_of):
    second, first = two_of(name)
    assert first.take()
    entered = []
    waiter = threading.Thread(target=lambda: entered.append(second.take()))
    waiter.start()
    first.give()
    waiter.join()
    assert entered == [True]
    second.give()


def test_a_missing_program_is_skipped_with_its_reason(monkeypatch):
    def missing():
        raise ProgramUnavailableError("There is no program mariadbd.")

    monkeypatch.setattr(servers, "PROGRAMS", {"Valkey": servers.PROGRAMS["Valkey"], "MariaDB": missing})
    with servers.running() as running:
        assert running.servers.keys() == {"Valkey"}
        assert running.note == "MariaDB was skipped: There is no program mariadbd."


def test_a_program_that_is_not_on_the_path_is_named(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ProgramUnavailableError, match="mariadbd"):
        servers.MariaDB()


class Sleeper(Program):
    """Its folder says who runs it."""

    def command(self):
        return ["/bin/sh", "-c", "id -u > owner; exec sleep 1000"]

    def is_ready(self):
        owner = self.folder / "owner"
        return owner.exists() and owner.read_text().endswith("\n")


def test_a_program_runs_as_an_ordinary_user_and_leaves_nothing():
    with Sleeper() as program:
        assert int((program.folder / "owner").read_text()) not in {0} | ({os.getuid()} if os.getuid() == 0 else set())
        pid, folder = program._pid, program.folder
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_a_killed_program_can_be_stopped_as_well():
    with Sleeper() as program:
        program.kill()
        folder = program.folder
    assert not folder.exists()


def test_pairs_are_compared_with_redis_py_in_the_same_round():
    costs = {BASE: [Cost(1.0, 2.0), Cost(10.0, 20.0)], "other": [Cost(3.0, 4.0), Cost(30.0, 40.0)]}
    assert [(row.what, row.figure) for row in pairs.rows(costs)] == [("other, wall time", 2), ("other, cpu time", 3)]


def test_the_longest_wait_is_counted_in_turns_of_others():
    seen = Round(acquired=100, waits=[0.01, 0.2], unserved=[0.5])
    assert handover.Contest(seen, 2.0).turns_in_longest_wait == 25


def test_a_round_without_turns_is_repeated_and_lasts_longer():
    rounds = [Round(), Round(unserved=[0.5]), Round(acquired=8, waits=[0.5])]
    crew = SimpleNamespace(run=lambda *_: [rounds.pop(0)])
    contest = handover.compete(crew, "slow", 1.0)  # type: ignore[arg-type]  # it runs nothing else
    assert (contest.rate, rounds) == (2, [])


class TestFates:
    """How the end of a wait is written."""

    def test_who_entered_is_told_from_who_did_not(self):
        fates = {"a": deaths.Outcome(0.5, None), "b": deaths.Outcome(35.0, "its time limit")}
        rows = deaths.fate_rows(fates, 35.0)
        assert [(row.what, row.figure) for row in rows] == [
            ("a, until the next one enters", 0.5),
            ("b, nobody entered", 35.0),
        ]

    def test_a_holder_that_is_not_warned(self):
        waiter, release = deaths.Outcome(1.0, "ConnectionError"), deaths.Outcome(0.1, None)
        rows = deaths.server_rows("x", waiter, deaths.Watch(35.0, None, release))
        assert [row.what for row in rows][1] == "x, the holder is not warned"
        rows = deaths.server_rows("x", waiter, deaths.Watch(3.0, 2.0, release))
        assert (rows[1].what, rows[1].figure) == ("x, the holder is warned", 2.0)


class TestAttempt:
    """How a call in a process of the benchmark ends."""

    @pytest.fixture(autouse=True)
    def alarm(self):
        before = signal.signal(signal.SIGALRM, deaths._give_up)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    def test_success_and_errors(self):
        def fail():
            raise OSError

        assert deaths.attempt(lambda: True, 60).error is None
        assert deaths.attempt(lambda: None, 60).error is None
        assert deaths.attempt(lambda: False, 60).error == "its time limit"
        assert deaths.attempt(fail, 60).error == "OSError"
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0

    def test_a_call_that_does_not_end_is_ended(self):
        assert deaths.attempt(threading.Event().wait, 0.05).error == "the benchmark, which ended it"
