"""The core of this suite on RabbitMQ, with both kinds of its queues; the locks stay on Redis."""

import os
import signal

import pytest
from celery import Celery

from django_rlock import FairLock
from tests.celery_app import MACHINE, POISONED, RABBIT, RABBIT_QUEUES, app, poisoned_queue, records, use_rabbit
from tests.celery_app.records import overlaps, starts
from tests.forms import long
from tests.tasks.test_losses import forget, go

pytestmark = pytest.mark.usefixtures("locks_of_workers")

DUPLICATES = 10


@pytest.fixture(params=["classic", "quorum", "topic"])
def queues(request):
    return request.param


@pytest.fixture
def start_worker(start_worker, rabbit, queues):
    """Starts a worker on a queue of RabbitMQ."""

    def start(name, *options, **environ):
        environ |= {RABBIT: rabbit.url, RABBIT_QUEUES: queues}
        queue = environ.get(POISONED, f"{name}-{queues}")
        return start_worker(queue, "--pool", "prefork", *options, **environ)

    return start


@pytest.fixture
def publisher(celery_servers, rabbit, queues):
    with Celery("publisher", set_as_current=False) as made:
        made.conf.update(result_backend=app.conf.result_backend)
        use_rabbit(made, rabbit.url, queues)
        yield made


@pytest.fixture
def send(publisher):
    """Sends a task of the tests' app to the queue of a worker."""

    def send(worker, name, *args):
        return publisher.send_task(f"tests.celery_app.tasks.{name}", args, queue=worker.queue)

    return send


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["waits", "retries"])
def test_duplicates_run_once_at_a_time(start_worker, send, log, name):
    with start_worker("rabbits", "-c", "3") as worker:
        results = [send(worker, name, log) for _ in range(DUPLICATES)]
        assert [result.get(timeout=records.WAIT) for result in results] == [f"done {log}"] * DUPLICATES
    runs = starts(log, DUPLICATES)
    assert not overlaps(runs)
    assert {run["id"] for run in runs} == {result.id for result in results}


@pytest.mark.parametrize("queues", [*long("classic", "quorum"), "topic"])
@pytest.mark.parametrize("name", ["retries_itself", "retries_in_half_a_second"])
def test_its_own_retry_comes_back_to_its_queue(start_worker, send, log, name):
    with start_worker("rabbits", "-c", "1") as worker:
        assert send(worker, name, log).get(timeout=records.WAIT) == f"done {log}"


@pytest.mark.parametrize("queues", [*long("classic"), "quorum", *long("topic")])
def test_a_killed_child_loses_no_work(start_worker, send, log):
    with start_worker("rabbits", "-c", "2") as worker:
        result = send(worker, "survives", log)
        (killed,) = starts(log, 1)
        os.kill(killed["pid"], signal.SIGKILL)
        forget(log, killed)
        (run,) = starts(log, 1)
        go(log)
        assert result.get(timeout=records.WAIT) == f"done {log}"
    assert run["id"] == killed["id"]
    assert not overlaps([run])
    assert not records.count(f"{log}:starts")


@pytest.mark.parametrize("queues", ["classic", *long("quorum", "topic")])
def test_the_message_of_a_killed_worker_is_not_skipped(start_worker, send, log):
    with start_worker("rabbits", "-c", "1") as victim:
        result = send(victim, "survives", log)
        (killed,) = starts(log, 1)
        victim.kill()
    forget(log, killed)
    with FairLock(f"work:{log}", wait_time=records.WAIT), start_worker("rabbits", "-c", "1"):
        assert records.wait_for(f"retried:{result.id}") == "LockTimeoutError"
        assert not records.count(f"{log}:starts")
    with start_worker("rabbits", "-c", "1"):
        go(log)
        assert result.get(timeout=records.WAIT) == f"done {log}"
    assert len(starts(log, 1)) == 1
    assert not records.count(f"{log}:starts")


@pytest.mark.thorough
@pytest.mark.parametrize("queues", ["quorum"])
def test_a_message_that_kills_each_machine_is_dead_lettered(start_worker, rabbit, publisher, log):
    name = f"poisoned-{log}"
    publisher.conf.task_queues = [poisoned_queue(name)]
    with publisher.connection_for_write() as connection:
        dead = connection.SimpleQueue(f"{name}-dead", queue_opts={"durable": True, "exclusive": False})
        result = publisher.send_task("tests.celery_app.tasks.takes_its_container_along", [log], queue=name)
        for number in range(3):
            with start_worker(name, "-c", "1", **{POISONED: name, MACHINE: f"machine{number}"}) as worker:
                starts(log, 1)
                worker.process.wait(records.WAIT)
        with start_worker(name, "-c", "1", **{POISONED: name, MACHINE: "last"}):
            assert dead.get(timeout=records.WAIT).headers["id"] == result.id
    assert not records.count(f"{log}:starts")
