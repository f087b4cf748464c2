"""Each ending of a message releases its reservation, and nothing else does: ways of ending, pools and brokers."""

import signal
import uuid

import pytest
from celery import Celery, Task
from kombu import Producer, serialization

from django_rlock._tasks.reservations import RESERVATION, Reservation
from django_rlock.celery import LockedTask
from tests.celery_app import (
    RABBIT,
    RABBIT_QUEUES,
    SOFT_SHUTDOWN,
    SQS,
    app,
    endings,
    records,
    tasks,
    use_rabbit,
    use_sqs,
)
from tests.celery_app.records import starts, until
from tests.forms import long
from tests.tasks.test_losses import deliver_again, forget, go

pytestmark = pytest.mark.usefixtures("locks_of_workers")

POINTS = "before it", "in a call", "in its body"
QUICK = "error", "ignore", "reject", "retry"
ENDINGS = ["returns", *(f"{point}: {way}" for point in POINTS for way in QUICK)]
BREAKS = [f"{point}: {way}" for point in POINTS for way in ("soft limit", "death", "exit")]
"""Ways that only children of a prefork worker survive or do not, as it may be."""
FEW_BREAKS = "before it: soft limit", "in its body: death"
KINDS = [endings.ends_early, endings.ends_late]


def name_of(task):
    return task.name


@pytest.fixture
def has_reservation(log, celery_servers):
    """Whether a message has the reservation."""

    def has_reservation():
        with celery_servers[0].client() as client:
            return any(client.scan_iter(f"rlock_place:{{rlock:work:{log}}}:*"))

    return has_reservation


@pytest.fixture
def is_released(has_reservation):
    """Waits until the reservation is released."""
    return lambda: until(lambda: not has_reservation())


@pytest.fixture
def until_released(worker, log, celery_servers):
    """Waits until the worker has released reservations in the background, by one that it releases last."""

    def until_released():
        reservation = Reservation(endings.ends_early, f"work:{log}-last", uuid.uuid4().hex, "token")
        assert reservation.reserve() is None
        reservation.keep(3600)
        send_damaged(app, reservation, worker.queue)
        with celery_servers[0].client() as client:
            until(lambda: not any(client.scan_iter(f"rlock_place:{{rlock:work:{log}-last}}:*")))

    return until_released


# --- by its run, or before it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", KINDS, ids=name_of)
@pytest.mark.parametrize("how", [*ENDINGS, *FEW_BREAKS, *long(*(each for each in BREAKS if each not in FEW_BREAKS))])
def test_each_ending_releases_the_reservation(worker, log, is_released, how, task):
    task.delay(log, how)
    is_released()


@pytest.mark.parametrize("task", KINDS, ids=name_of)
def test_a_failure_has_released_the_reservation_before_it_is_known(worker, log, has_reservation, task):
    task.delay(log, "in its body: error").get(timeout=records.WAIT, propagate=False)
    assert not has_reservation()


def test_a_retry_that_the_worker_is_not_told_of_keeps_the_reservation(worker, log, is_released):
    result = endings.ends_late.delay(log, "retries unheard")
    assert records.wait_for(f"ended:{result.id}") == "SUCCESS"
    assert endings.ends_late.delay(log, "returns").id == result.id
    starts(log, 2)
    is_released()


@pytest.mark.parametrize("point", ["in its body", *long("before it", "in a call")])
def test_a_message_that_comes_again_after_its_process_died_keeps_its_reservation(worker, log, is_released, point):
    how = f"{point}: death"
    result = endings.ends_and_returns.delay(log, how)
    assert records.wait_for(f"{log}:tries") == how
    assert endings.ends_and_returns.delay(log, how).id == result.id
    assert result.get(timeout=records.WAIT) == f"done {log}"
    is_released()


@pytest.mark.skipif(not hasattr(Task, "retry_on_worker_lost"), reason="Celery 5.7 has retry_on_worker_lost")
def test_a_message_that_is_retried_after_its_process_died_keeps_its_reservation(
    worker, log, is_released, until_released
):
    result = endings.ends_and_is_retried.delay(log, "in its body: death")
    assert records.wait_for(f"retried:{result.id}") == "WorkerLostError"
    until_released()
    assert endings.ends_and_is_retried.delay(log, "returns").id == result.id
    assert result.get(timeout=records.WAIT) == f"done {log}"
    is_released()


@pytest.mark.parametrize("task", [endings.ends_late, endings.ends_late_and_keeps_nothing], ids=name_of)
def test_a_message_that_is_rejected_after_its_body_runs_again(worker, log, is_released, has_reservation, task):
    result = task.delay(log, "after its body: requeue, gated")
    go(log)
    first, second = starts(log, 2)
    assert first["id"] == second["id"] == result.id
    assert has_reservation()
    go(log)
    is_released()
    assert records.wait_for(f"ended:{result.id}") == "REJECTED"
    assert records.wait_for(f"ended:{result.id}") == "SUCCESS"


@pytest.mark.skipif(not hasattr(Task, "retry_on_worker_lost"), reason="before Celery 5.7 the task fails")
@pytest.mark.parametrize("point", ["in on_success", "in after_return"])
def test_a_message_that_a_handler_of_its_success_rejects_runs_again(worker, log, is_released, point):
    result = endings.ends_late_and_keeps_nothing.delay(log, f"{point}: requeue")
    assert [run["id"] for run in starts(log, 2)] == [result.id] * 2
    is_released()


# --- by the worker ---------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(celery_servers):
    """An app whose tasks the workers do not know."""
    with Celery("elsewhere", broker=app.conf.broker_url, set_as_current=False) as made:
        yield made


def test_a_task_that_the_worker_does_not_know(worker, log, is_released, has_reservation, elsewhere):
    @elsewhere.task(base=LockedTask, shared=False, name="unknown", lock_key=f"work:{log}", lock_scope="queue")
    def unknown():
        """Nobody runs it."""

    unknown.apply_async(queue=worker.queue)
    is_released()


def test_a_serializer_that_the_worker_refuses(worker, log, is_released):
    serialization.register("refused", lambda value: "", lambda text: None, "application/x-refused", "utf-8")
    try:
        endings.ends_early.apply_async([log, "returns"], serializer="refused")
        is_released()
    finally:
        serialization.unregister("refused")


WRONG_BODIES = (
    "[[",
    "5",
    "null",
    '"abc"',
    "{}",
    "[]",
    "[[], {}]",
    "[[], {}, {}, {}]",
    "[5, {}, {}]",
    "[[], [], {}]",
    "[[], {}, 5]",
)


@pytest.mark.parametrize("body", WRONG_BODIES)
def test_a_body_that_is_not_that_of_a_task(worker, log, is_released, until_released, body):
    reservation = Reservation(endings.ends_early, f"work:{log}", uuid.uuid4().hex, "token")
    assert reservation.reserve() is None
    reservation.keep(3600)
    send_damaged(app, reservation, worker.queue, body)
    is_released()
    until_released()  # it has not ended the worker


def send_damaged(publisher, reservation, queue, body="[["):
    """Send a message with a body that is not a task's; by default one that breaks off."""
    headers = {"task": "ends_early", "id": reservation.task_id, RESERVATION: reservation.header}
    with publisher.connection_for_write() as connection, Producer(connection.channel()) as producer:
        producer.publish(
            body, routing_key=queue, headers=headers, content_type="application/json", content_encoding="utf-8"
        )


@pytest.mark.parametrize("task", [endings.ends_at_its_limit, endings.ends_at_its_limit_and_returns], ids=name_of)
def test_a_time_limit_releases_the_reservation_unless_the_message_comes_again(
    worker, log, is_released, has_reservation, until_released, task
):
    result = task.delay(log, "gated")
    (run,) = starts(log, 1)
    if task is endings.ends_at_its_limit_and_returns:
        assert starts(log, 1)[0]["id"] == run["id"]
        until_released()
        assert has_reservation()  # its run alone would keep others out as well
        assert task.delay(log, "returns").id == result.id
        go(log)
        go(log)
    is_released()


def test_a_terminated_run_releases_its_reservation(worker, log, is_released, has_reservation):
    result = endings.ends_late.delay(log, "gated")
    starts(log, 1)
    assert has_reservation()
    app.control.revoke(result.id, terminate=True)
    is_released()


def test_what_is_revoked_although_its_request_is_of_another_class(busy, log, is_released):
    tasks.skips.apply_async([f"{log}-first", True], queue=busy.queue)
    starts(f"{log}-first", 1)
    result = endings.ends_with_its_own_request.apply_async([log, "returns"], queue=busy.queue)
    until(lambda: (app.control.inspect([busy.hostname]).query_task(result.id) or {}).get(busy.hostname))
    app.control.revoke(result.id, destination=[busy.hostname], reply=True)
    go(f"{log}-first")
    is_released()


def test_a_success_that_celery_does_not_run_again(worker, busy, log, is_released):
    task_id = uuid.uuid4().hex
    tasks.text_of.apply_async(("another run",), task_id=task_id).get(timeout=records.WAIT)
    endings.ends_late.apply_async([log, "before it: requeue"], task_id=task_id, queue=busy.queue)
    is_released()
    assert not records.count(f"{log}:starts")


@pytest.mark.parametrize("seconds", ["0", *long("1")], ids=["cold", "soft"])
def test_a_shutdown_keeps_the_reservation_of_a_message_that_comes_again(
    worker, start_worker, log, is_released, seconds
):
    with start_worker(f"victim-{log}", "--pool", "prefork", "-c", "1", **{SOFT_SHUTDOWN: seconds}) as victim:
        result = endings.ends_late.apply_async([log, "gated"], queue=victim.queue)
        (ended,) = starts(log, 1)
        victim.process.send_signal(signal.SIGQUIT)
        victim.process.wait(records.WAIT)
    forget(log, ended)
    assert endings.ends_late.delay(log, "returns").id == result.id
    app.control.add_consumer(victim.queue, destination=[worker.hostname], reply=True)
    deliver_again()
    starts(log, 1)
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    is_released()


@pytest.mark.thorough
@pytest.mark.parametrize("task", KINDS, ids=name_of)
def test_what_ends_during_a_soft_shutdown_releases_its_reservation(start_worker, log, is_released, task):
    with start_worker(f"victim-{log}", "--pool", "prefork", "-c", "1", **{SOFT_SHUTDOWN: "30"}) as victim:
        result = task.apply_async([log, "gated"], queue=victim.queue)
        starts(log, 1)
        victim.process.send_signal(signal.SIGQUIT)
        go(log)
        assert result.get(timeout=records.WAIT) == f"done {log}"
        is_released()


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", ["0", "1"], ids=["cold", "soft"])
def test_a_shutdown_releases_the_reservation_of_what_it_ends_for_good(start_worker, log, is_released, seconds):
    with start_worker(f"victim-{log}", "--pool", "prefork", "-c", "1", **{SOFT_SHUTDOWN: seconds}) as victim:
        endings.ends_early.apply_async([log, "gated"], queue=victim.queue)
        starts(log, 1)
        victim.process.send_signal(signal.SIGQUIT)
        victim.process.wait(records.WAIT)
    is_released()


# --- by pools and brokers --------------------------------------------------------------------------------------------


@pytest.fixture
def send(request, broker, celery_servers):
    """Sends a task with a reservation by a broker; returns the variables of the environment of its worker, too."""
    with Celery("publisher", set_as_current=False) as publisher:
        publisher.conf.update(broker_url=app.conf.broker_url, result_backend=app.conf.result_backend)
        environ = {}
        if broker == "sqs":
            port = str(request.getfixturevalue("sqs").port)
            use_sqs(publisher, port)
            environ = {SQS: port}
        elif broker != "redis":
            url = request.getfixturevalue("rabbit").url
            use_rabbit(publisher, url, broker)
            environ = {RABBIT: url, RABBIT_QUEUES: broker}

        def send(task, queue, log, how):
            reservation = Reservation(task, f"work:{log}", uuid.uuid4().hex, "token")
            assert reservation.reserve() is None
            if how in WRONG_BODIES:
                send_damaged(publisher, reservation, queue, how)
                reservation.keep(3600)
                return
            headers = {RESERVATION: reservation.header}
            publisher.send_task(task.name, [log, how], task_id=reservation.task_id, queue=queue, headers=headers)
            reservation.keep(3600)

        yield send, environ


@pytest.mark.thorough
@pytest.mark.parametrize("broker", ["redis", "classic", "quorum", "topic", "sqs"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_each_ending_by_pools_and_brokers(start_worker, send, log, celery_servers, pool, broker):
    deliver, environ = send
    ways = [*ENDINGS, "damaged", *(BREAKS if pool == "prefork" else [])]
    with start_worker(f"{pool}-{broker}", "--pool", pool, "-c", "2", **environ) as worker:
        for number, (task, how) in enumerate((task, how) for task in KINDS for how in ways):
            deliver(task, worker.queue, f"{log}-{number}", how)
        with celery_servers[0].client() as client:
            until(lambda: not list(client.scan_iter(f"rlock_place:{{rlock:work:{log}-*")))
