"""On SQS, which delivers a message again while it runs, and does not say so; the locks stay on Redis."""

import pytest
from celery import Celery

from tests.celery_app import SQS, VISIBILITY, app, records, use_sqs
from tests.celery_app.records import overlaps, starts
from tests.tasks.test_losses import go

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("locks_of_workers")]

DUPLICATES = 6
BRIEF = 4
"""After how many seconds a message is delivered again."""


@pytest.fixture
def worker(start_worker, sqs, log):
    with start_worker(
        f"sqs-{log}", "--pool", "prefork", "-c", "3", **{SQS: str(sqs.port), VISIBILITY: str(BRIEF)}
    ) as started:
        yield started


@pytest.fixture
def send(celery_servers, sqs, worker):
    """Sends a task of the tests' app to the worker's queue."""
    with Celery("publisher", set_as_current=False) as publisher:
        publisher.conf.update(result_backend=app.conf.result_backend)
        use_sqs(publisher, str(sqs.port))
        publisher.conf.broker_transport_options["visibility_timeout"] = BRIEF

        def send(name, *args):
            return publisher.send_task(f"tests.celery_app.tasks.{name}", args, queue=worker.queue)

        yield send


@pytest.mark.parametrize("name", ["waits", "retries"])
def test_duplicates_run_once_at_a_time(send, log, name):
    results = [send(name, log) for _ in range(DUPLICATES)]
    assert [result.get(timeout=records.WAIT) for result in results] == [f"done {log}"] * DUPLICATES
    runs = starts(log, DUPLICATES)
    assert not overlaps(runs)
    assert {run["id"] for run in runs} == {result.id for result in results}


def test_a_message_that_comes_again_during_its_run_waits_for_the_end(send, log):
    result = send("lasts", log, True)
    starts(log, 1)
    records.wait_for(f"deferred:{result.id}")
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert "succeeded" in records.wait_for(f"deduplicated:{result.id}")
    assert not records.count(f"{log}:starts")
