"""Metrics for Prometheus, using prometheus-client: the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_rlock.metrics import BUCKETS, LABELS, LEVELS, Event, Record, feed


@cache
def instrument(registry: CollectorRegistry = REGISTRY) -> None:
    """Measure the locks of this process, and of processes that it forks, in a registry.

    Call it when all apps are loaded, as in ``AppConfig.ready()``; a second call does nothing. In prometheus-client's
    multiprocess mode there are no gauges, because a process cannot read the tables of others.
    """

    def record_of(event: Event) -> Record:
        name = _name(event.name)
        if event.seconds is None:
            counter = Counter(name, event.text, event.labels, registry=registry)
            return lambda labels, value: counter.labels(*labels.values()).inc(value)
        histogram = Histogram(f"{name}_seconds", event.text, event.labels, registry=registry, buckets=BUCKETS)
        return lambda labels, value: histogram.labels(*labels.values()).observe(value)

    feed(record_of)
    registry.register(_Levels())


class _Levels(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        for level in LEVELS:
            family = GaugeMetricFamily(_name(level.name), level.text, labels=LABELS)
            for values, number in level.read().items():
                family.add_metric(values, number)
            yield family


def _name(name: str) -> str:
    return name.replace(".", "_")
