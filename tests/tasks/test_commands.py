"""How many commands a run and a skip send to the server of the locks."""

import uuid
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.signals import before_task_publish

from django_rlock._core.clock import monotonic
from django_rlock._redis import scripts
from django_rlock._tasks.deliveries import RECEIVED
from django_rlock.celery import LockedTask
from django_rlock.locks import forced
from tests.background import forget_clean_up
from tests.eventually import PATIENCE

ROUNDS = 5
BEHIND = (
    *("rlock_process", "rlock_histor"),
    *("rlock_wake:forced", "rlock_wake:stack", "UNSUBSCRIBE", "PING"),
    scripts.TASK_FINISH.sha,
)
"""Background threads send these at their own pace: reports, a holder's subscription, the care of its connection, and
that tasks are done."""


@pytest.fixture
def app():
    with Celery("commands", broker="memory://", set_as_current=False) as made:
        yield made


@pytest.fixture
def run(app):
    """Runs a message as a worker does; returns the result."""

    def as_a_worker(task, headers=None):
        request = {"id": uuid.uuid4().hex, **(headers or {}), "delivery_info": {}, RECEIVED: monotonic()}
        outcome = build_tracer(task.name, task, app=app)(str(request["id"]), [], {}, request)
        assert outcome.info is None
        return outcome.retval

    return as_a_worker


@pytest.fixture
def commands(server, monkeypatch):
    """Counts the commands that a function sends on its way, without what scripts call."""

    monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)  # no stall makes a hold so long that it is asked about
    forget_clean_up()  # of earlier tests

    def sent_by(function):
        with server.client(single_connection_client=True) as client, server.client().monitor() as monitor:
            function()
            client.echo("that was all")
            seen = []
            for command in monitor.listen():
                if command["command"] == "ECHO that was all":
                    break
                if command["client_type"] != "lua" and not any(each in command["command"] for each in BEHIND):
                    seen.append(command["command"])
            return seen

    return sent_by


def made(app, **options):
    def body(self):
        return "ran"

    return app.task(base=LockedTask, bind=True, shared=False, name="job", lock_key="job", **options)(body)


@pytest.mark.parametrize(
    ("options", "number"),
    [({}, 2), ({"acks_late": True}, 3), ({"acks_late": True, "done_marker_time": 0}, 2)],
    ids=["acknowledged early", "late", "late, not remembered"],
)
def test_a_run(app, run, commands, options, number):
    task = made(app, **options)
    run(task)  # the server knows the scripts from then on
    sent = commands(lambda: [run(task) for _ in range(ROUNDS)])
    assert len(sent) == number * ROUNDS, sent


def test_a_message_of_queue_scope(app, run, commands):
    """Two commands of the sender, one where another waits; one more in the run."""
    task = made(app, lock_scope="queue")
    sent: list[dict[str, Any]] = []
    before_task_publish.connect(lambda headers, **_: sent.append(headers), weak=False, dispatch_uid="reservations")
    try:
        for _ in range(2):  # the server knows the scripts from the second time on
            sending = commands(task.delay)
            joining = commands(task.delay)
            (headers,) = sent
            sent.clear()
            running = commands(partial(run, task, {**headers}))
    finally:
        before_task_publish.disconnect(dispatch_uid="reservations")
    assert [len(each) for each in (sending, joining, running)] == [2, 1, 3]
