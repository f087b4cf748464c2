"""A picture of growing figures: an SVG of panels side by side, both axes logarithmic, for light and dark pages.

A constant cost is a level line; a cost that grows in proportion to its cause rises by one step for each step aside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.results import Line

Panels = Sequence[tuple[int, str]]
"""The position of a column, and the heading of its panel."""

PANEL_WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 280, 54, 34, 64, 40
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #57606a }
.heading { font-weight: 600; fill: #1f2328 }
.page { fill: #ffffff }
.grid { stroke: #d8dee4 }
.now, .now-line { stroke: #0969da } .now { fill: #0969da }
.before, .before-line { stroke: #8c959f } .before { fill: #8c959f }
.now-line, .before-line { fill: none; stroke-width: 2 }
.before-line { stroke-dasharray: 5 4 }
.end { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; fill: #1f2328 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .heading { fill: #f0f6fc }
  .page { fill: #0d1117 }
  .grid { stroke: #30363d }
  .now, .now-line { stroke: #4493f8 } .now { fill: #4493f8 }
  .before, .before-line { stroke: #6e7681 } .before { fill: #6e7681 }
  .end { stroke: #0d1117; fill: #f0f6fc }
}
"""


def draw(title: str, panels: Panels, now: Sequence[Line], before: Sequence[Line] = ()) -> str:
    """The SVG document. ``now`` and ``before`` are lines of a grid; ``title`` says what their first column counts."""
    width = PANEL_WIDTH * len(panels)
    series = {name: lines for name, lines in (("before", before), ("now", now)) if lines}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{HEIGHT}" rx="6"/>',
        *_legend(series),
        f'<text x="{width - RIGHT}" y="24" text-anchor="end">{escape(title)} →</text>',
    ]
    for number, (column, heading) in enumerate(panels):
        parts += [f'<g transform="translate({PANEL_WIDTH * number} 0)">', *_panel(heading, column, series), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


Series = dict[str, Sequence[Line]]


def _legend(series: Series) -> Iterator[str]:
    for number, name in enumerate(series if len(series) > 1 else ()):
        x = LEFT + 90 * number
        yield f'<path class="{name}-line" d="M{x} 20h24"/><text x="{x + 30}" y="24">{name}</text>'


def _panel(heading: str, column: int, series: Series) -> Iterator[str]:
    points = {name: [(line[0], line[column]) for line in lines] for name, lines in series.items()}
    everything = [point for some in points.values() for point in some]
    aside = _Axis.over((x for x, _ in everything), LEFT, PANEL_WIDTH - RIGHT)
    upward = _Axis.over((y for _, y in everything), HEIGHT - BOTTOM, TOP)
    yield f'<text class="heading" x="{LEFT}" y="{TOP - 14}">{escape(heading)}</text>'
    yield from _frame(aside, upward)
    for name, some in points.items():
        yield from _curve(name, [(aside.place(x), upward.place(y)) for x, y in some])
    yield from _last_figures({name: some[-1] for name, some in points.items()}, aside, upward)


class _Axis(NamedTuple):
    """Powers of ten from ``low`` to ``high`` (exponents), between two positions in the panel."""

    low: int
    high: int
    begin: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], begin: float, end: float) -> _Axis:
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        low = math.floor(min(logs) + 1e-9)
        return cls(low, max(math.ceil(max(logs) - 1e-9), low + 1), begin, end)

    def place(self, value: float) -> float:
        """The position of a value; 0 is at the beginning of the axis."""
        share = (math.log10(value) - self.low) / (self.high - self.low) if value > 0 else 0.0
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for exponent in range(self.low, self.high + 1):
            yield self.place(10.0**exponent), f"{10.0**exponent:,.{max(0, -exponent)}f}"


def _frame(aside: _Axis, upward: _Axis) -> Iterator[str]:
    for y, label in upward.ticks():
        yield f'<path class="grid" d="M{aside.begin} {y}H{aside.end}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{label}</text>'
    for x, label in aside.ticks():
        yield f'<path class="grid" d="M{x} {upward.begin}v4"/>'
        yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>'


def _curve(name: str, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    yield f'<path class="{name}-line" d="M{" L".join(f"{x} {y}" for x, y in places)}"/>'
    yield from (f'<circle class="{name}" cx="{x}" cy="{y}" r="3"/>' for x, y in places)


def _last_figures(last: dict[str, tuple[float, float]], aside: _Axis, upward: _Axis) -> Iterator[str]:
    """The figure at the end of each curve: above the higher one, below the other."""
    for below, (x, y) in enumerate(sorted(last.values(), key=lambda point: -point[1])):
        place = upward.place(y) + (18 if below else -8)
        yield f'<text class="end" x="{aside.place(x)}" y="{place}" text-anchor="middle">{_short(y)}</text>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
