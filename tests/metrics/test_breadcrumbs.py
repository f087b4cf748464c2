"""Breadcrumbs of Sentry: an error's event says which locks were waited for, lost or freed by force."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.apps import apps

from django_rlock import LockLostError, LockTimeoutError, LockUnavailableError, RLock, metrics
from django_rlock.locks import statistics
from django_rlock.locks.statistics import lock_waited
from django_rlock.signals import lock_acquired, lock_force_released, lock_lost, lock_timed_out, lock_unavailable
from tests.background import settle
from tests.bindings import BlockingBinding as Binding
from tests.eventually import eventually

sentry_sdk = pytest.importorskip("sentry_sdk", reason="is in the dependency group test")


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    apps.get_app_config("django_rlock").ready()  # finds Sentry's SDK
    yield
    for signal in lock_waited, lock_timed_out, lock_unavailable, lock_lost, lock_force_released:
        signal.disconnect(dispatch_uid=metrics.BREADCRUMBS)


@pytest.fixture
def crumbs() -> Iterator[Any]:
    """Returns those of an event that is captured now."""
    events: list[Any] = []
    sentry_sdk.init(
        "http://key@127.0.0.1:1/1", before_send=lambda event, _: events.append(event), default_integrations=False
    )

    def captured() -> list[Any]:
        sentry_sdk.capture_message("now")
        found = events.pop()["breadcrumbs"]["values"]
        return [each for each in found if each.get("category") == "lock"]

    with sentry_sdk.isolation_scope():
        yield captured
    sentry_sdk.init()


async def test_a_wait(binding: Binding, crumbs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "SLOW_WAIT", 0.0)
    async with binding.inside(RLock("stock:42")):
        pass
    [crumb] = crumbs()
    assert crumb["level"] == "info"
    assert crumb["message"].startswith("Waited 0.0")
    assert crumb["data"]["name"] == "stock:42"
    assert crumb["data"]["kind"] == "rlock"


def test_short_waits_leave_no_breadcrumbs(crumbs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "SLOW_WAIT", 10)
    assert not lock_acquired.receivers  # a receiver would cost each acquire some time
    with (
        RLock("stock:42"),
        RLock("stock:42"),
        pytest.raises(LockTimeoutError),
        RLock("stock:42", owner="a", wait_time=0),
    ):
        pass
    [crumb] = crumbs()
    assert crumb["level"] == "warning"
    assert crumb["message"].startswith("Lock 'stock:42' was still held after 0.0")


def test_a_job_that_only_takes_a_lock_is_refused() -> None:
    """Sentry wraps the jobs of pools."""
    sentry_sdk.init()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="a job of a pool that does nothing"):
        pool.submit(RLock("stock:42").acquire).result()


def test_a_server_that_is_away(crumbs: Any, settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    with pytest.raises(LockUnavailableError):
        RLock("stock:42").acquire()
    [crumb] = crumbs()
    assert crumb["level"] == "error"
    assert "Connection refused" in crumb["data"]["reason"]


def test_a_lock_that_is_freed_by_force(crumbs: Any) -> None:
    """Its holder loses it, which another thread notices; but the breadcrumb is where the lock was taken."""
    lock = RLock("stock:42")
    lock.acquire()
    threading.Thread(target=RLock("stock:42").force_release, kwargs={"reason": "stuck"}).start()
    eventually(lambda: lock.lost)
    settle()
    [crumb] = crumbs()
    assert crumb["level"] == "error"
    assert crumb["message"].startswith("Lock 'stock:42' was lost: ")
    with pytest.raises(LockLostError):
        lock.release()


def test_who_frees_a_lock(crumbs: Any) -> None:
    held = RLock("stock:42", owner="another")
    held.acquire()
    RLock("stock:42").force_release(reason="stuck")
    with pytest.raises(LockLostError):
        held.release()
    assert "Lock 'stock:42' was freed by force: stuck" in [crumb["message"] for crumb in crumbs()]
