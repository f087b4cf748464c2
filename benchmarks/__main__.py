"""``python -m benchmarks [NAME ...] [--json FILE] [--markdown FILE] [--before FILE] [--picture FILE] [--quick]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import picture, stage
from benchmarks.results import Earlier, Result, grid_lines, to_json, to_markdown
from benchmarks.scale import growth

NAMES = (
    "uncontended", "apart", "contended", "waiting", "holding", "beside", "greenlets", "listing", "multi", "quorum",
    "readers", "server", "django", "celery", "scale", "systems", "capacity",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    earlier = Earlier.read(options.before)
    results: list[Result] = []
    with stage.server():
        for name in options.names or NAMES:
            stage.observer().flushall()
            benchmark: Callable[[bool], list[Result]] = import_module(f"benchmarks.{name}").run
            done = benchmark(options.quick)
            print(to_markdown(done, earlier), flush=True)
            results += done
    _write(options, results, earlier)
    return 0


def _write(options: argparse.Namespace, results: list[Result], earlier: Earlier) -> None:
    if options.markdown:
        options.markdown.write_text(to_markdown(results, earlier), encoding="utf-8")
    if options.json:
        options.json.write_text(to_json(results), encoding="utf-8")
    if options.picture:
        now, before = grid_lines(results, growth.TITLE), earlier.lines(growth.TITLE)
        options.picture.write_text(picture.draw(growth.TITLE, growth.PANELS, now, before), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Our locks beside their peers.")
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument("--before", type=Path, metavar="FILE", help="show the figures of this JSON file beside")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the growth that scale measures, as SVG")
    parser.add_argument("--quick", action="store_true", help="a few pairs of each: shows that it runs, not how fast")
    options = parser.parse_args(arguments)
    if options.picture and "scale" not in (options.names or NAMES):
        parser.error("--picture draws what scale measures")
    return options


if __name__ == "__main__":
    sys.exit(main())
