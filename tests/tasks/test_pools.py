"""Every pool, and how it ends its workers: children that are replaced, warm and cold shutdowns."""

import signal

import pytest

from django_rlock import FairLock
from tests.celery_app import app, records, tasks
from tests.celery_app.records import overlaps, starts, until
from tests.faults.storm import Renewal
from tests.forms import long
from tests.tasks.test_losses import deliver_again, forget, go

pytestmark = pytest.mark.usefixtures("locks_of_workers")

DUPLICATES = 4
"""Of one task, in each worker."""


@pytest.mark.parametrize("pool", ["solo", *long("gevent", "eventlet")])
def test_runs_exclude_those_of_other_workers(worker, start_worker, log, pool):
    if pool != "solo":
        pytest.importorskip(pool)
    with start_worker(pool, "--pool", pool, "-c", "4") as other:
        queues = [worker.queue, other.queue] * DUPLICATES
        results = [tasks.waits.apply_async([log], queue=queue) for queue in queues]
        assert [result.get(timeout=records.WAIT) for result in results] == [f"done {log}"] * len(queues)
        runs = starts(log, len(queues))
        assert not overlaps(runs)
        assert len({run["pid"] for run in runs}) > 1

        first = tasks.skips.apply_async([log, True], queue=other.queue)
        starts(log, 1)
        for queue in [worker.queue] if pool == "solo" else [worker.queue, other.queue]:
            assert tasks.skips.apply_async([log], queue=queue).get(timeout=records.WAIT) is None
        go(log)
        assert first.get(timeout=records.WAIT) == f"done {log}"


@pytest.mark.thorough  # Celery may take five seconds to notice that a child has ended
def test_a_child_that_is_replaced_leaves_nothing_behind(start_worker, log):
    with start_worker("brief", "--pool", "prefork", "-c", "1", "--max-tasks-per-child", "1") as brief:
        for _ in range(2):
            result = tasks.raises_or_runs.apply_async([log], queue=brief.queue)
            assert result.get(timeout=records.WAIT) == f"done {log}"
        assert len({run["pid"] for run in starts(log, 2)}) == 2
        assert "by force" not in brief.last_lines(1000)


def test_a_warm_shutdown_keeps_the_lock_until_the_run_ends(start_worker, celery_servers, log):
    lock = FairLock(f"work:{log}", wait_time=0)
    with start_worker("warm", "--pool", "prefork", "-c", "1") as warm, celery_servers[0].client() as client:
        result = tasks.survives.apply_async([log], queue=warm.queue)
        starts(log, 1)
        warm.process.terminate()
        until(lambda: "Warm shutdown" in warm.last_lines(100))
        until(Renewal(lambda: client.pttl(f"rlock:{lock.name}") / 1000).seen)
        assert not lock.acquire()
        go(log)
        warm.process.wait(records.WAIT)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    with lock:
        pass


def test_a_cold_shutdown_loses_no_work(worker, start_worker, log):
    with start_worker(f"cold-{log}", "--pool", "prefork", "-c", "1") as cold:
        result = tasks.survives.apply_async([log], queue=cold.queue)
        (ended,) = starts(log, 1)
        # Celery cancels only runs whose start the worker has noticed, and waits for the others.
        until(lambda: (app.control.inspect([cold.hostname]).active() or {}).get(cold.hostname))
        cold.process.send_signal(signal.SIGQUIT)
        cold.process.wait(records.WAIT)
    forget(log, ended)
    app.control.add_consumer(cold.queue, destination=[worker.hostname], reply=True)
    deliver_again()
    (run,) = starts(log, 1)
    go(log)
    assert result.get(timeout=records.WAIT) == f"done {log}"
    assert run["id"] == ended["id"]
    assert run["pid"] != ended["pid"]
    assert not overlaps([run])
