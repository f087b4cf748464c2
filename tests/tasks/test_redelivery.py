"""Messages that the broker delivers again while their task runs: one run that succeeds, one copy that is to come."""

import os
import signal
import time
from typing import Any

import pytest

from django_rlock import FairLock, LockTimeoutError
from tests.celery_app import VISIBILITY, app, records, tasks
from tests.celery_app.records import starts, until
from tests.celery_app.workers import Worker
from tests.forms import long

pytestmark = pytest.mark.usefixtures("locks_of_workers")

TIMEOUT = 1.0
"""The broker's visibility timeout, in seconds."""
LONG = 4 * TIMEOUT


@pytest.fixture(scope="module", params=[1, *long(3)], ids=["one process", "three processes"])
def _hasty(request, celery_servers, tmp_path_factory):
    log, environ = tmp_path_factory.mktemp("hasty") / "log", {VISIBILITY: str(TIMEOUT)}
    with Worker("hasty", "--pool", "prefork", "-c", str(request.param), log=log, environ=environ) as worker:
        yield worker


@pytest.fixture
def hasty(_hasty):
    """A worker whose broker soon takes messages for lost."""
    yield _hasty
    app.control.purge()


def pending(queue, task_id):
    """The messages of a task in the queue, and those that were delivered and not acknowledged."""
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        with channel.client.pipeline() as both:  # at one moment, as one may be delivered between them
            queued, delivered = both.lrange(queue, 0, -1).hvals("unacked").execute()
    return sum(task_id.encode() in text for text in [*queued, *delivered])


def test_a_task_that_outlasts_the_visibility_timeout_runs_once(hasty, log):
    result = tasks.lasts.apply_async([log, True], queue=hasty.queue)
    starts(log, 1)
    most, ends = 0, time.monotonic() + LONG
    while time.monotonic() < ends:
        most = max(most, pending(hasty.queue, result.id))
        time.sleep(0.05)
    records.record(f"{log}:go", "go")
    assert result.get(timeout=records.WAIT) == f"done {log}"
    until(lambda: pending(hasty.queue, result.id) == 0)
    assert not records.count(f"{log}:starts")
    assert result.state == "SUCCESS"
    assert most <= 3, "what runs, the copy that is to come, and one that takes its place"


def test_the_copy_runs_when_the_first_run_fails(hasty, log):
    result = tasks.fails_at_first.apply_async([log], queue=hasty.queue)
    starts(log, 1)
    time.sleep(2 * TIMEOUT)
    records.record(f"{log}:go", "go")
    starts(log, 1)
    until(lambda: app.AsyncResult(result.id).state == "SUCCESS")  # the first result keeps the failure
    until(lambda: pending(hasty.queue, result.id) == 0)
    assert not records.count(f"{log}:starts")


def test_the_copy_runs_when_the_process_of_the_first_run_dies(hasty, log):
    result = tasks.lasts.apply_async([log, True], queue=hasty.queue)
    (killed,) = starts(log, 1)
    time.sleep(2 * TIMEOUT)
    os.kill(killed["pid"], signal.SIGKILL)
    records.client().srem(f"{log}:inside", f"{killed['pid']}:{killed['id']}")
    (run,) = starts(log, 1)
    records.record(f"{log}:go", "go")
    assert result.get(timeout=records.WAIT) == f"done {log}"
    until(lambda: pending(hasty.queue, result.id) == 0)
    assert run["insiders"] == 1
    assert not records.count(f"{log}:starts")


def test_a_task_that_waits_leaves_its_slot_before_its_message_comes_again(hasty, log):
    with FairLock(f"work:{log}"):
        result = tasks.waits_late.apply_async([log], queue=hasty.queue)
        assert "was not free" in records.wait_for(f"deferred:{result.id}")
        other = tasks.lasts.apply_async([f"{log}-other"], queue=hasty.queue)
        assert other.get(timeout=records.WAIT) == f"done {log}-other"
        assert records.wait_for(f"deferred:{result.id}")
        assert pending(hasty.queue, result.id) <= 2, "what waits, or what it has sent to follow it"
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert len(starts(log, 1)) == 1
    until(lambda: pending(hasty.queue, result.id) == 0)
    assert not records.count(f"{log}:starts")


def test_the_time_that_a_task_waits_is_counted_over_its_slots(hasty, log):
    with FairLock(f"work:{log}"):
        result = tasks.waits_late_and_briefly.apply_async([log], queue=hasty.queue)
        with pytest.raises(LockTimeoutError) as raised:
            result.get(timeout=records.WAIT)
    assert raised.value.waited >= 0.8
    assert records.count(f"deferred:{result.id}")
