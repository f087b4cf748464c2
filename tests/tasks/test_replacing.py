"""Messages that take the place of one that waits: the earlier time wins, or the last message counts."""

import os
import signal

import pytest
from celery.signals import after_task_publish
from kombu.exceptions import SerializerNotInstalled

from django_rlock._tasks import reservations
from django_rlock._tasks.reservations import Reservation
from tests.celery_app import records, tasks
from tests.celery_app.records import overlaps, starts, until
from tests.forms import long
from tests.tasks.test_endings import name_of
from tests.tasks.test_losses import forget, go
from tests.tasks.test_scopes import reservation_of, unread, waiting

__all__ = ["unread"]

pytestmark = pytest.mark.usefixtures("locks_of_workers")


def numbers(log):
    """The messages that have run, in their order."""
    return [records.wait_for(f"{log}:numbers") for _ in range(records.count(f"{log}:numbers"))]


# --- the earlier time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [tasks.queues_the_earlier, *long(tasks.queues_the_earlier_late)], ids=name_of)
def test_a_message_with_a_countdown_swallows_none_that_is_to_run_at_once(worker, log, task):
    later = task.apply_async([log, 1], countdown=tasks.LATER)
    now = task.delay(log, 2)
    assert (now.was_sent, now.id != later.id) == (True, True)
    assert now.get(timeout=records.WAIT) == f"done {log}"
    assert later.get(timeout=records.WAIT) is None
    assert "replaced" in records.wait_for(f"deduplicated:{later.id}")
    assert numbers(log) == [2]


@pytest.mark.parametrize("options", [{"countdown": 60}, {"countdown": 7200}, {}], ids=str)
def test_a_message_that_is_to_start_no_earlier_is_not_sent(unread, log, options):
    first = tasks.queues_the_earlier.apply_async([log, 1], queue=unread, countdown=30 if options else None)
    second = tasks.queues_the_earlier.apply_async([log, 2], queue=unread, **options)
    assert (second.id, second.was_sent, waiting(unread)) == (first.id, False, 1)


@pytest.mark.parametrize("task", [tasks.queues_the_earlier, tasks.queues_the_earlier_late], ids=name_of)
def test_a_run_is_earlier_than_any_message(worker, log, task):
    running = task.apply_async([log, 1, True], countdown=0.1)
    starts(log, 1)
    assert task.delay(log, 2).id == running.id
    go(log)
    assert running.get(timeout=records.WAIT) == f"done {log}"


# --- the last message ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [tasks.queues_the_last, *long(tasks.queues_the_last_until_it_starts)], ids=name_of)
def test_the_last_message_within_a_window_runs(worker, log, task):
    sent = [task.apply_async([log, number], countdown=tasks.LATER) for number in range(5)]
    assert all(each.was_sent for each in sent)
    assert [each.get(timeout=records.WAIT) for each in sent] == [*[None] * 4, f"done {log}"]
    assert numbers(log) == [4]


def test_the_last_message_that_is_sent_during_a_run_runs_after_it(worker, log):
    sent = [tasks.queues_the_last.delay(log, 0, True)]
    starts(log, 1)
    sent += [tasks.queues_the_last.delay(log, number) for number in (1, 2, 3)]
    for replaced in sent[1:3]:
        assert replaced.get(timeout=records.WAIT) is None
    until(lambda: "<Skipped: another message has replaced it>" in worker.last_lines(50))
    go(log)
    assert [each.get(timeout=records.WAIT) for each in (sent[0], sent[3])] == [f"done {log}"] * 2
    assert numbers(log) == [0, 3]
    assert not overlaps(starts(log, 1))


@pytest.mark.thorough
def test_a_replaced_message_does_not_wait_for_the_lock(worker, log):
    running = tasks.waits_for_the_last.delay(log, 0, True)
    starts(log, 1)
    waits = tasks.waits_for_the_last.apply_async([log, 1], countdown=tasks.LATER)
    last = tasks.waits_for_the_last.apply_async([log, 2], countdown=2 * tasks.LATER)
    assert waits.get(timeout=records.WAIT) is None
    go(log)
    assert [each.get(timeout=records.WAIT) for each in (running, last)] == [f"done {log}"] * 2
    assert numbers(log) == [0, 2]


# --- who replaces fails, or is late ----------------------------------------------------------------------------------


@pytest.fixture
def replaced(unread, log):
    """The result of a message that waits, and the reservation of another one that is about to replace it."""
    first = tasks.queues_the_last.apply_async([log, 1], queue=unread)
    reservation = Reservation(tasks.queues_the_last, f"work:{log}", "second", "token")

    def take():
        assert reservation.reserve("", 0.0, "replace") is None
        return first, reservation

    return take


def reservation_with(result, log, celery_servers):
    """The reservation of a message that was sent, as its worker sees it."""
    with celery_servers[0].client() as client:
        [value] = [
            found
            for key in client.scan_iter(f"rlock_place:{{rlock:work:{log}}}:*")
            if (found := client.get(key)).partition("\n")[0].endswith(result.id)
        ]
    return Reservation(tasks.queues_the_last, f"work:{log}", result.id, value.partition(":")[0])


def test_a_message_that_could_not_be_sent_replaces_none(unread, log, celery_servers):
    first = tasks.queues_the_last.apply_async([log, 1], queue=unread)
    with pytest.raises(SerializerNotInstalled):
        tasks.queues_the_last.apply_async([log, 2], queue=unread, serializer="unknown")
    assert [each.task_id for each in tasks.queues_the_last.lock_info(log).queued] == [first.id]
    assert not reservation_with(first, log, celery_servers).begin()


def test_a_sender_that_died_replaces_none(replaced, log, monkeypatch, celery_servers):
    monkeypatch.setattr(reservations, "SENDING", 0.1)
    first, _ = replaced()
    assert tasks.queues_the_last.apply_async([log, 3], on_queued="return").id == first.id
    assert not reservation_with(first, log, celery_servers).begin()
    assert reservation_of(log, celery_servers) == []


def test_a_message_that_begins_before_the_other_one_is_sent_is_not_replaced(replaced, log, celery_servers):
    first, second = replaced()
    reservation = reservation_with(first, log, celery_servers)
    assert not reservation.begin()
    second.keep(60)
    assert not reservation.is_replaced()
    assert len(reservation_of(log, celery_servers)) == 1


def test_a_message_that_is_replaced_learns_of_it_whoever_is_first(replaced, log, celery_servers):
    first, second = replaced()
    reservation = reservation_with(first, log, celery_servers)
    assert not second.begin()  # in the worker, before its sender goes on
    second.keep(60)
    assert reservation.begin()
    assert reservation_of(log, celery_servers) == []


def test_both_reservations_are_freed_by_hand(replaced, log, celery_servers):
    first, _ = replaced()
    reservation = reservation_with(first, log, celery_servers)
    assert tasks.queues_the_last.release_lock(log)
    assert reservation_of(log, celery_servers) == []
    assert not reservation.begin()


def test_work_that_has_begun_is_not_replaced(worker, log):
    retried = tasks.queues_and_retries.delay(log)
    starts(log, 1)
    assert records.wait_for(f"{log}:ends") == retried.id
    until(lambda: not tasks.queues_and_retries.lock_info(log).is_held)
    now = tasks.queues_and_retries.apply_async([log], on_queued="earlier")
    assert now.was_sent
    assert [each.get(timeout=records.WAIT) for each in (now, retried)] == [f"done {log}"] * 2


@pytest.fixture
def slow_sender():
    """Have the sender of the next message go on only after something has happened."""

    def wait(happens):
        def wait_once(**_):
            after_task_publish.disconnect(wait_once)
            happens()

        after_task_publish.connect(wait_once, weak=False)

    return wait


def test_retry_before_the_sender_of_its_message_goes_on(worker, log, slow_sender):
    """The reservation is the retry's by then, and says when that starts."""
    slow_sender(lambda: records.wait_for(f"{log}:ends"))
    retried = tasks.queues_and_retries.delay(log)
    until(lambda: not tasks.queues_and_retries.lock_info(log).is_held)
    now = tasks.queues_and_retries.apply_async([log], on_queued="earlier")
    assert now.was_sent
    assert [each.get(timeout=records.WAIT) for each in (now, retried)] == [f"done {log}"] * 2


def test_run_before_the_sender_of_its_message_goes_on_is_not_replaced(log):
    """The broker delivers the message again if the run dies."""

    def reservation(task_id):
        return Reservation(tasks.queues_the_earlier_late, f"work:{log}", task_id, f"token of {task_id}")

    sender = reservation("first")
    assert sender.reserve() is None
    reservation("first").begin()
    sender.keep(60)
    assert reservation("second").reserve(replaces="replace") == "first"


def test_a_run_whose_message_comes_again_is_not_replaced(worker, log):
    result = tasks.queues_the_earlier_late.apply_async([log, 1, True], countdown=0.1)
    (killed,) = starts(log, 1)
    os.kill(killed["pid"], signal.SIGKILL)
    forget(log, killed)
    assert tasks.queues_the_earlier_late.delay(log, 2).id == result.id
    starts(log, 1)
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    until(lambda: tasks.queues_the_earlier_late.lock_info(log) is None)
