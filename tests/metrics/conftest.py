"""Metrics as a project reads them, by either exporter."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry

from django_rlock.metrics import EVENTS, opentelemetry, prometheus
from tests.background import settle
from tests.bindings import binding, nothing_left, pytest_pyfunc_call

__all__ = ["binding", "nothing_left", "pytest_pyfunc_call"]

Labels = dict[str, str]


class Measured:
    """What was measured, under the names that Prometheus has for it; those of OpenTelemetry become the same there."""

    def samples(self) -> list[tuple[str, Labels, float]]:
        settle()
        settle()  # what was posted to the thread for callbacks is recorded there in turn
        return list(self._samples())

    def _samples(self) -> Iterator[tuple[str, Labels, float]]:
        raise NotImplementedError

    def value(self, name: str, **labels: str) -> float | None:
        """The value with these labels, and those of a lock by its name in place of others; None if there is none."""
        wanted = {"template": "", "kind": "fair", "alias": "default", **labels}
        return next((value for found, has, value in self.samples() if found == name and has == wanted), None)


class ByPrometheus(Measured):
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prometheus.instrument(self.registry)

    def _samples(self) -> Iterator[tuple[str, Labels, float]]:
        for family in self.registry.collect():
            yield from ((each.name, each.labels, each.value) for each in family.samples)


class ByOpenTelemetry(Measured):
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        opentelemetry.instrument(self.provider)

    def _samples(self) -> Iterator[tuple[str, Labels, float]]:
        data: Any = self.reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            name = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
            for point in metric.data.data_points:
                labels = dict(point.attributes)
                if isinstance(point, HistogramDataPoint):
                    yield f"{name}_count", labels, point.count
                    yield f"{name}_sum", labels, point.sum
                else:
                    yield name + ("_total" if metric.data.is_monotonic else ""), labels, point.value


@pytest.fixture
def _signals_as_before() -> Iterator[None]:
    signals = {signal for event in EVENTS for signal in event.sources}
    before = {signal: signal.receivers[:] for signal in signals}
    yield
    for signal, receivers in before.items():
        signal.receivers[:] = receivers
        signal.sender_receivers_cache.clear()


@pytest.fixture(params=[ByPrometheus, ByOpenTelemetry])
def measured(request: pytest.FixtureRequest, _signals_as_before: None) -> Measured:
    """What is measured from now on."""
    settle()  # losses of earlier tests are reported by now
    made: Measured = request.param()
    return made
