"""Messages that a worker sends again: what they keep, and what happens when they cannot be sent."""

import pytest

from django_rlock import FairLock
from tests.celery_app import WORKERS_CANNOT_ENCODE, app, records, tasks
from tests.celery_app.records import starts
from tests.celery_app.workers import Worker
from tests.tasks.test_losses import deliver_again, go

pytestmark = pytest.mark.usefixtures("locks_of_workers")

OPTIONS = {
    "serializer": "complex",
    "compression": "gzip",
    "argsrepr": "(shown)",
    "kwargsrepr": "{'number': '***'}",
    "priority": 3,
    "expires": 600,
    "stamps": {"monitor": "me"},
}


def send(task, log):
    """Send a task with an argument that is not JSON."""
    signature = task.s(log, number=1j)
    signature.stamp(monitor="me")
    options = {name: value for name, value in OPTIONS.items() if name != "stamps"}
    return signature.apply_async(**options)


def test_a_message_keeps_all_its_options(worker, log):
    first = send(tasks.tells_its_message, f"{log}-2").get(timeout=records.WAIT)
    with FairLock(f"work:{log}"):
        result = send(tasks.tells_its_message, log)
        assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
    again = result.get(timeout=records.WAIT)
    assert again.pop("expires")
    assert first.pop("expires")
    assert again == first
    assert again["argsrepr"] == OPTIONS["argsrepr"]
    assert again["kwargsrepr"] == OPTIONS["kwargsrepr"]
    assert again["priority"] == 3
    assert "me" in again["stamps"]["monitor"]


@pytest.fixture(scope="module")
def mute(celery_servers, tmp_path_factory):
    """A worker that cannot send again what it gets."""
    log, environ = tmp_path_factory.mktemp("mute") / "log", {WORKERS_CANNOT_ENCODE: "1"}
    with Worker("mute", "--pool", "prefork", "-c", "2", log=log, environ=environ) as started:
        yield started


def test_a_copy_that_cannot_be_sent_again_is_no_failure(mute, log):
    result = tasks.takes_a_number.apply_async(
        [log, 1j],
        queue=mute.queue,
        serializer="complex",
    )
    starts(log, 1)
    deliver_again()
    assert records.wait_for(f"ended:{result.id}") == "REJECTED"
    assert app.AsyncResult(result.id).state == "PENDING"
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert not records.count(f"{log}:starts")


def test_a_late_message_that_cannot_be_sent_again_is_delivered_again(mute, log):
    with FairLock(f"work:{log}"):
        result = tasks.takes_a_number.apply_async([log, 1j], queue=mute.queue, serializer="complex")
        assert records.wait_for(f"ended:{result.id}") == "REJECTED"
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"


def test_an_acknowledged_message_that_cannot_be_sent_again_fails_with_both_reasons(mute, log):
    with FairLock(f"work:{log}"):
        result = tasks.tells_its_message.apply_async([log, 1j], queue=mute.queue, serializer="complex")
        result.get(timeout=records.WAIT, propagate=False)
    assert result.state == "FAILURE"
    assert "was not free" in str(result.result)
    assert "This worker cannot encode" in result.traceback
