"""One run at a time, on real workers: what becomes of the duplicates."""

import pytest
from celery import chain, chord, group

from django_rlock import FairLock, LockTimeoutError, RLock
from tests.celery_app import app, records, tasks
from tests.celery_app.records import overlaps, starts, until
from tests.eventually import eventually

pytestmark = pytest.mark.usefixtures("worker", "locks_of_workers")

DUPLICATES = 20
CONTENDED = 8
"""How often a task finds its lock taken: for longer than a process stalls between its own retry and its release."""


@pytest.mark.parametrize("task", [tasks.waits, tasks.retries], ids=lambda task: task.name.rpartition(".")[2])
def test_duplicates_run_once_at_a_time(task, log):
    results = [task.delay(log) for _ in range(DUPLICATES)]
    assert [result.get(timeout=records.WAIT) for result in results] == [f"done {log}"] * DUPLICATES
    runs = starts(log, DUPLICATES)
    assert not overlaps(runs)
    assert {run["id"] for run in runs} == {result.id for result in results}
    assert len({run["pid"] for run in runs}) > 1, "one process alone proves nothing"


def test_duplicates_are_skipped(log):
    first = tasks.skips.delay(log, gated=True)
    (run,) = starts(log, 1)
    others = [tasks.skips.delay(log) for _ in range(DUPLICATES - 1)]
    assert [other.get(timeout=records.WAIT) for other in others] == [None] * (DUPLICATES - 1)
    assert {other.state for other in others} == {"SUCCESS"}
    records.record(f"{log}:go", "go")
    assert first.get(timeout=records.WAIT) == f"done {log}"
    assert run["id"] == first.id
    assert not records.count(f"{log}:starts")


def test_duplicates_in_threads_run_once_at_a_time(start_worker, log):
    with start_worker("threads", "--pool", "threads", "-c", "4") as threads:
        results = [tasks.waits.apply_async([log], queue=threads.queue) for _ in range(DUPLICATES)]
        names = [tasks.names_its_lock.apply_async([f"{log}-{n}"], queue=threads.queue) for n in range(2)]
        runs = starts(log, DUPLICATES)
        assert not overlaps(runs)
        assert len({run["pid"] for run in runs}) == 1
        assert [result.get(timeout=records.WAIT) for result in results] == [f"done {log}"] * DUPLICATES
        for n in range(2):  # both run at once, on one task object
            starts(f"{log}-{n}", 1)
        for n in range(2):
            records.record(f"{log}-{n}:go", "go")
        assert [name.get(timeout=records.WAIT) for name in names] == [f"work:{log}-0", f"work:{log}-1"]


def test_a_skipped_member_may_end_its_chain(log):
    with FairLock(f"work:{log}"):
        skipped = chain(tasks.stops_its_chain.s(log), tasks.skips.si(f"{log}-next")).apply_async()
        assert app.AsyncResult(skipped.parent.id).get(timeout=records.WAIT) is None  # type: ignore[union-attr]
    result = chain(tasks.stops_its_chain.s(log), tasks.skips.si(f"{log}-next")).apply_async()
    assert result.get(timeout=records.WAIT) == f"done {log}-next"
    assert len(starts(f"{log}-next", 1)) == 1
    assert not records.count(f"{log}-next:starts")


ENDED = [
    pytest.param(lambda stop, text, _: chain(stop, text, text), None, id="chain"),
    pytest.param(lambda stop, text, _: chain(stop, group(text, text)), [None, None], id="group"),
    pytest.param(lambda stop, text, last: chain(stop, group(text, text), last, text), None, id="chord"),
    pytest.param(
        lambda stop, text, last: chord([chain(stop, text), text.clone(["a"])], last), [None, "got a"], id="header"
    ),
    pytest.param(
        lambda stop, text, last: chord([chain(stop, group(text, text)), text.clone(["a"])], last),
        [[None, None], "got a"],
        id="group in a header",
    ),
    pytest.param(
        lambda stop, text, last: chain(group(chain(stop, text), text.clone(["a"])), last, text),
        "got [None, 'got a']",
        id="on",
    ),
]


@pytest.mark.parametrize(("make", "outcome"), ENDED)
def test_a_chain_that_a_skipped_member_ended_has_a_result(log, make, outcome):
    with FairLock(f"work:{log}"):
        result = make(tasks.stops_its_chain.si(log), tasks.text_of.s(), tasks.all_of.s()).apply_async()
        assert result.get(timeout=records.WAIT) == outcome


def test_a_chord_with_skipped_members_ends(log):
    header = [tasks.skips.s(log), tasks.text_of.s(1), tasks.skips.s(f"{log}-free")]
    with FairLock(f"work:{log}"):
        result = chord(header)(tasks.text_of.s())
        assert result.get(timeout=records.WAIT) == f"got [None, 'got 1', 'done {log}-free']"


def test_a_chord_with_members_that_retry_ends(log):
    header = [tasks.retries.s(log) for _ in range(4)]
    result = chord(header)(tasks.text_of.s())
    assert result.get(timeout=records.WAIT) == f"got {[f'done {log}'] * 4}"
    assert not overlaps(starts(log, 4))


def test_a_function_decides(log):
    with FairLock(f"work:{log}"):
        result = tasks.asks.delay(log).get(timeout=records.WAIT)
    assert result == f"tests.celery_app.tasks.asks left work:{log} alone"


def test_retries_have_a_limit_of_their_own(log):
    with FairLock(f"work:{log}"):
        result = tasks.retries_twice.delay(log)
        with pytest.raises(LockTimeoutError):
            result.get(timeout=records.WAIT)
    assert records.count(f"retried:{result.id}") == 2


def test_contention_leaves_the_retries_of_the_task_alone(log):
    with FairLock(f"work:{log}"):
        result = tasks.fails_once.delay(log)  # max_retries=1
        for _ in range(CONTENDED):
            assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
    retries, lock_retries = result.get(timeout=records.WAIT)
    assert retries == 1
    # Its own retry may come while it still holds the lock, but is counted from 0.
    assert lock_retries < CONTENDED
    assert not overlaps(starts(log, 2))


def test_a_call_from_within_a_body_waits(log):
    """It has no message to send again; the one at hand is that of the body."""
    with FairLock(f"work:{log}:0") as lock:
        result = tasks.nests.delay(log, 1)
        until(lambda: (info := lock.info()) is not None and info.waiting == 1)
    assert result.get(timeout=records.WAIT) == [1, 0]
    assert not records.count(f"retried:{result.id}")


def test_the_owner_carries_the_task_id(celery_servers, log):
    result = tasks.skips.delay(log, gated=True)
    starts(log, 1)
    with celery_servers[0].client() as client:
        (owner,) = client.hkeys(f"rlock:work:{log}")
    records.record(f"{log}:go", "go")
    assert owner.split(":", 3)[3] == result.id
    result.get(timeout=records.WAIT)


@pytest.mark.parametrize(
    "headers",
    [
        {"rlock_retries": "x", "rlock_token": "token"},
        {"rlock_parents": 7, "rlock_token": "token"},
        {"rlock_waited": [], "rlock_token": "token"},
        {"rlock_place": "token"},
        {"rlock_place": ["token", "default", "mark", ""]},
        {"rlock_place": ["token", "default", "mark", "\ud800"]},
        {"rlock_entered": 1},
        {"rlock_place_object": "x", "rlock_succeeded": "x"},
    ],
    ids=" ".join,
)
def test_headers_that_no_sender_makes_are_ignored(worker, log, headers):
    result = app.send_task(tasks.names_its_lock.name, [log, False], queue=worker.queue, headers=headers)
    assert result.get(timeout=records.WAIT) == f"work:{log}"
    until(lambda: f"{max(headers, key='token'.__ne__)}" in worker.last_lines(50))


def test_a_task_without_a_lock_of_its_own_leaves_nothing_to_the_next_one(busy, log):
    """A child of the worker runs one task after another."""
    first, second = (tasks.leaves_a_lock.apply_async((log,), queue=busy.queue) for _ in range(2))
    child, count = first.get(timeout=records.WAIT)
    assert second.get(timeout=records.WAIT) == [child, count] == [child, 1]
    eventually(lambda: not RLock(f"left:{log}").locked())  # the result is stored before the task's end
