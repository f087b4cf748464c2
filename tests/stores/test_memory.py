"""Locks in the process: the store "memory", and projects that name no place for their locks and have no Redis."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.checks import ERROR, WARNING
from django.core.exceptions import ImproperlyConfigured

from django_rlock import FairLock, RLock, rlock
from django_rlock import _memory as memory
from django_rlock._core import foreign
from django_rlock._transport.servers import get_client
from django_rlock.checks import check_deployment, check_settings
from django_rlock.inspection import lock_info
from tests.bindings import BlockingBinding as Binding
from tests.bindings import visit
from tests.forking import in_child

pytest.importorskip("lupa", reason="lupa, which fakeredis needs, has no wheels for this Python")
PRIVATE = ["locmem.LocMemCache", "dummy.DummyCache", "filebased.FileBasedCache"]


@pytest.fixture(params=PRIVATE)
def bare(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> None:
    """A project that has no Redis and says nothing of its locks."""
    entry = {"BACKEND": f"django.core.cache.backends.{request.param}", "LOCATION": str(tmp_path)}
    settings.CACHES = {"default": entry}
    settings.RLOCK = {}


@pytest.fixture
def no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that Django's test runner has not set up."""
    monkeypatch.setattr("django_rlock._transport.servers.is_test", lambda: False)


@pytest.fixture
def in_memory(settings: Any) -> Iterator[None]:
    settings.CACHES = {"default": {"BACKEND": f"django.core.cache.backends.{PRIVATE[0]}"}}
    settings.RLOCK = {"default": {"STORE": "memory"}}
    yield
    settings.RLOCK = {"default": {"STORE": "memory"}}
    memory._own.value.server("memory://").flush()


async def test_locks_in_memory(binding: Binding, in_memory: None) -> None:
    async with binding.inside(FairLock("stock:42")):
        assert get_client().exists("rlock:stock:42")
        assert lock_info("stock:42")
        waiting = binding.start(visit, binding, FairLock("stock:42"))
    await binding.result(waiting)
    assert not get_client().exists("rlock:stock:42")


def test_a_forked_process_has_locks_of_its_own_and_says_so(in_memory: None, caplog: pytest.LogCaptureFixture) -> None:
    with RLock("stock:42"):
        in_child(lambda: take_it(caplog))
    assert not caplog.records


def take_it(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert RLock("stock:42").acquire(blocking=False)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("django_rlock.stores", "WARNING")
    assert "This process was forked, and keeps locks in its own memory" in record.getMessage()


def test_processes_of_a_parallel_test_run_are_meant_to_have_their_own(
    in_memory: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django.test.runner._worker_id", 1)
    in_child(lambda: in_silence(caplog))


def in_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert RLock("stock:42").acquire(blocking=False)
    assert not caplog.records


def test_workers_would_hold_one_lock_at_once(in_memory: None) -> None:
    assert check_settings() == []
    [message] = check_deployment()
    assert (message.id, message.level) == ("django_rlock.E003", ERROR)


@pytest.mark.parametrize("option", [{"CACHE": "default"}, {"NODES": ["redis://a", "redis://b"]}, {"REPLICA_ACKS": 1}])
def test_one_place_only(settings: Any, option: dict[str, Any]) -> None:
    settings.RLOCK = {"default": {"STORE": "memory", **option}}
    with pytest.raises(ImproperlyConfigured, match=r"RLOCK\['default'\] has both 'STORE': 'memory' and"):
        rlock("stock:42").acquire()


def test_without_the_extra(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "find_spec", lambda _: None)
    settings.RLOCK = {"default": {"STORE": "memory"}}
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-rlock\[testing\]'"):
        rlock("stock:42").acquire()
    assert [message.id for message in check_settings()] == ["django_rlock.E001"]


def test_a_project_without_redis_keeps_the_locks_of_its_tests_in_memory(bare: None) -> None:
    assert foreign.is_test()
    assert (check_settings(), check_deployment()) == ([], [])
    with rlock("stock:42"):
        assert get_client().exists("rlock:stock:42")


@pytest.mark.usefixtures("bare", "no_test")
def test_outside_of_tests_it_is_warned_and_the_first_lock_raises() -> None:
    [warning] = check_settings()
    [error] = check_deployment()
    assert (warning.id, warning.level) == ("django_rlock.W010", WARNING)
    assert (error.id, error.level) == ("django_rlock.E004", ERROR)
    assert warning.msg == error.msg
    with pytest.raises(ImproperlyConfigured, match="no lock can be taken") as caught:
        rlock("stock:42").acquire()
    assert str(caught.value) == warning.msg
    for advice in ("'CACHE'", "'STORE': 'memory'", "django-rlock[testing]"):
        assert advice in warning.msg


@pytest.mark.usefixtures("bare", "no_test")
def test_an_option_in_the_place_of_an_alias_is_told_first(settings: Any) -> None:
    settings.RLOCK = {"CACHE": "locks"}
    with pytest.raises(ImproperlyConfigured, match=r"write RLOCK = \{'default': \{'CACHE': …\}\}"):
        rlock("stock:42").acquire()


def test_tests_without_the_extra_run_as_long_as_they_use_no_lock(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "find_spec", lambda _: None)
    assert [message.id for message in check_settings()] == ["django_rlock.W010"]
    with pytest.raises(ImproperlyConfigured, match="pip install"):
        rlock("stock:42").acquire()


@pytest.mark.parametrize("cache", ["default", "other"])
def test_a_cache_that_is_named_is_no_place_unless_it_has_a_redis(settings: Any, cache: str) -> None:
    entry = {"BACKEND": f"django.core.cache.backends.{PRIVATE[0]}"}
    settings.CACHES = {"default": entry, "other": entry}
    settings.RLOCK = {"default": {"CACHE": cache}}
    assert [message.id for message in check_settings()] == ["django_rlock.E001"]
    with pytest.raises(ImproperlyConfigured, match="no Redis client"):
        rlock("stock:42").acquire()


def test_a_module_may_be_imported_while_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, to which Python may switch when it collects garbage."""
    modules = sys.modules.copy()
    monkeypatch.setattr(sys, "modules", modules)

    def import_one(*_: object) -> None:
        modules[f"imported_{len(modules)}"] = ModuleType("imported")

    gc.callbacks.append(import_one)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        memory._set_clock()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(import_one)
    assert any(name.startswith("imported_") for name in modules)
