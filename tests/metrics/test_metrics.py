"""The metrics of real locks, views and tasks, and their labels."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.urls import path
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from django_rlock import FairLock, LockUnavailableError, MultiLock, PermitExpirableSemaphore, distributed_lock, rlock
from django_rlock.celery import LockedTask
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.metrics import Event, Record, feed, opentelemetry, prometheus
from django_rlock.signals import lock_acquired, lock_released
from tests.background import renew_now, settle
from tests.eventually import PATIENCE, UNTIL_SERVED, eventually
from tests.metrics.conftest import Measured
from tests.operators import free_by_force


@distributed_lock("stock:<pk>", wait_time=0)
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("sold")


@distributed_lock("stock:<pk>", wait_time=0)
async def abuy(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("sold")


urlpatterns = [path("buy/<int:pk>/", buy), path("abuy/<int:pk>/", abuy)]


@pytest.fixture
def app():
    with Celery("measured", broker="memory://", set_as_current=False) as made:
        made.conf.task_always_eager = True
        yield made


# --- locks -----------------------------------------------------------------------------------------------------------


def test_a_lock_by_its_name_is_counted_and_measured(measured: Measured) -> None:
    told: list[dict[str, Any]] = []

    def receive(**given: Any) -> None:
        told.append(given)

    lock_acquired.connect(receive)
    lock_released.connect(receive)
    with rlock("stock:42"):
        assert measured.value("rlock_held") == 1
        assert measured.value("rlock_hold_seconds_count") is None
    assert measured.value("rlock_held") == 0
    assert measured.value("rlock_acquisitions_total", outcome="acquired") == 1
    assert measured.value("rlock_wait_seconds_count", outcome="acquired") == 1
    assert measured.value("rlock_wait_seconds_sum", outcome="acquired") == told[0]["waited"]
    assert measured.value("rlock_hold_seconds_count") == 1
    assert measured.value("rlock_hold_seconds_sum") == told[1]["held"]


def test_a_re_entered_lock_counts_as_one_hold(measured: Measured) -> None:
    with rlock("stock:42") as lock, lock:
        assert measured.value("rlock_held") == 1
    assert measured.value("rlock_acquisitions_total", outcome="acquired") == 1
    assert measured.value("rlock_acquisitions_total", outcome="reentered") == 1
    assert measured.value("rlock_hold_seconds_count") == 1


def test_a_wait_is_shown_while_it_lasts_and_counted_afterwards(measured: Measured) -> None:
    with ThreadPoolExecutor(1) as pool:
        with rlock("stock:42", kind="rlock"):
            waiting = pool.submit(rlock("stock:42", kind="rlock", lease_time=60, owner="another").acquire)
            eventually(WAITS.snapshot)
            assert measured.value("rlock_waiting", kind="rlock") == 1
            assert measured.value("rlock_acquisitions_total", kind="rlock", outcome="acquired") == 1
        assert waiting.result(UNTIL_SERVED)
        free_by_force("stock:42")
    assert measured.value("rlock_waiting", kind="rlock") == 0
    assert measured.value("rlock_acquisitions_total", kind="rlock", outcome="acquired") == 2
    assert (measured.value("rlock_wait_seconds_sum", kind="rlock", outcome="acquired") or 0) > 0
    HOLDS.clear()


def test_a_wait_in_vain_is_counted(measured: Measured) -> None:
    with rlock("stock:42", owner="another owner"):
        assert not rlock("stock:42").acquire(blocking=False)
    assert measured.value("rlock_acquisitions_total", outcome="timed_out") == 1
    assert measured.value("rlock_wait_seconds_count", outcome="timed_out") == 1


@pytest.mark.parametrize("names", [["stock:42"], ["stock:42", "stock:43"]], ids=len)
def test_a_server_that_is_away_is_counted(measured: Measured, own_server: Any, names: list[str]) -> None:
    own_server().stop()
    with pytest.raises(LockUnavailableError):
        rlock(*names, wait_time=0).acquire()
    assert measured.value("rlock_acquisitions_total", outcome="unavailable") == 1
    assert measured.value("rlock_wait_seconds_count", outcome="unavailable") == 1


def test_a_lost_hold_is_counted_and_no_longer_held(measured: Measured, redis_client: Any) -> None:
    lock = rlock("stock:42")
    lock.acquire()
    assert measured.value("rlock_held") == 1
    assert measured.value("rlock_lost_total") == 0, "Prometheus sees no increase of what was not there"
    redis_client.delete("rlock:stock:42")
    renew_now()
    eventually(lambda: lock.lost)
    assert measured.value("rlock_lost_total") == 1
    assert measured.value("rlock_held") == 0
    HOLDS.clear()


def test_a_forced_release_is_counted(measured: Measured) -> None:
    rlock("stock:42", owner="another owner", lease_time=60).acquire()
    assert rlock("stock:42").force_release()
    assert measured.value("rlock_force_released_total") == 1
    HOLDS.clear()


def test_members_of_a_multi_lock_count_each(measured: Measured) -> None:
    locks = FairLock("stock:1"), FairLock("stock:2")
    with MultiLock(*locks):
        assert measured.value("rlock_held") == 2
    assert measured.value("rlock_held") == 0
    assert measured.value("rlock_acquisitions_total", outcome="acquired") == 2
    assert measured.value("rlock_hold_seconds_count") == 2


def test_permits_that_are_renewed_count_as_held(measured: Measured) -> None:
    semaphore = PermitExpirableSemaphore("printers")
    semaphore.try_set_permits(2)
    permit = semaphore.acquire(renewed=True)
    assert permit is not None
    assert measured.value("rlock_held", kind="permit") == 1
    permit.release()
    assert measured.value("rlock_held", kind="permit") == 0


# --- templates -------------------------------------------------------------------------------------------------------


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("view", ["buy", "abuy"])
def test_a_view_has_its_template_and_never_a_name(measured: Measured, client: Any, view: str) -> None:
    client.post(f"/{view}/7000/")
    few = {(name, *sorted(labels.items())) for name, labels, _ in measured.samples()}
    for pk in range(7001, 7010):
        assert client.post(f"/{view}/{pk}/").status_code == 200
    with rlock("stock:7010", owner="another owner"):
        assert client.post(f"/{view}/7010/").status_code == 423
    template = {"template": "stock:<pk>"}
    assert measured.value("rlock_acquisitions_total", outcome="acquired", **template) == 10
    assert measured.value("rlock_acquisitions_total", outcome="timed_out", **template) == 1
    assert measured.value("rlock_hold_seconds_count", **template) == 10
    shown = [(name, *sorted(labels.items())) for name, labels, _ in measured.samples()]
    assert few < set(shown)
    assert not any("70" in text for _, *labels in shown for label in labels for text in label)


def test_each_of_several_locks_has_its_own_template(measured: Measured) -> None:
    @distributed_lock("to:<b>", "from:<a>", lambda a, b: ["audit"])
    def move(a: int, b: int) -> None:
        for template in ("to:<b>", "from:<a>", ""):
            assert measured.value("rlock_held", template=template) == 1

    move(1, 2)
    for template in ("to:<b>", "from:<a>", ""):
        assert measured.value("rlock_acquisitions_total", outcome="acquired", template=template) == 1
        assert measured.value("rlock_hold_seconds_count", template=template) == 1


@pytest.mark.django_db
def test_a_streaming_response_releases_under_its_template(measured: Measured) -> None:
    """Closing it ends its request, where Django closes old database connections."""

    @distributed_lock("export:<pk>")
    def export(request: HttpRequest, pk: int) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"rows"]))

    response = export(RequestFactory().get("/export/1/"), pk=1)
    assert measured.value("rlock_held", template="export:<pk>") == 1
    response.close()
    assert measured.value("rlock_hold_seconds_count", template="export:<pk>") == 1


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_has_its_template(measured: Measured, app: Celery) -> None:
    @app.task(base=LockedTask, lock_key="report:<account_id>", shared=False)
    def report(account_id: int) -> str:
        return "done"

    assert report.delay(7).get() == "done"
    assert report(8) == "done"
    with rlock("report:9", owner="another run"):
        assert not report.delay(9).get()
    template = {"template": "report:<account_id>"}
    assert measured.value("rlock_acquisitions_total", outcome="acquired", **template) == 2
    assert measured.value("rlock_acquisitions_total", outcome="timed_out", **template) == 1
    assert measured.value("rlock_tasks_not_run_total", outcome="skipped", **template) == 1


@pytest.mark.parametrize(
    ("options", "template"),
    [
        ({}, "shop.job:<all arguments>"),
        ({"lock_key": lambda task, pk: f"job:{pk}"}, ""),
        ({"lock_key": "job:<pk>", "lock_scope": "until_start"}, "job:<pk>"),
        ({"lock_key": ["job:<pk>"]}, "job:<pk>"),
    ],
    ids=["all arguments", "function", "until_start", "list"],
)
def test_a_tasks_template_has_no_arguments_and_no_id(
    measured: Measured, app: Celery, options: dict[str, Any], template: str
) -> None:
    @app.task(base=LockedTask, name="shop.job", shared=False, **options)
    def job(pk: int) -> int:
        return pk

    for pk in (1, 2):
        job.delay(pk).get()
    assert measured.value("rlock_acquisitions_total", outcome="acquired", template=template) == 2


def test_a_message_that_is_not_sent_is_counted(measured: Measured, app: Celery) -> None:
    app.conf.task_always_eager = False

    @app.task(base=LockedTask, lock_key="job:<pk>", lock_scope="queue", shared=False)
    def job(pk: int) -> int:
        return pk

    assert job.delay(1).id == job.delay(1).id
    assert measured.value("rlock_tasks_not_run_total", outcome="deduplicated", template="job:<pk>") == 1


# --- how it is recorded ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_signals_as_before")
def test_callers_take_no_mutex_of_an_exporter() -> None:
    """A caller that is interrupted inside a lock call would leave it locked."""
    recorded: list[tuple[str, int]] = []

    def record_of(event: Event) -> Record:
        return lambda labels, value: recorded.append((event.name, threading.get_ident()))

    feed(record_of)
    with rlock("stock:42"):
        pass
    settle()
    assert {name for name, _ in recorded} == {"rlock.acquisitions", "rlock.wait", "rlock.lost", "rlock.hold"}
    assert threading.get_ident() not in {thread for _, thread in recorded}


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize(
    ("exporter", "where"),
    [(prometheus, CollectorRegistry), (opentelemetry, lambda: MeterProvider(shutdown_on_exit=False))],
    ids=["prometheus", "opentelemetry"],
)
def test_to_turn_it_on_twice_counts_once(exporter: Any, where: Any) -> None:
    target, before = where(), len(lock_acquired.receivers)
    exporter.instrument(target)
    exporter.instrument(target)
    assert len(lock_acquired.receivers) == before + 1


# --- several processes -----------------------------------------------------------------------------------------------

PREFORK = """
import os, sys
import django
django.setup()
from django_rlock.metrics.prometheus import instrument
instrument()
from django_rlock import rlock
from django_rlock._core.callbacks import flush
with rlock("stock"):
    assert flush(60)  # as a server does that loads the project before it forks
assert flush(60)  # a fork while a metric is counted would leave prometheus-client's mutex taken in the child
for number in range(2):
    if os.fork() == 0:
        with rlock(f"stock:{number}"):
            assert flush(60)
        assert flush(60)
        os._exit(0)
while True:
    try:
        assert os.wait()[1] == 0
    except ChildProcessError:
        break
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


@pytest.mark.usefixtures("redis_client")
def test_prefork_servers_add_up(tmp_path: Path) -> None:
    """As docs/monitoring.md says of the multiprocess mode: counters and histograms of all processes, no gauges."""
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-W", "ignore", "-c", PREFORK]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=5 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    labels = 'alias="default",kind="fair"'
    assert f'rlock_acquisitions_total{{{labels},outcome="acquired",template=""}} 3.0' in done.stdout
    assert f'rlock_hold_seconds_count{{{labels},template=""}} 3.0' in done.stdout
    assert "rlock_held" not in done.stdout
