"""Metrics and traces for OpenTelemetry's API: the extra ``opentelemetry``. The project provides the SDK and the
exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from time import time_ns
from typing import Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.trace import StatusCode, Tracer, TracerProvider, get_tracer

from django_rlock._core.callbacks import post
from django_rlock._core.text import printable
from django_rlock.metrics import BUCKETS, LABELS, LEVELS, Event, Level, Record, feed
from django_rlock.signals import LockSignal, lock_acquired, lock_released, lock_timed_out, lock_unavailable
from django_rlock.version import __version__

_WAITS = lock_acquired, lock_timed_out, lock_unavailable


@cache
def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Measure the locks of this process, and of processes that it forks, with a provider (None: the global one, which
    may be set later).

    Call it when all apps are loaded, as in ``AppConfig.ready()``; a second call does nothing.
    """
    meter = get_meter("django_rlock", __version__, meter_provider)

    def record_of(event: Event) -> Record:
        if event.seconds is None:
            counter = meter.create_counter(event.name, description=event.text)
            return lambda labels, value: counter.add(value, labels)
        histogram = meter.create_histogram(
            event.name, "s", event.text, explicit_bucket_boundaries_advisory=list(BUCKETS)
        )
        return lambda labels, value: histogram.record(value, labels)

    feed(record_of)
    for level in LEVELS:
        meter.create_observable_up_down_counter(level.name, [_observer(level)], description=level.text)


def _observer(level: Level) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(number, dict(zip(LABELS, values, strict=True))) for values, number in level.read().items()]

    return observe


@cache
def trace(tracer_provider: TracerProvider | None = None) -> None:
    """Add spans to the traces of this process, and of processes that it forks, with a provider (None: the global one,
    which may be set later): ``wait`` for each attempt to take a lock, ``hold`` from then until its release.

    Call it when all apps are loaded, as in ``AppConfig.ready()``; a second call does nothing.
    """
    tracer = get_tracer("django_rlock", __version__, tracer_provider)
    for signal in _WAITS:
        _add_spans(signal, tracer, "wait", "waited")
    _add_spans(lock_released, tracer, "hold", "held")


def _add_spans(signal: LockSignal, tracer: Tracer, operation: str, seconds: str) -> None:
    def receive(**given: Any) -> None:
        # The span of the outermost acquire covers nested ones.
        if given["outcome"] != "reentered":
            post(_record_span, tracer, operation, given[seconds], time_ns(), given)  # with the caller's context

    signal.connect(receive, weak=False)


def _record_span(tracer: Tracer, operation: str, seconds: float, ended: int, given: dict[str, Any]) -> None:
    template, outcome = printable(given["template"]), given["outcome"]
    attributes = {f"rlock.{label}": printable(given[label]) for label in (*LABELS, "outcome")}
    span = tracer.start_span(
        f"{operation} {template or 'lock'}",
        attributes={**attributes, "rlock.name": printable(given["lock"].name)},
        start_time=ended - round(seconds * 1e9),
    )
    if outcome in {"timed_out", "unavailable"}:
        span.set_attribute("error.type", outcome)
    if outcome == "unavailable":
        span.set_status(StatusCode.ERROR, printable(str(given["reason"])))
    span.end(ended)
