"""Metrics for OpenTelemetry, using its API only: the extra ``opentelemetry``. The project provides SDK and exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from django_rlock.metrics import BUCKETS, LABELS, LEVELS, Event, Level, Record, feed
from django_rlock.version import __version__


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
