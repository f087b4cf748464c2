"""The Celery app of the tests: ``python -m celery -A tests.celery_app worker``.

The environment says where its servers are; ``use()`` says it to a process that has started them itself.
"""

import faulthandler
import json
import os
from functools import cache
from typing import Any

from billiard.pool import Pool
from celery import Celery
from celery.signals import task_postrun, task_retry, worker_init, worker_process_init, worker_ready
from kombu import Exchange, Queue, serialization

from django_rlock._tasks import holders
from django_rlock.signals import task_deduplicated, task_deferred
from tests.celery_app.records import record
from tests.celery_app.workers import use_temporary_folder

VISIBILITY = "RLOCK_TEST_VISIBILITY"
"""The broker's visibility timeout, in seconds, and what has a worker look at it as often as that takes."""

BLIND = "RLOCK_TEST_BLIND"
"""Set for a worker in which Celery's pool does not notice that a child has ended."""

RABBIT, RABBIT_QUEUES = "RLOCK_TEST_RABBIT", "RLOCK_TEST_RABBIT_QUEUES"
"""The address of a RabbitMQ to take for messages, and what queues are made there: classic, quorum or topic."""

POISONED = "RLOCK_TEST_POISONED"
"""The name of a quorum queue of RabbitMQ that dead-letters a message after two deaths."""

MACHINE = "RLOCK_TEST_MACHINE"
"""What a worker takes for its machine; no other one knows then whether its processes live."""

WORKERS_CANNOT_ENCODE = "RLOCK_TEST_CANNOT_ENCODE"
"""Set for a worker that decodes arguments in the tests' own format, and cannot encode them."""

SQS = "RLOCK_TEST_SQS"
"""The port of an SQS on this machine to take for messages."""

app = Celery("tests.celery_app", include=["tests.celery_app.tasks", "tests.celery_app.endings"], set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=3,  # a worker whose broker is gone for good, ends
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=True,
    accept_content=["json", "complex"],
)


def _encode(value) -> str:
    """JSON, with complex numbers as well."""
    if WORKERS_CANNOT_ENCODE in os.environ:
        raise ValueError("This worker cannot encode arguments.")
    return json.dumps(value, default=lambda number: {"complex": [number.real, number.imag]})


def _decode(text):
    return json.loads(text, object_hook=lambda found: complex(*found["complex"]) if "complex" in found else found)


serialization.register("complex", _encode, _decode, "application/x-complex", "utf-8")


def use(base_url: str) -> None:
    """Take the databases 1 and 2 of a server for the messages and the results."""
    app.conf.update(broker_url=f"{base_url}/1", result_backend=f"{base_url}/2")


def use_rabbit(other: Celery, url: str, queues: str) -> None:
    """Have an app take such queues of a RabbitMQ for the messages: with "topic", quorum queues behind topic exchanges,
    where the broker itself delays messages."""
    kind = "quorum" if queues == "topic" else queues
    other.conf.update(
        broker_url=url,
        task_default_queue_type=kind,
        task_create_missing_queue_type=kind,
        task_default_exchange_type="topic",
        task_create_missing_queue_exchange_type="topic" if queues == "topic" else None,
    )


def poisoned_queue(name: str) -> Queue:
    """A quorum queue that dead-letters messages to a queue of its own."""
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    arguments |= {"x-queue-type": "quorum", "x-delivery-limit": 2}
    return Queue(name, Exchange(name), routing_key=name, queue_arguments=arguments)


def use_sqs(other: Celery, port: str) -> None:
    """Have an app take the queues of an SQS on this machine for the messages."""
    other.conf.update(
        broker_url=f"sqs://key:secret@127.0.0.1:{port}//",
        broker_transport_options={"region": "us-east-1", "polling_interval": 0.1, "wait_time_seconds": 0},
        worker_enable_remote_control=False,
    )


DEDUPLICATES = "RLOCK_TEST_DEDUPLICATES"
"""Set for a worker in which Celery itself drops a redelivered message whose result says that it has succeeded."""

app.conf.worker_deduplicate_successful_tasks = DEDUPLICATES in os.environ

SOFT_SHUTDOWN = "RLOCK_TEST_SOFT_SHUTDOWN"
"""For how many seconds a worker lets runs go on that are to end at once."""

app.conf.worker_soft_shutdown_timeout = float(os.environ.get(SOFT_SHUTDOWN, "0"))

if "RLOCK_TEST_CELERY" in os.environ:
    use(os.environ["RLOCK_TEST_CELERY"])

if RABBIT in os.environ:
    use_rabbit(app, os.environ[RABBIT], os.environ[RABBIT_QUEUES])

if POISONED in os.environ:
    app.conf.task_queues = [poisoned_queue(os.environ[POISONED])]

if SQS in os.environ:
    use_sqs(app, os.environ[SQS])

if VISIBILITY in os.environ:
    app.conf.broker_transport_options = {
        **(app.conf.broker_transport_options or {}),
        "visibility_timeout": float(os.environ[VISIBILITY]),
        "unacked_restore_interval": 0.2,
        "unacked_restore_throttle": 1,
    }


@worker_ready.connect
def _tell_ready(sender, **_):
    record("ready:" + sender.hostname, "ready")


@task_retry.connect
def _tell_retry(request, reason, **_):
    record("retried:" + request.id, type(reason.exc).__name__)


def _tell_end(task_id, state, **_):
    record("ended:" + task_id, state)


def _tell_deferred(task_id, reason, **_):
    record("deferred:" + task_id, reason)


def _tell_deduplicated(task_id, reason, **_):
    record("deduplicated:" + task_id, reason)


@worker_init.connect
def _listen_in_workers(**_):
    task_postrun.connect(_tell_end)
    task_deferred.connect(_tell_deferred)
    task_deduplicated.connect(_tell_deduplicated)


worker_process_init.connect(use_temporary_folder)


@worker_init.connect
def _move_to_another_machine(**_):
    if MACHINE in os.environ:
        holders._machine = cache(lambda: os.environ[MACHINE])


@worker_init.connect
def _keep_the_pool_blind(**_):
    if BLIND in os.environ:
        Pool._join_exited_workers = lambda *_, **__: False  # type: ignore[attr-defined]


@worker_process_init.connect
def _tell_where_it_stands(**_):
    faulthandler.enable(2)  # to whoever sends SIGABRT
