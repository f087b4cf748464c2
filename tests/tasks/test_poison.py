"""Poison messages, whose tasks kill their processes: they are rejected for good after so many deaths."""

import pytest
from kombu import Queue

from django_rlock import FairLock
from django_rlock._tasks import holders
from django_rlock._tasks.deaths import DEATHS
from tests.celery_app import app, records, tasks
from tests.tasks.delivering import dies, runs, sent
from tests.tasks.test_scopes import waiting

pytestmark = pytest.mark.usefixtures("locks_of_workers")

LIMIT = 2


@pytest.fixture
def queue(log):
    return f"queue-{log}"


@pytest.fixture
def declared(queue):
    """Declares the queue with arguments, in this app."""

    def declare(**arguments):
        app.amqp.queues.add(Queue(queue, routing_key=queue, queue_arguments=arguments))

    yield declare
    app.amqp.queues.pop(queue, None)


@pytest.fixture
def elsewhere(monkeypatch):
    """The processes of the tasks run on other machines, so nobody knows whether they live."""
    machines = iter(f"machine{number}" for number in range(100))
    monkeypatch.setattr(holders, "_machine", lambda: "")

    def move():
        machine = next(machines)
        monkeypatch.setattr(holders, "_machine", lambda: machine)

    return move


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("arguments", [{"x-delivery-limit": LIMIT}, {"x-queue-type": "quorum"}], ids=str)
def test_copies_continue_the_count_of_the_broker(log, queue, declared, arguments, monkeypatch):
    """A quorum queue: it counts each message from the start, and a copy is a new message."""
    monkeypatch.setattr("django_rlock._tasks.deaths._OF_QUORUM_QUEUES", LIMIT)
    declared(**arguments)
    tasks.lasts.apply_async([log], queue=queue)
    message = sent(queue)
    for deaths in range(1, LIMIT + 2):
        dies(message, "in its body")
        assert runs(message, redelivered=True, **{"x-delivery-count": 1}) == "RETRY", "its lock seems to be held"
        message = sent(queue)
        assert message.headers[DEATHS] == deaths
        tasks.lasts.release_lock(log)
    assert runs(message) == "REJECTED"
    assert (records.count(f"{log}:starts"), waiting(queue)) == (0, 0)


@pytest.mark.parametrize("declares", [True, False], ids=["queue", "task"])
def test_a_message_counts_where_the_broker_does_not(log, queue, declared, declares):
    """The process that gets the message again knows that the first has died, and frees its lock."""
    task = tasks.lasts if declares else tasks.dies_twice_at_most
    if declares:
        declared(**{"x-delivery-limit": LIMIT})
    task.apply_async([log], queue=queue)
    message = sent(queue)
    for deaths in range(1, LIMIT + 1):
        dies(message, "in its body")
        assert runs(message, redelivered=True) == "RETRY"
        message = sent(queue)
        assert message.headers[DEATHS] == deaths
    dies(message, "in its body")
    assert runs(message, redelivered=True) == "REJECTED"
    assert (records.count(f"{log}:starts"), waiting(queue)) == (0, 0)


def test_without_a_limit_a_message_runs_again_at_once(log, queue):
    tasks.lasts.apply_async([log], queue=queue)
    message = sent(queue)
    for _ in range(LIMIT + 2):
        dies(message, "in its body", redelivered=True)
    assert runs(message, redelivered=True) == "SUCCESS"


def test_a_copy_of_a_running_task_is_not_rejected(log, queue, declared):
    declared(**{"x-delivery-limit": 0})
    tasks.lasts.apply_async([log], queue=queue)
    message = sent(queue)
    with FairLock(f"work:{log}"):
        assert runs(message, redelivered=True) == "RETRY"


def test_a_retry_of_the_tasks_own_is_counted_anew(log, queue, declared):
    declared(**{"x-delivery-limit": LIMIT})
    tasks.fails_once.apply_async([log], queue=queue)
    message = sent(queue)
    assert runs(message, redelivered=True, **{"x-delivery-count": LIMIT}) == "RETRY"
    retry = sent(queue)
    assert not {DEATHS, "x-delivery-count"} & retry.headers.keys()
    assert runs(retry) == "SUCCESS"
