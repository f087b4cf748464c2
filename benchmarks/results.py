"""The figures of a run, and how they are written: a table in Markdown, everything in JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

PACKAGES = ("django", "django-redis", "redis", "hiredis", "pottery", "python-redis-lock")


@dataclass(frozen=True)
class Row:
    """One figure. ``at_most`` and ``at_least`` are what it is to reach; without them it only informs."""

    what: str
    figure: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    spread: tuple[float, float] | None = None
    """The middle half of the rounds."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        if self.at_most is None and self.at_least is None:
            return None
        below = self.at_most is None or self.figure <= self.at_most
        return below and (self.at_least is None or self.figure >= self.at_least)

    @property
    def target(self) -> str:
        bounds = (("at most", self.at_most), ("at least", self.at_least))
        return ", ".join(f"{word} {_number(bound)}" for word, bound in bounds if bound is not None)


def median_row(
    what: str,
    rounds: Sequence[float],
    unit: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """The median of one figure per round, and the spread of its middle half."""
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else (rounds[0],) * 3
    return Row(what, statistics.median(rounds), unit, at_most=at_most, at_least=at_least, spread=(low, high))


@dataclass(frozen=True)
class Table:
    """The rows of one benchmark."""

    title: str
    rows: list[Row]
    note: str = ""


def to_markdown(tables: Sequence[Table]) -> str:
    """A section with a table for each benchmark."""
    return "\n\n".join(_section(table) for table in tables) + "\n"


def to_json(tables: Sequence[Table]) -> str:
    """Everything, with the versions that it was measured with."""
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}
    documents = [_document(table) for table in tables]
    return json.dumps({"versions": versions, "tables": documents}, indent=2) + "\n"


def _document(table: Table) -> dict[str, object]:
    rows = [asdict(row) | {"reached": row.reached} for row in table.rows]
    return {"title": table.title, "note": table.note, "rows": rows}


def _section(table: Table) -> str:
    lines = [f"## {table.title}", "", "| what | figure | middle half | target | reached |", "|---|---|---|---|---|"]
    lines += [_line(row) for row in table.rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines)


def _line(row: Row) -> str:
    return f"| {row.what} | {_figure(row)} | {_spread(row)} | {row.target} | {_reached(row)} |"


def _figure(row: Row) -> str:
    details = "; ".join(f"{name}: {_number(value)}" for name, value in row.details.items())
    return f"{_number(row.figure)} {row.unit}".strip() + (f" ({details})" if details else "")


def _spread(row: Row) -> str:
    return f"{_number(row.spread[0])} – {_number(row.spread[1])}" if row.spread else ""


def _reached(row: Row) -> str:
    return {True: "yes", False: "**no**", None: ""}[row.reached]


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
