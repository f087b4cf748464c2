"""A server for messages, results, records and locks, a worker on it, and a server of locks that may break."""

import gc
import os
import uuid

import pytest

from django_rlock.middleware import hear_of_ends
from example_project.embedded import EmbeddedServer
from tests import celery_app
from tests.celery_app import records
from tests.celery_app.workers import Worker
from tests.programs import started
from tests.rabbitmq import RabbitServer
from tests.sqs import Sqs, missing

hear_of_ends()  # of tasks, too: a worker has loaded Celery when Django starts, but pytest has not


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Show what the workers said, where a test failed."""
    report = yield
    if report.failed:
        for worker in Worker.running:
            report.sections.append((f"Log of worker {worker.hostname}", worker.last_lines(200)))
    return report


@pytest.fixture(scope="session")
def celery_servers():
    """The servers of the workers: one that lasts, and one for locks that a test may break."""
    with EmbeddedServer(port=0) as server, EmbeddedServer() as fragile, pytest.MonkeyPatch.context() as patch:
        base = server.url.removesuffix("/0")
        patch.setenv("RLOCK_TEST_CELERY", base)
        patch.setenv("RLOCK_TEST_LOCKS", f"{base}/0")
        patch.setenv("RLOCK_TEST_RECORDS", f"{base}/3")
        patch.setenv("RLOCK_TEST_FRAGILE", fragile.url)
        celery_app.use(base)
        yield server, fragile
        gc.collect()  # results unsubscribe when they are deleted, which takes a server
        celery_app.app.close()
        records.client().close()
        records.client.cache_clear()


@pytest.fixture
def fragile(celery_servers):
    """The server of the lock alias "fragile"; it may be killed and started again."""
    return celery_servers[1]


@pytest.fixture
def start_worker(celery_servers, tmp_path_factory):
    """Starts a worker: the name of its queue, the command's options and beginning, and variables of its environment."""

    def start(queue, *options, before=(), **environ):
        log = tmp_path_factory.mktemp(queue) / "worker.log"
        return Worker(queue, *options, log=log, environ=environ, before=before)

    return start


@pytest.fixture(scope="session")
def worker(celery_servers, tmp_path_factory):
    """The worker of most tests: four processes."""
    with Worker(
        "celery", "--pool", "prefork", "-c", "4", log=tmp_path_factory.mktemp("worker") / "log", environ={}
    ) as started:
        yield started


@pytest.fixture(scope="session")
def busy(celery_servers, tmp_path_factory):
    """A worker with one process, to be kept busy; Celery drops there what has succeeded before."""
    log, environ = tmp_path_factory.mktemp("busy") / "log", {celery_app.DEDUPLICATES: "1"}
    with Worker("busy", "--pool", "prefork", "-c", "1", log=log, environ=environ) as started:
        yield started


@pytest.fixture(scope="module")
def rabbit():
    yield from started(RabbitServer)


@pytest.fixture(scope="module")
def sqs():
    if missing():
        pytest.skip(f"not installed: {', '.join(missing())}")
    with Sqs() as server:
        yield server


@pytest.fixture
def log():
    """A name for the records, and the lock, of one test."""
    return uuid.uuid4().hex


@pytest.fixture
def locks_of_workers(settings, celery_servers):
    """Have this process lock on the workers' server."""
    cache = {**settings.CACHES["default"], "LOCATION": os.environ["RLOCK_TEST_LOCKS"]}
    settings.CACHES = {**settings.CACHES, "default": cache}
