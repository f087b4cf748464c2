"""The figures of a run, and how they are written: tables in Markdown, everything in JSON.

An earlier run's figures can be shown beside them; ``Earlier`` reads these from the earlier run's JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    *("django", "django-redis", "redis", "hiredis", "pottery", "python-redis-lock", "celery"),
    *("psycopg", "pymysql", "kazoo"),
)


@dataclass(frozen=True)
class Row:
    """One figure. ``at_most`` and ``at_least`` are its limits; without them it only informs."""

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


Line = Sequence[float]


@dataclass(frozen=True)
class Grid:
    """Figures that grow with their first column, with a line for each size."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Line]
    note: str = ""


Result = Table | Grid


def grid_lines(results: Iterable[Result], title: str) -> list[Line]:
    """The lines of the grid with this title."""
    return [line for result in results if isinstance(result, Grid) and result.title == title for line in result.lines]


class Earlier:
    """The figures of an earlier run; ``document`` is the JSON that it wrote, or None if there is none."""

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        self.known = document is not None
        self._results = {result["title"]: result for result in (document or {}).get("tables", ())}

    @classmethod
    def read(cls, file: Path | None) -> Earlier:
        return cls(None if file is None else json.loads(file.read_text(encoding="utf-8")))

    def row(self, table: Table, row: Row) -> dict[str, Any] | None:
        """The row with the same name in the same table."""
        rows = self._results.get(table.title, {}).get("rows", ())
        return next((earlier for earlier in rows if earlier["what"] == row.what), None)

    def lines(self, title: str) -> list[Line]:
        """The lines of the grid with the same title."""
        return list(self._results.get(title, {}).get("lines", ()))


def to_markdown(results: Sequence[Result], earlier: Earlier | None = None) -> str:
    """A section with a table for each benchmark, with an earlier run's figures in a column if they are given."""
    beside = earlier or Earlier()
    return "\n\n".join(_section(result, beside) for result in results) + "\n"


def to_json(results: Sequence[Result]) -> str:
    """Everything, with the versions with which it was measured."""
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}
    return json.dumps({"versions": versions, "tables": [_document(result) for result in results]}, indent=2) + "\n"


def _document(result: Result) -> dict[str, object]:
    if isinstance(result, Grid):
        return asdict(result)
    rows = [asdict(row) | {"reached": row.reached} for row in result.rows]
    return {"title": result.title, "note": result.note, "rows": rows}


def _section(result: Result, earlier: Earlier) -> str:
    lines = _grid(result, earlier) if isinstance(result, Grid) else _table(result, earlier)
    note = ["", result.note] if result.note else []
    return "\n".join([f"### {result.title}", "", *lines, *note])


# ---- tables -------------------------------------------------------------------------------------------------------


def _table(table: Table, earlier: Earlier) -> list[str]:
    before = ["before"] if earlier.known else []
    columns = ["what", *before, "figure", "middle half", "target", "reached"]
    return [*_head(columns), *(_cells(_row_cells(table, row, earlier)) for row in table.rows)]


def _row_cells(table: Table, row: Row, earlier: Earlier) -> list[str]:
    before = [_before(earlier.row(table, row), row.unit)] if earlier.known else []
    return [row.what, *before, _figure(row), _spread(row), row.target, _reached(row)]


def _before(row: dict[str, Any] | None, unit: str) -> str:
    if row is None:
        return ""
    return _number(row["figure"]) if row["unit"] == unit else f"{_number(row['figure'])} {row['unit']}".strip()


def _figure(row: Row) -> str:
    details = "; ".join(f"{name}: {_number(value)}" for name, value in row.details.items())
    return f"{_number(row.figure)} {row.unit}".strip() + (f" ({details})" if details else "")


def _spread(row: Row) -> str:
    return f"{_number(row.spread[0])} – {_number(row.spread[1])}" if row.spread else ""


def _reached(row: Row) -> str:
    return {True: "yes", False: "**no**", None: ""}[row.reached]


# ---- grids --------------------------------------------------------------------------------------------------------


def _grid(grid: Grid, earlier: Earlier) -> list[str]:
    """An earlier run's figures are in brackets after those of the same size."""
    now = {line[0]: line[1:] for line in grid.lines}
    before = {line[0]: line[1:] for line in earlier.lines(grid.title)}
    nothing = (None,) * (len(grid.columns) - 1)
    lines = [
        [_number(size), *map(_both, now.get(size, nothing), before.get(size, nothing))]
        for size in sorted(now.keys() | before.keys())
    ]
    return [*_head(grid.columns), *map(_cells, lines)]


def _both(now: float | None, before: float | None) -> str:
    shown = "–" if now is None else _number(now)
    return shown if before is None else f"{shown} ({_number(before)})"


def _head(columns: Sequence[str]) -> list[str]:
    return [_cells(columns), "|" + "---|" * len(columns)]


def _cells(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
