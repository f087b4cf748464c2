"""The checker of fates finds what must not be, and knows what Kombu loses."""

import json

import pytest

from tests.campaign import fates, trail
from tests.campaign.fates import Fate, judge
from tests.campaign.plan import MARKER, TASKS
from tests.campaign.trail import DROPPED, NOTED, SENT

NO_TRAILS: dict[str, trail.Trail] = {}


def texts(judgement):
    return [violation.what for violation in judgement.violations]


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE: LockLostError", "REVOKED"])
def test_a_task_that_ended(state):
    judgement = judge({}, {"1": "a task"}, {"1": state}, NO_TRAILS)
    assert not judgement.violations
    assert judgement.ends == {state: 1}


@pytest.mark.parametrize("state", ["PENDING", "RETRY", "STARTED"])
@pytest.mark.parametrize("way", [[], [(SENT, "a"), (NOTED, "a"), (DROPPED, "a")]], ids=["no message", "acknowledged"])
def test_a_lost_task(state, way):
    judgement = judge({}, {"1": "a task"}, {"1": state}, {"1": way})
    assert f"ended as {state}" in texts(judgement)[0]
    assert not judgement.known


@pytest.mark.parametrize("way", [[(SENT, "a")], [(SENT, "a"), (NOTED, "a"), (SENT, "b"), (DROPPED, "a")]])
def test_messages_that_kombu_lost_are_recognised(way):
    judgement = judge({}, {"1": "a task"}, {"1": "RETRY"}, {"1": way})
    assert not judgement.violations
    assert judgement.known.total() == 1


def test_an_outcome_that_could_not_be_stored_is_known():
    fate = Fate(began=[1.0], unstored=[2.0])
    judgement = judge(
        {"1": fate}, {"1": "a task"}, {"1": "PENDING"}, {"1": [(SENT, "a"), (NOTED, "a"), (DROPPED, "a")]}
    )
    assert not judgement.violations
    assert judgement.known.total() == 1


def test_a_run_after_the_success():
    fate = Fate(began=[1.0, 3.0], succeeded=[2.0])
    assert "run again after its success" in texts(judge({"1": fate}, {}, {}, NO_TRAILS))[0]


def test_two_runs_that_succeed():
    fate = Fate(began=[1.0, 1.5], succeeded=[2.0, 2.5])
    assert "run again after its success" in texts(judge({"1": fate}, {}, {}, NO_TRAILS))[0]


@pytest.mark.parametrize("began", [[1.0, 1.5], [1.0, 2.0 + MARKER]], ids=["before it", "after its marker's life"])
def test_a_run_at_another_time(began):
    assert not judge({"1": Fate(began=began, succeeded=[2.0])}, {}, {}, NO_TRAILS).violations


def test_a_success_is_remembered_from_the_end_of_its_body():
    fate = Fate(began=[1.0, 1.6 + MARKER], succeeded=[2.0], ended=[1.5])
    assert not judge({"1": fate}, {}, {}, NO_TRAILS).violations


def test_a_success_that_the_locks_do_not_know_of():
    fate = Fate(began=[1.0, 3.0], succeeded=[2.0], said=["… which could not be recorded: …"])
    judgement = judge({"1": fate}, {}, {}, NO_TRAILS)
    assert not judgement.violations
    assert judgement.known.total() == 1


def test_what_workers_write(tmp_path):
    lines = [
        {"line": "began", "task": "1", "at": 1.0},
        {"line": "succeeded", "task": "1", "at": 2.0, "ended": 1.5, "ran": True},
        {"line": "succeeded", "task": "2", "at": 2.0, "ended": 2.0, "ran": False},
        {"line": "said", "text": "Task skips[1] has done its work, which could not be recorded: …", "at": 2.0},
    ]
    (tmp_path / TASKS).mkdir()
    (tmp_path / TASKS / "p1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = fates.read(tmp_path)
    assert (found["1"].began, found["1"].succeeded, len(found["1"].said)) == ([1.0], [2.0], 1)
    assert not found["2"].succeeded, "it was skipped"
