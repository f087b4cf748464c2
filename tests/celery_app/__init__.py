"""The Celery app of the tests: ``python -m celery -A tests.celery_app worker``.

The environment says where its servers are; ``use()`` says it to a process that has started them itself.
"""

import os

from celery import Celery
from celery.signals import task_retry, worker_ready

from tests.celery_app.records import record

LOCKS, FRAGILE, RECORDS = "RLOCK_TEST_LOCKS", "RLOCK_TEST_FRAGILE", "RLOCK_TEST_RECORDS"

app = Celery("tests.celery_app", include=["tests.celery_app.tasks"], set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=3,  # a worker whose broker is gone for good, ends
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=True,
)


def use(base_url: str) -> None:
    """Take the databases 1 and 2 of a server for the messages and the results."""
    app.conf.update(broker_url=f"{base_url}/1", result_backend=f"{base_url}/2")


if "RLOCK_TEST_CELERY" in os.environ:
    use(os.environ["RLOCK_TEST_CELERY"])


@worker_ready.connect
def _tell_ready(sender, **_):
    record("ready:" + sender.hostname, "ready")


@task_retry.connect
def _tell_retry(request, reason, **_):
    record("retried:" + request.id, type(reason.exc).__name__)
