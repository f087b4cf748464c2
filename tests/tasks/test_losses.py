"""Workers, children and servers that die, and messages that are delivered again: no work is lost, nothing overlaps."""

import os
import signal

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Connection

from django_rlock import FairLock
from django_rlock._redis import keys
from tests.celery_app import app, records, tasks
from tests.celery_app.records import overlaps, starts, until

pytestmark = pytest.mark.usefixtures("locks_of_workers")


def deliver_again():
    """Let the broker redeliver every unacknowledged message, as after the visibility timeout."""
    options = {"visibility_timeout": 0}
    with Connection(app.conf.broker_url, transport_options=options) as connection, connection.channel() as channel:
        channel.qos.restore_visible(interval=1)  # type: ignore[attr-defined]


def forget(log, run):
    """A killed run cannot say that it left."""
    records.client().srem(f"{log}:inside", f"{run['pid']}:{run['id']}")


def go(log):
    records.record(f"{log}:go", "go")


def test_a_killed_process_loses_no_work(worker, log):
    result = tasks.survives.delay(log)
    (killed,) = starts(log, 1)
    os.kill(killed["pid"], signal.SIGKILL)
    forget(log, killed)
    # The copy is not skipped, whether it comes before or after the lease of the dead holder has ended.
    (run,) = starts(log, 1)
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert run["id"] == killed["id"]
    assert run["pid"] != killed["pid"]
    assert not overlaps([run])


def test_a_copy_is_not_skipped_for_another_holder(worker, log):
    result = tasks.survives.delay(log)
    (killed,) = starts(log, 1)
    os.kill(killed["pid"], signal.SIGKILL)
    forget(log, killed)
    with FairLock(f"work:{log}", wait_time=records.WAIT):  # when the lease of the dead has ended
        retried = records.count(f"retried:{result.id}")
        for _ in range(retried + 2):
            assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
        assert not records.count(f"{log}:starts")
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"


def test_a_killed_worker_loses_no_work(worker, start_worker, log):
    with start_worker(f"victim-{log}", "--pool", "prefork", "-c", "1") as victim:
        result = tasks.survives.apply_async([log], queue=victim.queue)
        (killed,) = starts(log, 1)
        victim.kill()
    forget(log, killed)
    app.control.add_consumer(victim.queue, destination=[worker.hostname], reply=True)
    with FairLock(f"work:{log}", wait_time=records.WAIT):  # as mostly: the lease of the dead ends long before
        deliver_again()
        assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"  # not skipped, although another one runs
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    (run,) = starts(log, 1)
    assert run["id"] == killed["id"]
    assert not overlaps([run])


def test_a_copy_of_a_task_that_waits_does_not_wait_for_its_own_run(worker, log):
    result = tasks.waits_late.delay(log, gated=True)
    starts(log, 1)
    deliver_again()
    for _ in range(2):
        assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert "succeeded" in records.wait_for(f"deduplicated:{result.id}")
    assert not records.count(f"{log}:starts")


def test_a_copy_shows_no_retry_during_the_run(worker, log):
    result = tasks.tells_its_errors.delay(log)
    starts(log, 1)
    deliver_again()
    assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
    assert result.state == "STARTED"
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"


def test_a_copy_does_not_overwrite_a_success_by_its_start(worker, log):
    result = tasks.tells_when_it_starts.delay(log)
    (run,) = starts(log, 1)
    assert result.state == "STARTED"
    assert result.info == {"pid": run["pid"], "hostname": worker.hostname}
    deliver_again()
    assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
    go(log)
    until(lambda: app.AsyncResult(result.id).state == "SUCCESS")
    assert "succeeded" in records.wait_for(f"deduplicated:{result.id}")
    assert app.AsyncResult(result.id).state == "SUCCESS"
    assert not records.count(f"{log}:starts")


def test_a_success_whose_result_was_forgotten_does_not_run_again(worker, log):
    result = tasks.lasts_and_is_late.delay(log)
    starts(log, 1)
    deliver_again()
    assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    result.forget()
    assert "succeeded" in records.wait_for(f"deduplicated:{result.id}")
    assert not records.count(f"{log}:starts")


@pytest.mark.parametrize("task", [tasks.skips, tasks.lasts], ids=["early", "late"])
def test_overlapping_messages_with_one_id_run_as_the_page_says(worker, log, task):
    task.apply_async([log, True], task_id=log)
    runs = starts(log, 1)
    task.apply_async([log, True], task_id=log)
    assert records.wait_for(f"retried:{log}") == "LockTimeoutError"
    go(log)
    if task.acks_late:
        assert "succeeded" in records.wait_for(f"deduplicated:{log}")
    else:
        runs += starts(log, 1)
        go(log)
    assert not overlaps(runs)
    assert not records.count(f"{log}:starts")


def test_without_the_redis_of_the_locks_tasks_wait(worker, fragile, log):
    fragile.kill()
    result = tasks.needs_fragile.delay(log)
    for _ in range(2):
        assert records.wait_for(f"retried:{result.id}") == "LockUnavailableError"
    assert not records.count(f"{log}:starts")
    refused = tasks.needs_fragile_now.delay(log)
    assert "is unavailable" in str(refused.get(timeout=records.WAIT, propagate=False))
    assert refused.state == "FAILURE"
    fragile.start()
    assert result.get(timeout=records.WAIT) == f"done {log}"


def test_a_copy_counts_however_often_redis_could_not_be_asked(worker, fragile, log):
    """By then Redis expects a copy that was sent before the outage."""
    with fragile.client() as client:
        client.hset(f"rlock:work:{log}", "another owner", 1)
        result = tasks.retries_fragile.delay(log)
        assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
        fragile.pause()
        try:
            for _ in range(3):
                # A run that sent its copy before the pause may report it after that copy has run: it tells Redis first.
                while records.wait_for(f"retried:{result.id}") != "LockUnavailableError":
                    pass
        finally:
            fragile.resume()
        client.delete(f"rlock:work:{log}")
    assert result.get(timeout=records.WAIT) == f"done {log}"


def test_a_soft_time_limit_in_the_body_frees_the_lock(worker, log):
    result = tasks.waits.delay(log, gated=True)
    (run,) = starts(log, 1)
    until(records.is_waited_for)
    os.kill(run["pid"], signal.SIGUSR1)  # as the worker does after soft_time_limit
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=records.WAIT)
    with FairLock(f"work:{log}", wait_time=20):
        pass
    assert records.wait_for(f"{log}:ends") == result.id


def test_a_soft_time_limit_in_the_wait_leaves_no_trace(worker, celery_servers, log):
    with FairLock(f"work:{log}"), celery_servers[0].client() as client:
        result = tasks.waits.apply_async([log], soft_time_limit=2)
        with pytest.raises(SoftTimeLimitExceeded):
            result.get(timeout=records.WAIT)
        until(lambda: not client.zcard(keys.queue_key(f"rlock:work:{log}")))
    assert not client.exists(f"rlock:work:{log}")
    assert not records.count(f"{log}:starts")


@pytest.mark.lengthy
@pytest.mark.parametrize("task", [tasks.retries_itself, tasks.is_retried], ids=["retry", "autoretry_for"])
def test_a_retry_of_the_tasks_own_is_not_skipped(worker, log, task):
    result = task.delay(log)
    assert records.wait_for(f"retried:{result.id}")
    with FairLock(f"work:{log}", wait_time=20):
        assert records.wait_for(f"deferred:{result.id}")
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert not overlaps(starts(log, 2))


@pytest.mark.parametrize("point", ["before its run", "after its run", "on_success", "after_return"])
def test_a_retry_outside_of_the_run_is_not_lost(worker, log, point):
    with FairLock(f"work:{log}"):
        result = tasks.retries_outside.delay(log, point)
        assert records.wait_for(f"deferred:{result.id}")  # so it has headers that count how often it was sent again
    go(log)  # not before the lock is free: a retry that finds it held is sent again, with such headers
    if point != "before its run":
        assert records.wait_for(f"{log}:headers")
    assert records.wait_for(f"{log}:headers") == ["rlock_place", "theirs"]
