"""Queue scope, on real workers: one message with a key from publish to its end, whatever becomes of it."""

import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Queue
from kombu.exceptions import SerializerNotInstalled

from django_rlock import FairLock, LockUnavailableError, TaskQueuedError
from django_rlock._tasks import reservations
from django_rlock._tasks.deliveries import COPY
from tests.celery_app import app, records, tasks
from tests.celery_app.records import overlaps, starts, until
from tests.forms import long
from tests.tasks.test_losses import go

pytestmark = pytest.mark.usefixtures("locks_of_workers")


@pytest.fixture
def unread(celery_servers, log):
    """A queue that no worker reads."""
    name = f"unread-{log}"
    yield name
    with app.connection_for_write() as connection:
        Queue(name, channel=connection.default_channel).delete()


def waiting(queue):
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        return channel.client.llen(queue)


def reservation_of(log, celery_servers):
    with celery_servers[0].client() as client:
        return [client.pttl(key) for key in client.scan_iter(f"rlock_place:{{rlock:work:{log}}}:*")]


def is_free(task, log, unread, *args):
    """Whether a message would be sent now; it waits in a queue then, and is purged."""
    before = waiting(unread)
    result = task.apply_async([log, *args], queue=unread)
    if waiting(unread) == before:
        return False
    task.release_lock(log, *args)
    result.forget()
    return True


def kill_who_ran_last(log):
    """Kill a process, whatever it runs by now; it cannot say that it left."""
    runs = starts(log, 1)
    runs += starts(log, records.count(f"{log}:starts"))
    assert not overlaps(runs)
    pid = runs[-1]["pid"]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for insider in records.client().smembers(f"{log}:inside"):
        if str(insider).startswith(f"{pid}:"):
            records.client().srem(f"{log}:inside", insider)


# --- one message -----------------------------------------------------------------------------------------------------


def test_one_message_waits(unread, log):
    first = tasks.queues.apply_async([log], queue=unread)
    second = tasks.queues.apply_async([log], queue=unread)
    other = tasks.queues.apply_async([f"{log}-other"], queue=unread)
    assert (second.id, waiting(unread)) == (first.id, 2)
    assert other.id != first.id
    assert [each.was_sent for each in (first, second, other)] == [True, False, True]


@pytest.mark.parametrize("task", [tasks.queues, tasks.queues_late])
def test_a_run_counts_to_its_end(worker, log, unread, task):
    first = task.delay(log, gated=True)
    starts(log, 1)
    assert task.delay(log, gated=True).id == first.id
    go(log)
    assert first.get(timeout=records.WAIT) == f"done {log}"
    until(lambda: is_free(task, log, unread))
    assert not records.count(f"{log}:starts")


@pytest.mark.parametrize(
    ("task", "options", "was_sent"),
    [
        (tasks.queues, {}, False),
        (tasks.queues, {"on_queued": "earlier"}, True),
        (tasks.queues_again, {}, False),
        (tasks.queues_the_earlier, {}, True),
        (tasks.queues_the_earlier, {"countdown": 3600}, False),
        (tasks.queues_the_last, {}, True),
    ],
)
def test_the_result_says_whether_the_message_was_sent(unread, log, task, options, was_sent):
    args = [log] if task in {tasks.queues, tasks.queues_again} else [log, 1]
    first = task.apply_async(args, queue=unread, countdown=60)
    second = task.apply_async(args, queue=unread, **options)
    assert (first.was_sent, second.was_sent) == (True, was_sent)
    assert (second.id != first.id, waiting(unread)) == (was_sent, 1 + was_sent)


def test_a_call_chooses_between_the_result_and_an_error(unread, log):
    for task, options in ((tasks.queues_or_raises, {}), (tasks.queues, {"on_queued": "raise"})):
        first = task.apply_async([log], queue=unread, **options)
        with pytest.raises(TaskQueuedError, match=first.id) as raised:
            task.apply_async([log], queue=unread, **options)
        assert raised.value.task_id == first.id
    assert tasks.queues.apply_async([log], queue=unread, on_queued="return").id == first.id
    for task, chosen in ((tasks.queues, "again"), (tasks.skips, "raise")):
        with pytest.raises(ValueError, match="on_queued for one call"):
            task.apply_async([log], queue=unread, on_queued=chosen)
    assert waiting(unread) == 2


def test_tasks_that_share_a_key_are_no_duplicates(worker, log, unread):
    tasks.skips.delay(log, gated=True)
    starts(log, 1)
    assert is_free(tasks.queues, log, unread)
    go(log)


@pytest.mark.django_db(transaction=True)
def test_on_commit(unread, log):
    tasks.queues.apply_async_on_commit([log], queue=unread)
    tasks.queues.apply_async_on_commit([log], queue=unread)
    assert waiting(unread) == 1


def test_without_redis_nothing_is_sent(unread, log, own_server):
    own_server().kill()
    with pytest.raises(LockUnavailableError):
        tasks.queues.apply_async([log], queue=unread)
    assert waiting(unread) == 0


# --- given back ------------------------------------------------------------------------------------------------------


def test_a_message_that_cannot_be_sent_has_no_reservation(unread, log, celery_servers):
    with pytest.raises(SerializerNotInstalled):
        tasks.queues.apply_async([log], queue=unread, serializer="unknown")
    assert reservation_of(log, celery_servers) == []


@pytest.mark.parametrize("step", [0, 3600], ids=["", "the server's clock was set back then"])
def test_a_sender_that_died_swallows_no_message(unread, log, monkeypatch, celery_servers, step):
    monkeypatch.setattr(reservations, "SENDING", 0.5)
    reservation = reservations.Reservation(tasks.queues, f"work:{log}", "dead", "token")
    assert reservation.reserve() is None
    if step:
        with celery_servers[0].client() as client:
            [key] = client.scan_iter(f"rlock_place:{{rlock:work:{log}}}:*")
            client.expire(key, step)
    assert tasks.queues.apply_async([log], queue=unread).id != "dead"
    assert waiting(unread) == 1


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_second_sender_waits_until_the_first_has_sent_its_message(unread, log, is_sent):
    reservation = reservations.Reservation(tasks.queues, f"work:{log}", "first", "token")
    assert reservation.reserve() is None
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(tasks.queues.apply_async, [log], queue=unread)
        reservation.keep(60) if is_sent else reservation.release()
        assert (second.result(records.WAIT).id == "first") is is_sent


def test_a_reservation_is_released_when_redis_is_back(unread, log, own_server):
    server = own_server()
    reservation = reservations.Reservation(tasks.queues, f"work:{log}", "first", "token")
    reservation.reserve()
    reservation.keep(60)
    server.pause()
    reservation.release()
    server.resume()
    until(lambda: tasks.queues.apply_async([log], queue=unread).id != "first")


def test_a_sender_prolongs_no_reservation_that_was_released(unread, log, celery_servers):
    reservation = reservations.Reservation(tasks.queues, f"work:{log}", "fast", "token")
    reservation.reserve()
    reservation.begin()  # in the worker, before the sender goes on
    reservation.keep(60)
    assert reservation_of(log, celery_servers) == []


def test_a_message_that_vanished_is_forgotten(unread, log):
    first = tasks.queues_briefly.apply_async([log], queue=unread)
    until(lambda: tasks.queues_briefly.apply_async([log], queue=unread).id != first.id)
    assert waiting(unread) == 2


def test_a_reservation_lasts_from_the_time_to_start_and_no_longer_than_the_message(unread, log, celery_servers):
    tasks.queues.apply_async([log], queue=unread, countdown=7200)
    (left_ms,) = reservation_of(log, celery_servers)
    assert 10_700_000 < left_ms <= 10_800_000
    tasks.queues.release_lock(log)
    tasks.queues.apply_async([log], queue=unread, expires=60)
    (left_ms,) = reservation_of(log, celery_servers)
    assert left_ms <= 60_000


def test_a_message_that_is_revoked_before_it_starts(busy, log, unread):
    tasks.skips.apply_async([f"{log}-first", True], queue=busy.queue)
    starts(f"{log}-first", 1)
    result = tasks.queues.apply_async([log], queue=busy.queue)
    until(lambda: (app.control.inspect([busy.hostname]).query_task(result.id) or {}).get(busy.hostname))
    app.control.revoke(result.id, destination=[busy.hostname], reply=True)
    assert tasks.queues.apply_async([log], queue=busy.queue).id == result.id
    go(f"{log}-first")
    until(lambda: result.state == "REVOKED")
    until(lambda: is_free(tasks.queues, log, unread))
    assert not records.count(f"{log}:starts")


def test_a_message_that_expires_before_it_starts(busy, log, unread, monkeypatch):
    tasks.skips.apply_async([f"{log}-first", True], queue=busy.queue)
    starts(f"{log}-first", 1)
    monkeypatch.setattr(
        reservations, "_time_in_queue", lambda *_: 3600.0
    )  # so that its time alone does not end the reservation
    result = tasks.queues.apply_async([log], queue=busy.queue, expires=1)
    expires = time.time() + 1  # or before
    until(lambda: time.time() > expires + 0.1)
    assert tasks.queues.apply_async([log], queue=busy.queue).id == result.id
    go(f"{log}-first")
    until(lambda: result.state == "REVOKED")
    until(lambda: is_free(tasks.queues, log, unread))


def test_a_run_that_is_requeued(worker, log, unread):
    result = tasks.queues_and_is_requeued.delay(log)
    assert {run["id"] for run in starts(log, 2)} == {result.id}
    until(lambda: is_free(tasks.queues_and_is_requeued, log, unread))


@pytest.mark.parametrize("how", ["soft limit", "error"])
def test_a_message_whose_key_cannot_be_made_in_the_worker(worker, log, unread, how):
    result = tasks.queues_and_never_begins.delay(log, how)
    assert isinstance(result.get(timeout=records.WAIT, propagate=False), SoftTimeLimitExceeded | ConnectionError)
    until(lambda: is_free(tasks.queues_and_never_begins, log, unread, how))


def test_a_message_that_is_skipped(worker, log, unread):
    with FairLock(f"work:{log}"):
        assert tasks.queues.delay(log).get(timeout=records.WAIT) is None
    until(lambda: is_free(tasks.queues, log, unread))


def test_eager_mode_queues_nothing(log, celery_servers):
    app.conf.task_always_eager = True
    try:
        assert [tasks.queues.delay(log).get() for _ in range(2)] == [f"done {log}"] * 2
    finally:
        app.conf.task_always_eager = False
    assert reservation_of(log, celery_servers) == []


@pytest.mark.parametrize("task", [tasks.queues_and_retries, tasks.queues_and_is_retried])
def test_its_own_retry_is_the_same_message(worker, log, unread, task):
    result = task.delay(log)
    starts(log, 1)
    assert records.wait_for(f"{log}:ends") == result.id
    assert task.delay(log).id == result.id
    starts(log, 1)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    until(lambda: is_free(task, log, unread))
    assert not records.count(f"{log}:starts")


def test_no_message_comes_between_a_run_and_its_retry(worker, log):
    task = tasks.queues_and_is_retried_slowly
    result = task.delay(log)
    starts(log, 1)
    assert records.wait_for(f"{log}:ends") == result.id
    until(lambda: not ((info := task.lock_info(log)) and info.is_held))
    assert [(each.task_id, each.queue) for each in task.lock_info(log).queued] == [(result.id, worker.queue)]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(task.delay, log)
        go(log)
        assert second.result(records.WAIT).id == result.id
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert records.count(f"{log}:starts") == 1


def test_the_last_of_its_retries_releases_the_reservation(worker, log, unread):
    task = tasks.queues_and_is_retried_slowly
    result = task.delay(log, fails=2)
    go(log)
    go(log)
    assert isinstance(result.get(timeout=records.WAIT, propagate=False), ConnectionError)
    until(lambda: is_free(task, log, unread))


def test_a_copy_makes_no_reservation_that_its_run_has_released(worker, log, unread):
    result = tasks.queues.delay(log, gated=True)
    starts(log, 1)
    reservation = reservations.Reservation(tasks.queues, f"work:{log}", result.id, "token")
    headers = {reservations.RESERVATION: reservation.header, COPY: True}
    tasks.queues.push_request(id=result.id)  # a run sends its own message again
    try:
        tasks.queues.apply_async([log, True], task_id=result.id, headers=headers, queue=unread)
    finally:
        tasks.queues.pop_request()
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    until(lambda: is_free(tasks.queues, log, unread))


def test_a_message_that_is_sent_again_keeps_its_reservation(worker, log, unread):
    first = tasks.queues_again.delay(log, gated=True)
    starts(log, 1)
    second = tasks.queues_again.delay(log)
    for _ in range(3):
        assert records.wait_for(f"deferred:{second.id}")
        assert tasks.queues_again.delay(log).id == second.id
    go(log)
    assert [each.get(timeout=records.WAIT) for each in (first, second)] == [f"done {log}"] * 2
    until(lambda: is_free(tasks.queues_again, log, unread))
    assert not overlaps(starts(log, 1))


# --- again, and until the start --------------------------------------------------------------------------------------


def test_messages_sent_during_a_run_cause_one_more_run(worker, log):
    first = tasks.queues_again.delay(log, gated=True)
    starts(log, 1)
    others = {tasks.queues_again.delay(log).id for _ in range(10)}
    assert len(others) == 1
    assert first.id not in others
    go(log)
    (run,) = starts(log, 1)
    assert {run["id"]} == others
    assert run["insiders"] == 1
    assert app.AsyncResult(run["id"]).get(timeout=records.WAIT) == f"done {log}"
    assert not records.count(f"{log}:starts")


@pytest.mark.parametrize("task", [tasks.catches_up, *long(tasks.catches_up_with_the_last)], ids=lambda task: task.name)
@pytest.mark.parametrize("kills", [False, True], ids=["", "killed"])
def test_no_change_is_missed(worker, log, kills, task):
    """Whenever it is sent: a run begins after it, also where a process is killed meanwhile."""

    def change(_):
        records.client().incr(f"{log}:changes")
        task.delay(log)

    def is_caught_up():
        return records.last(f"{log}:seen") == int(records.client().get(f"{log}:changes") or 0)

    with ThreadPoolExecutor(4) as senders:
        for _ in range(2 if kills else 20):
            list(senders.map(change, range(10)))
            if kills:
                kill_who_ran_last(log)
            until(is_caught_up)
    assert not overlaps(starts(log, records.count(f"{log}:starts")))


def test_until_the_start(worker, log, unread):
    waits = tasks.queues_until_it_starts.apply_async([f"{log}-2"], queue=unread)
    assert tasks.queues_until_it_starts.apply_async([f"{log}-2"], queue=unread).id == waits.id
    both = [tasks.queues_until_it_starts.delay(log)]
    starts(log, 1)
    both.append(tasks.queues_until_it_starts.delay(log))
    (run,) = starts(log, 1)
    assert (run["id"], run["insiders"]) == (both[1].id, 2)
    go(log)
    go(log)
    assert [each.get(timeout=records.WAIT) for each in both] == [f"done {log}"] * 2


# --- parts of a canvas -----------------------------------------------------------------------------------------------


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(reservations, "_warned_tasks", set())


def test_members_of_a_chord_all_run(worker, log, unread, unwarned, caplog):
    tasks.queues.apply_async([log], queue=unread)
    with caplog.at_level(logging.WARNING, "django_rlock.celery"):
        result = chord([tasks.queues.s(log), tasks.queues.s(f"{log}-2"), tasks.queues.s(log)])(tasks.text_of.s())
    assert result.get(timeout=records.WAIT).startswith("got [")
    assert caplog.text.count("part of a chord") == 1


@pytest.mark.parametrize(
    "send",
    [
        lambda log: chain(tasks.queues.s(log), tasks.text_of.s()).apply_async(),
        lambda log: chain(tasks.text_of.si(1), tasks.queues.si(log)).apply_async(),
        lambda log: tasks.queues.apply_async([log], link=tasks.text_of.s()),
    ],
    ids=["first", "last", "link"],
)
def test_members_of_a_chain_all_run(worker, log, unread, unwarned, send):
    tasks.queues.apply_async([log], queue=unread)
    assert log in send(log).get(timeout=records.WAIT)


# --- options ---------------------------------------------------------------------------------------------------------


def test_forwarded_headers_do_not_bypass_a_reservation(worker, log):
    first, second = tasks.forwards_its_headers.delay(log).get(timeout=records.WAIT)
    assert first == second
    go(f"{log}-next")
    assert app.AsyncResult(first).get(timeout=records.WAIT) == f"done {log}-next"
