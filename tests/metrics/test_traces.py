"""Spans of OpenTelemetry: in the caller's trace, with what they are about."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_rlock import LockTimeoutError, LockUnavailableError, RLock
from django_rlock.metrics import opentelemetry
from django_rlock.signals import LockSignal
from tests.background import settle
from tests.bindings import BlockingBinding as Binding


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    connected: list[tuple[LockSignal, Any]] = []
    connect = LockSignal.connect

    def note(signal: LockSignal, receiver: Any, **options: Any) -> None:
        connected.append((signal, receiver))
        connect(signal, receiver, **options)

    monkeypatch.setattr(LockSignal, "connect", note)
    made = TracerProvider(shutdown_on_exit=False)
    opentelemetry.trace(made)
    opentelemetry.trace(made)
    yield made
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def spans(provider: TracerProvider) -> Any:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def finished() -> list[Any]:
        settle()
        return [span for span in exporter.get_finished_spans() if span.name != "request"]

    return finished


async def test_a_trace_shows_the_wait_and_the_hold(binding: Binding, provider: TracerProvider, spans: Any) -> None:
    request: Any
    with provider.get_tracer("test").start_as_current_span("request") as request:
        async with binding.inside(lock := RLock("stock:42")), binding.inside(lock):
            pass
    wait, hold = spans()
    assert [span.name for span in (wait, hold)] == ["wait lock", "hold lock"]
    for span in wait, hold:
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.attributes["rlock.name"] == "stock:42"
        assert (span.attributes["rlock.kind"], span.attributes["rlock.alias"]) == ("rlock", "default")
        assert request.start_time <= span.start_time <= span.end_time
    assert wait.end_time <= hold.end_time


def test_a_lock_that_is_taken(spans: Any) -> None:
    with RLock("stock:42", owner="another"), pytest.raises(LockTimeoutError), RLock("stock:42", wait_time=0):
        pass
    [refused] = [span for span in spans() if span.attributes["rlock.outcome"] == "timed_out"]
    assert (refused.name, refused.attributes["error.type"]) == ("wait lock", "timed_out")
    assert refused.status.status_code is StatusCode.UNSET


def test_a_server_that_is_away(spans: Any, settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    with pytest.raises(LockUnavailableError):
        RLock("stock:42").acquire()
    [failed] = spans()
    assert (failed.attributes["error.type"], failed.status.status_code) == ("unavailable", StatusCode.ERROR)
