"""docs/monitoring.md lists what is exported, and the dashboard and the alerts ask for nothing else.

It lists the signals that the metrics are built on, too.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from django_rlock import signals
from django_rlock.metrics import EVENTS, LABELS, prometheus
from django_rlock.signals import LockSignal

DOCS = Path(__file__).parents[2] / "docs"
PAGE, _, SIGNALS = (DOCS / "monitoring.md").read_text(encoding="utf-8").partition("\n## Signals\n")
DASHBOARD = json.loads((DOCS / "grafana" / "rlock.json").read_text(encoding="utf-8"))

OF_OTHERS = {"le", "job", "instance"}
"""Labels that Prometheus adds."""


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The metrics of the Prometheus exporter, with their types."""
    for event in EVENTS:
        for signal in event.sources:
            monkeypatch.setattr(signal, "receivers", signal.receivers[:])
    registry = CollectorRegistry()
    prometheus.instrument(registry)
    families = registry.collect()
    return {each.name + ("_total" if each.type == "counter" else ""): each.type for each in families}


def labels_of(metric: str) -> set[str]:
    names = {event.name.replace(".", "_"): event.labels for event in EVENTS}
    return set(names.get(re.sub(r"_(total|seconds)$", "", metric), LABELS))


def table(page: str, head: str) -> Iterator[list[str]]:
    """The cells of the rows of the table whose first column is headed so."""
    for row in page.partition(f"\n| {head} |")[2].partition("\n\n")[0].splitlines()[2:]:
        yield [cell.strip() for cell in row.strip("|").split("|")]


def queries(part: Any) -> Iterator[str]:
    """All PromQL in a part of the dashboard."""
    if isinstance(part, dict):
        yield from (text for key in ("expr", "definition") if isinstance(text := part.get(key), str))
        yield from queries(list(part.values()))
    elif isinstance(part, list):
        for each in part:
            yield from queries(each)


def asked(query: str) -> set[str]:
    """The metrics in a query; for a histogram, without the suffixes of its series."""
    return {re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name) for name in re.findall(r"\brlock_\w+", query)}


def labels_asked(query: str) -> set[str]:
    grouped = re.findall(r"(?:by|ignoring|on) \(([^)]*)\)", query)
    chosen = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    values = re.findall(r"label_values\(\w+, (\w+)\)", query)
    return {*chosen, *values, *(label.strip() for labels in grouped for label in labels.split(","))}


def in_the_page() -> list[str]:
    """The queries of the page, those of each alert by themselves."""
    blocks = re.findall(r"```(?:promql|yaml)\n(.*?)```", PAGE, re.DOTALL)
    return [query for block in blocks for query in block.split("- alert:") if "rlock_" in query]


def test_the_table_lists_every_metric(exported: dict[str, str]) -> None:
    rows = {name.strip("`"): rest for name, *rest in table(PAGE, "metric")}
    assert {name: row[0] for name, row in rows.items()} == exported
    assert {name: set(row[1].split(", ")) for name, row in rows.items()} == {each: labels_of(each) for each in exported}
    assert {name for name, row in rows.items() if row[2] == "s"} == {each for each in exported if "_seconds" in each}


def test_the_table_of_signals_is_that_of_the_module() -> None:
    every = {name: each.outcome for name, each in vars(signals).items() if isinstance(each, LockSignal)}
    told: dict[str, str] = {}
    for names, outcomes, _ in table(SIGNALS, "signal"):
        told |= zip(re.findall(r"`(\w+)`", names), re.findall(r"`(\w+)`", outcomes), strict=False)
    assert told == every


@pytest.mark.parametrize("found", [list(queries(DASHBOARD)), in_the_page()], ids=["dashboard", "page"])
def test_queries_ask_for_what_is_exported(exported: dict[str, str], found: list[str]) -> None:
    assert found
    for query in found:
        metrics = asked(query)
        assert metrics, query
        assert metrics <= exported.keys(), query
        assert labels_asked(query) <= OF_OTHERS.union(*map(labels_of, metrics)), query


def test_the_dashboard_shows_every_metric(exported: dict[str, str]) -> None:
    assert set().union(*map(asked, queries(DASHBOARD["panels"]))) == exported.keys()


def test_the_dashboard_has_the_variables_that_it_uses() -> None:
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all", "__rate_interval"}
    assert used == variables
