"""The cost of many locks: held by one process, waited for by one process, waited for by many."""

from __future__ import annotations

from benchmarks import stage
from benchmarks.results import Result
from benchmarks.scale import crowd, growth, spread, waiters


def run(quick: bool) -> list[Result]:
    results: list[Result] = []
    for part in (growth, spread, waiters, crowd):
        stage.observer().flushall()
        results += part.run(quick)
    return results
