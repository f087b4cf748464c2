"""A process that dies when the body has succeeded, before Celery has done what follows: a copy does it."""

import pytest
from celery import chain, chord

from django_rlock._tasks import deliveries
from tests.celery_app import app, records, tasks
from tests.forms import long
from tests.tasks.delivering import dies, runs, sent
from tests.tasks.test_endings import name_of
from tests.tasks.test_scopes import waiting

pytestmark = pytest.mark.usefixtures("locks_of_workers")

KINDS = [tasks.lasts, tasks.lasts_and_keeps_nothing]


@pytest.fixture
def settled(monkeypatch):
    """A process that has not done what follows the body by now, has died."""
    monkeypatch.setattr(deliveries, "SETTLING", 0.0)


@pytest.fixture
def queue(log):
    return f"queue-{log}"


@pytest.fixture
def follower(log):
    """A task that follows, in a queue of its own."""
    return tasks.text_of.s().set(queue=f"next-{log}")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("task", KINDS, ids=name_of)
@pytest.mark.parametrize("point", ["in the release", "in the publish", *long("after the publish")])
@pytest.mark.parametrize("form", ["chain", *long("link")])
def test_what_follows_in_a_canvas_is_sent(log, queue, follower, task, point, form):
    first = task.s(log).set(queue=queue)
    if form == "chain":
        chain(first, follower)()
    else:
        first.apply_async(link=follower)
    message = sent(queue)
    dies(message, point)
    runs(message, redelivered=True)
    assert waiting(f"next-{log}") == 1 + (point == "after the publish")
    runs(message, redelivered=True)
    assert records.count(f"{log}:starts") == 2, "a success with all that follows did not count"


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("point", ["between store and count", *long("between body and store")])
def test_a_member_of_a_chord_is_counted(log, queue, point):
    chord([tasks.lasts.s(log).set(queue=queue) for _ in range(2)])(tasks.all_of.s().set(queue=f"next-{log}"))
    first, second = sent(queue), sent(queue)
    dies(first, point)
    runs(first, redelivered=True)
    runs(second)
    assert waiting(f"next-{log}") == 1
    assert records.count(f"{log}:starts") == 3


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("task", KINDS, ids=name_of)
@pytest.mark.parametrize("point", ["in on_success", *long("in task_success", "in after_return")])
def test_handlers_of_a_success_are_called(log, queue, task, point):
    task.apply_async([log], queue=queue)
    message = sent(queue)
    dies(message, point)
    runs(message, redelivered=True)
    runs(message, redelivered=True)
    assert records.count(f"{log}:starts") == 2


def test_a_copy_waits_for_a_process_that_may_be_doing_what_follows(log, queue, follower):
    chain(tasks.lasts.s(log).set(queue=queue), follower)()
    message = sent(queue)
    dies(message, "in the publish")
    runs(message, redelivered=True)
    assert (records.count(f"{log}:starts"), waiting(queue), waiting(f"next-{log}")) == (1, 1, 0)


@pytest.mark.usefixtures("settled")
def test_a_success_whose_handler_has_ended_the_process_does_not_count(log, queue, monkeypatch):
    def leave(*_):
        raise SystemExit

    tasks.lasts.apply_async([log], queue=queue)
    message = sent(queue)
    with monkeypatch.context() as patch:
        patch.setattr(type(app.tasks[tasks.lasts.name]), "on_success", leave)
        with pytest.raises(AssertionError, match="SystemExit"):
            runs(message)
    runs(message, redelivered=True)
    assert records.count(f"{log}:starts") == 2
